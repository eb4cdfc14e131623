package coordinator

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// jobAnswer is any response that has a row.
type jobAnswer interface{ GetJob() *coordinatorv1.Job }

func rowOf[A jobAnswer](resp A, err error) (work.Row, error) {
	if err != nil {
		return work.Row{}, err
	}
	return decodeRow(resp.GetJob()), nil
}

// Create implements work.Table.
func (s *PendingWork) Create(ctx context.Context, r work.Row, c *work.Claim) (work.Row, error) {
	if err := work.CheckCreate(r, c); err != nil {
		return work.Row{}, err
	}
	req := &coordinatorv1.CreateJobRequest{Key: encodeKey(r.Key), Topic: r.Topic, Body: r.Body, State: r.State, Fence: r.Fence}
	// Without a claim the row is only pending, and the first worker claims it.
	if c != nil {
		req.Claim = encodeClaim(*c)
	}
	return rowOf(change(ctx, s, "create", r.Key.String(), s.client.CreateJob, req))
}

// Get implements work.Table.
func (s *PendingWork) Get(ctx context.Context, k work.Key) (work.Row, error) {
	if err := work.CheckKey("get", k); err != nil {
		return work.Row{}, err
	}
	return rowOf(read(ctx, s, "get", k.String(), s.client.GetJob, &coordinatorv1.GetJobRequest{Key: encodeKey(k)}))
}

// Claim implements work.Table.
func (s *PendingWork) Claim(ctx context.Context, r work.Row, c work.Claim) (work.Row, error) {
	if err := work.CheckClaim("claim", r.Key, c); err != nil {
		return work.Row{}, err
	}
	return rowOf(change(ctx, s, "claim", r.Key.String(), s.client.ClaimJob, &coordinatorv1.ClaimJobRequest{Version: encodeVersion(r), Claim: encodeClaim(c)}))
}

// Checkpoint implements work.Table.
func (s *PendingWork) Checkpoint(ctx context.Context, r work.Row, state []byte, hold time.Duration) (work.Row, error) {
	if err := work.CheckCheckpoint(r.Key, state, hold); err != nil {
		return work.Row{}, err
	}
	return rowOf(change(ctx, s, "checkpoint", r.Key.String(), s.client.CheckpointJob,
		&coordinatorv1.CheckpointJobRequest{Version: encodeVersion(r), State: state, Hold: durationpb.New(hold)}))
}

// Release implements work.Table.
func (s *PendingWork) Release(ctx context.Context, r work.Row, handOver bool) (work.Row, error) {
	if err := work.CheckKey("release", r.Key); err != nil {
		return work.Row{}, err
	}
	return rowOf(change(ctx, s, "release", r.Key.String(), s.client.ReleaseJob, &coordinatorv1.ReleaseJobRequest{Version: encodeVersion(r), HandOver: handOver}))
}

// Touch implements work.Table.
func (s *PendingWork) Touch(ctx context.Context, r work.Row) (work.Row, error) {
	if err := work.CheckKey("touch", r.Key); err != nil {
		return work.Row{}, err
	}
	return rowOf(change(ctx, s, "touch", r.Key.String(), s.client.TouchJob, &coordinatorv1.TouchJobRequest{Version: encodeVersion(r)}))
}

// Done implements work.Table.
func (s *PendingWork) Done(ctx context.Context, r work.Row) error {
	if err := work.CheckKey("done", r.Key); err != nil {
		return err
	}
	_, err := change(ctx, s, "done", r.Key.String(), s.client.CompleteJob, &coordinatorv1.CompleteJobRequest{Version: encodeVersion(r)})
	return err
}

// Rows implements work.Table.
func (s *PendingWork) Rows(ctx context.Context, prefix, after string, limit int) ([]work.Row, string, error) {
	if err := work.CheckRows("rows", prefix, after, limit); err != nil {
		return nil, "", err
	}
	resp, err := read(ctx, s, "rows", prefix, s.client.ListJobs, &coordinatorv1.ListJobsRequest{LogPrefix: prefix, PageSize: int32(limit), PageToken: after})
	if err != nil {
		return nil, "", err
	}
	var rows []work.Row
	for _, j := range resp.GetJobs() {
		rows = append(rows, decodeRow(j))
	}
	return rows, resp.GetNextPageToken(), nil
}

// Log implements work.Table.
func (s *PendingWork) Log(ctx context.Context, name string) (work.Log, error) {
	if err := work.CheckLog("log", name); err != nil {
		return work.Log{}, err
	}
	resp, err := read(ctx, s, "log", name, s.client.GetLog, &coordinatorv1.GetLogRequest{Name: name})
	if err != nil {
		return work.Log{}, err
	}
	return decodeLog(resp.GetLog()), nil
}

// Logs implements work.Table.
func (s *PendingWork) Logs(ctx context.Context, prefix, after string, limit int) ([]work.Log, string, error) {
	if err := work.CheckRows("logs", prefix, after, limit); err != nil {
		return nil, "", err
	}
	resp, err := read(ctx, s, "logs", prefix, s.client.ListLogs, &coordinatorv1.ListLogsRequest{LogPrefix: prefix, PageSize: int32(limit), PageToken: after})
	if err != nil {
		return nil, "", err
	}
	var logs []work.Log
	for _, l := range resp.GetLogs() {
		logs = append(logs, decodeLog(l))
	}
	return logs, resp.GetNextPageToken(), nil
}

// Forget implements work.Table.
func (s *PendingWork) Forget(ctx context.Context, l work.Log) error {
	if err := work.CheckLog("forget", l.Name); err != nil {
		return err
	}
	_, err := change(ctx, s, "forget", l.Name, s.client.ForgetLog, &coordinatorv1.ForgetLogRequest{Name: l.Name, Increment: l.Increment})
	return err
}
