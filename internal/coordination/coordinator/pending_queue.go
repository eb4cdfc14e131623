package coordinator

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// PendingWork is the queue and the table of pending work that the coordinator keeps. It is
// safe for concurrent use.
type PendingWork struct {
	client coordinatorv1.WorkServiceClient
	service
}

var (
	_ work.Queue = (*PendingWork)(nil)
	_ work.Table = (*PendingWork)(nil)
)

// NewPendingWork makes a client over conn, which stays the caller's; timeout bounds one
// call, and 0 is DefaultTimeout.
func NewPendingWork(conn grpc.ClientConnInterface, timeout time.Duration) *PendingWork {
	return &PendingWork{coordinatorv1.NewWorkServiceClient(conn), newService(timeout, work.ErrInvalid, work.ErrUnavailable,
		func(op, key string, err error) error { return &work.Error{Op: op, Key: key, Err: err} })}
}

// read makes a call that changes nothing, so a missing answer leaves no doubt.
func read[Q, A any](ctx context.Context, s *PendingWork, op, key string, fn func(context.Context, *Q, ...grpc.CallOption) (*A, error), req *Q) (*A, error) {
	return call(ctx, s.service, op, key, work.ErrUnavailable, fn, req)
}

// change makes a call that changes something. Without an answer it may have taken effect.
func change[Q, A any](ctx context.Context, s *PendingWork, op, key string, fn func(context.Context, *Q, ...grpc.CallOption) (*A, error), req *Q) (*A, error) {
	return call(ctx, s.service, op, key, work.ErrUnknown, fn, req)
}

// Send implements work.Queue.
func (s *PendingWork) Send(ctx context.Context, topic string, body []byte, o work.SendOptions) error {
	if err := work.CheckSend(topic, body, o); err != nil {
		return err
	}
	req := &coordinatorv1.SendMessageRequest{Topic: topic, Body: body, DedupeKey: o.DedupeKey}
	// Absent means no delay; the server validates what is present.
	if o.Delay > 0 {
		req.Delay = durationpb.New(o.Delay)
	}
	_, err := change(ctx, s, "send", topic, s.client.SendMessage, req)
	return err
}

// Receive implements work.Queue.
func (s *PendingWork) Receive(ctx context.Context, topic string, n int, visibility time.Duration) ([]work.Message, error) {
	if err := work.CheckReceive(topic, n, visibility); err != nil {
		return nil, err
	}
	// A receive whose answer is lost leaves messages hidden for their visibility, and nothing else, so it counts as
	// a read.
	resp, err := read(ctx, s, "receive", topic, s.client.ReceiveMessages,
		&coordinatorv1.ReceiveMessagesRequest{Topic: topic, MaxMessages: int32(n), Visibility: durationpb.New(visibility)})
	if err != nil {
		return nil, err
	}
	var ms []work.Message
	for _, m := range resp.GetMessages() {
		ms = append(ms, decodeMessage(m))
	}
	return ms, nil
}

func (s *PendingWork) returnMessage(ctx context.Context, op string, m work.Message, req *coordinatorv1.ReturnMessageRequest) error {
	req.Delivery = encodeDelivery(m)
	_, err := change(ctx, s, op, m.Key(), s.client.ReturnMessage, req)
	return err
}

// Extend implements work.Queue.
func (s *PendingWork) Extend(ctx context.Context, m work.Message, d time.Duration) error {
	if err := work.CheckExtend(m, d); err != nil {
		return err
	}
	return s.returnMessage(ctx, "extend", m, &coordinatorv1.ReturnMessageRequest{Action: &coordinatorv1.ReturnMessageRequest_Extend{Extend: durationpb.New(d)}})
}

// Terminate implements work.Queue.
func (s *PendingWork) Terminate(ctx context.Context, m work.Message) error {
	if err := work.CheckDelivery("terminate", m); err != nil {
		return err
	}
	return s.returnMessage(ctx, "terminate", m, &coordinatorv1.ReturnMessageRequest{Action: &coordinatorv1.ReturnMessageRequest_Terminate{Terminate: &coordinatorv1.Terminate{}}})
}

// Defer implements work.Queue.
func (s *PendingWork) Defer(ctx context.Context, m work.Message, delay time.Duration) error {
	if err := work.CheckDefer(m, delay); err != nil {
		return err
	}
	return s.returnMessage(ctx, "defer", m, &coordinatorv1.ReturnMessageRequest{Action: &coordinatorv1.ReturnMessageRequest_Defer{Defer: durationpb.New(delay)}})
}

// Delete implements work.Queue.
func (s *PendingWork) Delete(ctx context.Context, m work.Message) error {
	if err := work.CheckDelivery("delete", m); err != nil {
		return err
	}
	_, err := change(ctx, s, "delete", m.Key(), s.client.DeleteMessage, &coordinatorv1.DeleteMessageRequest{Delivery: encodeDelivery(m)})
	return err
}

// Bury implements work.Queue.
func (s *PendingWork) Bury(ctx context.Context, m work.Message, reason string) error {
	if err := work.CheckDelivery("bury", m); err != nil {
		return err
	}
	return s.returnMessage(ctx, "bury", m, &coordinatorv1.ReturnMessageRequest{Action: &coordinatorv1.ReturnMessageRequest_Bury{Bury: work.CutReason(reason)}})
}

// DeadLetters implements work.Queue.
func (s *PendingWork) DeadLetters(ctx context.Context, topic, after string, limit int) ([]work.DeadLetter, string, error) {
	if err := work.CheckDeadLetters(topic, after, limit); err != nil {
		return nil, "", err
	}
	resp, err := read(ctx, s, "dead letters", topic, s.client.ListDeadLetters,
		&coordinatorv1.ListDeadLettersRequest{Topic: topic, PageSize: int32(limit), PageToken: after})
	if err != nil {
		return nil, "", err
	}
	var ds []work.DeadLetter
	for _, d := range resp.GetDeadLetters() {
		ds = append(ds, decodeLetter(d))
	}
	return ds, resp.GetNextPageToken(), nil
}

// Redrive implements work.Queue.
func (s *PendingWork) Redrive(ctx context.Context, topic, id string) error {
	if err := work.CheckTopic("redrive", topic); err != nil {
		return err
	}
	_, err := change(ctx, s, "redrive", topic+"/"+id, s.client.RedriveDeadLetter, &coordinatorv1.RedriveDeadLetterRequest{Topic: topic, MessageId: id})
	return err
}

// Depth implements work.Queue.
func (s *PendingWork) Depth(ctx context.Context, topic string) (work.Depth, error) {
	if err := work.CheckTopic("depth", topic); err != nil {
		return work.Depth{}, err
	}
	resp, err := read(ctx, s, "depth", topic, s.client.GetDepth, &coordinatorv1.GetDepthRequest{Topic: topic})
	if err != nil {
		return work.Depth{}, err
	}
	return work.Depth{Ready: int(resp.GetReady()), Hidden: int(resp.GetHidden()), Dead: int(resp.GetDead())}, nil
}
