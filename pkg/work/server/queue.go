package server

import (
	"context"

	"lightmetrics.dev/lightmetrics/pkg/work"
	"lightmetrics.dev/lightmetrics/pkg/work/wire"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// SendMessage adds a message.
func (s *Server) SendMessage(ctx context.Context, r *coordinatorv1.SendMessageRequest) (*coordinatorv1.SendMessageResponse, error) {
	err := s.queue.Send(ctx, r.GetTopic(), r.GetBody(), work.SendOptions{Delay: r.GetDelay().AsDuration(), DedupeKey: r.GetDedupeKey()})
	return answer(&coordinatorv1.SendMessageResponse{}, err)
}

// ReceiveMessages takes visible messages.
func (s *Server) ReceiveMessages(ctx context.Context, r *coordinatorv1.ReceiveMessagesRequest) (*coordinatorv1.ReceiveMessagesResponse, error) {
	ms, err := s.queue.Receive(ctx, r.GetTopic(), int(r.GetMaxMessages()), r.GetVisibility().AsDuration())
	resp := &coordinatorv1.ReceiveMessagesResponse{}
	for _, m := range ms {
		resp.Messages = append(resp.Messages, wire.FromMessage(m))
	}
	return answer(resp, err)
}

// ReturnMessage extends, terminates, defers or buries.
func (s *Server) ReturnMessage(ctx context.Context, r *coordinatorv1.ReturnMessageRequest) (*coordinatorv1.ReturnMessageResponse, error) {
	m := wire.ToDelivery(r.GetDelivery())
	var err error
	switch a := r.GetAction().(type) {
	case *coordinatorv1.ReturnMessageRequest_Extend:
		err = s.queue.Extend(ctx, m, a.Extend.AsDuration())
	case *coordinatorv1.ReturnMessageRequest_Terminate:
		err = s.queue.Terminate(ctx, m)
	case *coordinatorv1.ReturnMessageRequest_Defer:
		err = s.queue.Defer(ctx, m, a.Defer.AsDuration())
	case *coordinatorv1.ReturnMessageRequest_Bury:
		err = s.queue.Bury(ctx, m, a.Bury)
	default:
		return nil, invalid("return", "no action")
	}
	return answer(&coordinatorv1.ReturnMessageResponse{}, err)
}

// DeleteMessage removes a message.
func (s *Server) DeleteMessage(ctx context.Context, r *coordinatorv1.DeleteMessageRequest) (*coordinatorv1.DeleteMessageResponse, error) {
	return answer(&coordinatorv1.DeleteMessageResponse{}, s.queue.Delete(ctx, wire.ToDelivery(r.GetDelivery())))
}

// ListDeadLetters reads a page.
func (s *Server) ListDeadLetters(ctx context.Context, r *coordinatorv1.ListDeadLettersRequest) (*coordinatorv1.ListDeadLettersResponse, error) {
	ds, next, err := s.queue.DeadLetters(ctx, r.GetTopic(), r.GetPageToken(), page(r.GetPageSize()))
	resp := &coordinatorv1.ListDeadLettersResponse{NextPageToken: next}
	for _, d := range ds {
		resp.DeadLetters = append(resp.DeadLetters, wire.FromLetter(d))
	}
	return answer(resp, err)
}

// RedriveDeadLetter sends a dead letter again.
func (s *Server) RedriveDeadLetter(ctx context.Context, r *coordinatorv1.RedriveDeadLetterRequest) (*coordinatorv1.RedriveDeadLetterResponse, error) {
	return answer(&coordinatorv1.RedriveDeadLetterResponse{}, s.queue.Redrive(ctx, r.GetTopic(), r.GetMessageId()))
}

// GetDepth counts.
func (s *Server) GetDepth(ctx context.Context, r *coordinatorv1.GetDepthRequest) (*coordinatorv1.GetDepthResponse, error) {
	d, err := s.queue.Depth(ctx, r.GetTopic())
	return answer(&coordinatorv1.GetDepthResponse{Ready: int64(d.Ready), Hidden: int64(d.Hidden), Dead: int64(d.Dead)}, err)
}
