package server

import (
	"context"

	"lightmetrics.dev/lightmetrics/pkg/work"
	"lightmetrics.dev/lightmetrics/pkg/work/wire"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// CreateJob adds a row.
func (s *Server) CreateJob(ctx context.Context, r *coordinatorv1.CreateJobRequest) (*coordinatorv1.CreateJobResponse, error) {
	var c *work.Claim
	if r.GetClaim() != nil {
		claim := wire.ToClaim(r.GetClaim())
		c = &claim
	}
	n, err := s.table.Create(ctx, work.Row{Key: wire.ToKey(r.GetKey()), Topic: r.GetTopic(), Body: r.GetBody(), State: r.GetState(), Fence: r.GetFence()}, c)
	return row(n, err, func(n work.Row) *coordinatorv1.CreateJobResponse {
		return &coordinatorv1.CreateJobResponse{Job: wire.FromRow(n)}
	})
}

// GetJob reads a row.
func (s *Server) GetJob(ctx context.Context, r *coordinatorv1.GetJobRequest) (*coordinatorv1.GetJobResponse, error) {
	n, err := s.table.Get(ctx, wire.ToKey(r.GetKey()))
	return row(n, err, func(n work.Row) *coordinatorv1.GetJobResponse {
		return &coordinatorv1.GetJobResponse{Job: wire.FromRow(n)}
	})
}

// ClaimJob takes a row.
func (s *Server) ClaimJob(ctx context.Context, r *coordinatorv1.ClaimJobRequest) (*coordinatorv1.ClaimJobResponse, error) {
	n, err := s.table.Claim(ctx, wire.ToVersion(r.GetVersion()), wire.ToClaim(r.GetClaim()))
	return row(n, err, func(n work.Row) *coordinatorv1.ClaimJobResponse {
		return &coordinatorv1.ClaimJobResponse{Job: wire.FromRow(n)}
	})
}

// CheckpointJob stores a state.
func (s *Server) CheckpointJob(ctx context.Context, r *coordinatorv1.CheckpointJobRequest) (*coordinatorv1.CheckpointJobResponse, error) {
	n, err := s.table.Checkpoint(ctx, wire.ToVersion(r.GetVersion()), r.GetState(), r.GetHold().AsDuration())
	return row(n, err, func(n work.Row) *coordinatorv1.CheckpointJobResponse {
		return &coordinatorv1.CheckpointJobResponse{Job: wire.FromRow(n)}
	})
}

// ReleaseJob gives a row back.
func (s *Server) ReleaseJob(ctx context.Context, r *coordinatorv1.ReleaseJobRequest) (*coordinatorv1.ReleaseJobResponse, error) {
	n, err := s.table.Release(ctx, wire.ToVersion(r.GetVersion()), r.GetHandOver())
	return row(n, err, func(n work.Row) *coordinatorv1.ReleaseJobResponse {
		return &coordinatorv1.ReleaseJobResponse{Job: wire.FromRow(n)}
	})
}

// TouchJob notes that a row's message was sent again.
func (s *Server) TouchJob(ctx context.Context, r *coordinatorv1.TouchJobRequest) (*coordinatorv1.TouchJobResponse, error) {
	n, err := s.table.Touch(ctx, wire.ToVersion(r.GetVersion()))
	return row(n, err, func(n work.Row) *coordinatorv1.TouchJobResponse {
		return &coordinatorv1.TouchJobResponse{Job: wire.FromRow(n)}
	})
}

// CompleteJob ends a job.
func (s *Server) CompleteJob(ctx context.Context, r *coordinatorv1.CompleteJobRequest) (*coordinatorv1.CompleteJobResponse, error) {
	return answer(&coordinatorv1.CompleteJobResponse{}, s.table.Done(ctx, wire.ToVersion(r.GetVersion())))
}

// ListJobs reads a page of rows.
func (s *Server) ListJobs(ctx context.Context, r *coordinatorv1.ListJobsRequest) (*coordinatorv1.ListJobsResponse, error) {
	rows, next, err := s.table.Rows(ctx, r.GetLogPrefix(), r.GetPageToken(), page(r.GetPageSize()))
	resp := &coordinatorv1.ListJobsResponse{NextPageToken: next}
	for _, n := range rows {
		resp.Jobs = append(resp.Jobs, wire.FromRow(n))
	}
	return answer(resp, err)
}

// GetLog reads a log.
func (s *Server) GetLog(ctx context.Context, r *coordinatorv1.GetLogRequest) (*coordinatorv1.GetLogResponse, error) {
	l, err := s.table.Log(ctx, r.GetName())
	return answer(&coordinatorv1.GetLogResponse{Log: wire.FromLog(l)}, err)
}

// ListLogs reads a page of logs.
func (s *Server) ListLogs(ctx context.Context, r *coordinatorv1.ListLogsRequest) (*coordinatorv1.ListLogsResponse, error) {
	logs, next, err := s.table.Logs(ctx, r.GetLogPrefix(), r.GetPageToken(), page(r.GetPageSize()))
	resp := &coordinatorv1.ListLogsResponse{NextPageToken: next}
	for _, l := range logs {
		resp.Logs = append(resp.Logs, wire.FromLog(l))
	}
	return answer(resp, err)
}

// ForgetLog removes a log.
func (s *Server) ForgetLog(ctx context.Context, r *coordinatorv1.ForgetLogRequest) (*coordinatorv1.ForgetLogResponse, error) {
	return answer(&coordinatorv1.ForgetLogResponse{}, s.table.Forget(ctx, work.Log{Name: r.GetName(), Increment: r.GetIncrement()}))
}
