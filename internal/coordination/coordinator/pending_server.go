package coordinator

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// PendingServer serves WorkService over a queue and a table. Deadlines of its back ends are theirs.
type PendingServer struct {
	coordinatorv1.UnimplementedWorkServiceServer
	queue work.Queue
	table work.Table
}

var _ coordinatorv1.WorkServiceServer = (*PendingServer)(nil)

// NewPendingServer makes a server.
func NewPendingServer(q work.Queue, t work.Table) *PendingServer {
	return &PendingServer{queue: q, table: t}
}

// Register adds it to a gRPC server.
func (s *PendingServer) Register(r grpc.ServiceRegistrar) {
	coordinatorv1.RegisterWorkServiceServer(r, s)
}

// pageSize is the size of a page that was asked for; one that is out of bounds stays so, and
// the back end refuses it.
func pageSize(size int32) int {
	if size == 0 {
		return work.MaxPage
	}
	return int(size)
}

// answerRow answers with a row.
func answerRow[T any](r work.Row, err error, fn func(work.Row) *T) (*T, error) {
	if err != nil {
		return nil, refusal(err)
	}
	return fn(r), nil
}

// SendMessage adds a message.
func (s *PendingServer) SendMessage(ctx context.Context, r *coordinatorv1.SendMessageRequest) (*coordinatorv1.SendMessageResponse, error) {
	err := s.queue.Send(ctx, r.GetTopic(), r.GetBody(), work.SendOptions{Delay: r.GetDelay().AsDuration(), DedupeKey: r.GetDedupeKey()})
	return answer(&coordinatorv1.SendMessageResponse{}, err)
}

// ReceiveMessages takes visible messages.
func (s *PendingServer) ReceiveMessages(ctx context.Context, r *coordinatorv1.ReceiveMessagesRequest) (*coordinatorv1.ReceiveMessagesResponse, error) {
	ms, err := s.queue.Receive(ctx, r.GetTopic(), int(r.GetMaxMessages()), r.GetVisibility().AsDuration())
	resp := &coordinatorv1.ReceiveMessagesResponse{}
	for _, m := range ms {
		resp.Messages = append(resp.Messages, encodeMessage(m))
	}
	return answer(resp, err)
}

// ReturnMessage extends, terminates, defers or buries.
func (s *PendingServer) ReturnMessage(ctx context.Context, r *coordinatorv1.ReturnMessageRequest) (*coordinatorv1.ReturnMessageResponse, error) {
	m := decodeDelivery(r.GetDelivery())
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
	// An action of a newer client must not be taken for one that is known.
	default:
		return nil, refusal(&work.Error{Op: "return", Key: r.GetDelivery().GetTopic(), Err: fmt.Errorf("%w: no action", work.ErrInvalid)})
	}
	return answer(&coordinatorv1.ReturnMessageResponse{}, err)
}

// DeleteMessage removes a message.
func (s *PendingServer) DeleteMessage(ctx context.Context, r *coordinatorv1.DeleteMessageRequest) (*coordinatorv1.DeleteMessageResponse, error) {
	return answer(&coordinatorv1.DeleteMessageResponse{}, s.queue.Delete(ctx, decodeDelivery(r.GetDelivery())))
}

// ListDeadLetters reads a page.
func (s *PendingServer) ListDeadLetters(ctx context.Context, r *coordinatorv1.ListDeadLettersRequest) (*coordinatorv1.ListDeadLettersResponse, error) {
	ds, next, err := s.queue.DeadLetters(ctx, r.GetTopic(), r.GetPageToken(), pageSize(r.GetPageSize()))
	resp := &coordinatorv1.ListDeadLettersResponse{NextPageToken: next}
	for _, d := range ds {
		resp.DeadLetters = append(resp.DeadLetters, encodeLetter(d))
	}
	return answer(resp, err)
}

// RedriveDeadLetter sends a dead letter again.
func (s *PendingServer) RedriveDeadLetter(ctx context.Context, r *coordinatorv1.RedriveDeadLetterRequest) (*coordinatorv1.RedriveDeadLetterResponse, error) {
	return answer(&coordinatorv1.RedriveDeadLetterResponse{}, s.queue.Redrive(ctx, r.GetTopic(), r.GetMessageId()))
}

// GetDepth counts.
func (s *PendingServer) GetDepth(ctx context.Context, r *coordinatorv1.GetDepthRequest) (*coordinatorv1.GetDepthResponse, error) {
	d, err := s.queue.Depth(ctx, r.GetTopic())
	return answer(&coordinatorv1.GetDepthResponse{Ready: int64(d.Ready), Hidden: int64(d.Hidden), Dead: int64(d.Dead)}, err)
}

// CreateJob adds a row.
func (s *PendingServer) CreateJob(ctx context.Context, r *coordinatorv1.CreateJobRequest) (*coordinatorv1.CreateJobResponse, error) {
	var c *work.Claim
	if r.GetClaim() != nil {
		claim := decodeClaim(r.GetClaim())
		c = &claim
	}
	n, err := s.table.Create(ctx, work.Row{Key: decodeKey(r.GetKey()), Topic: r.GetTopic(), Body: r.GetBody(), State: r.GetState(), Fence: r.GetFence()}, c)
	return answerRow(n, err, func(n work.Row) *coordinatorv1.CreateJobResponse {
		return &coordinatorv1.CreateJobResponse{Job: encodeRow(n)}
	})
}

// GetJob reads a row.
func (s *PendingServer) GetJob(ctx context.Context, r *coordinatorv1.GetJobRequest) (*coordinatorv1.GetJobResponse, error) {
	n, err := s.table.Get(ctx, decodeKey(r.GetKey()))
	return answerRow(n, err, func(n work.Row) *coordinatorv1.GetJobResponse {
		return &coordinatorv1.GetJobResponse{Job: encodeRow(n)}
	})
}

// ClaimJob takes a row.
func (s *PendingServer) ClaimJob(ctx context.Context, r *coordinatorv1.ClaimJobRequest) (*coordinatorv1.ClaimJobResponse, error) {
	n, err := s.table.Claim(ctx, decodeVersion(r.GetVersion()), decodeClaim(r.GetClaim()))
	return answerRow(n, err, func(n work.Row) *coordinatorv1.ClaimJobResponse {
		return &coordinatorv1.ClaimJobResponse{Job: encodeRow(n)}
	})
}

// CheckpointJob stores a state.
func (s *PendingServer) CheckpointJob(ctx context.Context, r *coordinatorv1.CheckpointJobRequest) (*coordinatorv1.CheckpointJobResponse, error) {
	n, err := s.table.Checkpoint(ctx, decodeVersion(r.GetVersion()), r.GetState(), r.GetHold().AsDuration())
	return answerRow(n, err, func(n work.Row) *coordinatorv1.CheckpointJobResponse {
		return &coordinatorv1.CheckpointJobResponse{Job: encodeRow(n)}
	})
}

// ReleaseJob gives a row back.
func (s *PendingServer) ReleaseJob(ctx context.Context, r *coordinatorv1.ReleaseJobRequest) (*coordinatorv1.ReleaseJobResponse, error) {
	n, err := s.table.Release(ctx, decodeVersion(r.GetVersion()), r.GetHandOver())
	return answerRow(n, err, func(n work.Row) *coordinatorv1.ReleaseJobResponse {
		return &coordinatorv1.ReleaseJobResponse{Job: encodeRow(n)}
	})
}

// TouchJob notes that a row's message was sent again.
func (s *PendingServer) TouchJob(ctx context.Context, r *coordinatorv1.TouchJobRequest) (*coordinatorv1.TouchJobResponse, error) {
	n, err := s.table.Touch(ctx, decodeVersion(r.GetVersion()))
	return answerRow(n, err, func(n work.Row) *coordinatorv1.TouchJobResponse {
		return &coordinatorv1.TouchJobResponse{Job: encodeRow(n)}
	})
}

// CompleteJob ends a job.
func (s *PendingServer) CompleteJob(ctx context.Context, r *coordinatorv1.CompleteJobRequest) (*coordinatorv1.CompleteJobResponse, error) {
	return answer(&coordinatorv1.CompleteJobResponse{}, s.table.Done(ctx, decodeVersion(r.GetVersion())))
}

// ListJobs reads a page of rows.
func (s *PendingServer) ListJobs(ctx context.Context, r *coordinatorv1.ListJobsRequest) (*coordinatorv1.ListJobsResponse, error) {
	rows, next, err := s.table.Rows(ctx, r.GetLogPrefix(), r.GetPageToken(), pageSize(r.GetPageSize()))
	resp := &coordinatorv1.ListJobsResponse{NextPageToken: next}
	for _, n := range rows {
		resp.Jobs = append(resp.Jobs, encodeRow(n))
	}
	return answer(resp, err)
}

// GetLog reads a log.
func (s *PendingServer) GetLog(ctx context.Context, r *coordinatorv1.GetLogRequest) (*coordinatorv1.GetLogResponse, error) {
	l, err := s.table.Log(ctx, r.GetName())
	return answer(&coordinatorv1.GetLogResponse{Log: encodeLog(l)}, err)
}

// ListLogs reads a page of logs.
func (s *PendingServer) ListLogs(ctx context.Context, r *coordinatorv1.ListLogsRequest) (*coordinatorv1.ListLogsResponse, error) {
	logs, next, err := s.table.Logs(ctx, r.GetLogPrefix(), r.GetPageToken(), pageSize(r.GetPageSize()))
	resp := &coordinatorv1.ListLogsResponse{NextPageToken: next}
	for _, l := range logs {
		resp.Logs = append(resp.Logs, encodeLog(l))
	}
	return answer(resp, err)
}

// ForgetLog removes a log.
func (s *PendingServer) ForgetLog(ctx context.Context, r *coordinatorv1.ForgetLogRequest) (*coordinatorv1.ForgetLogResponse, error) {
	return answer(&coordinatorv1.ForgetLogResponse{}, s.table.Forget(ctx, work.Log{Name: r.GetName(), Increment: r.GetIncrement()}))
}
