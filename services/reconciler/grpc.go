package reconciler

import (
	"context"
	"encoding/json"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/scrub"
)

// ReasonLagged is the ErrorInfo reason of a watch that fell behind: poll, then watch again.
const ReasonLagged = "LAGGED"

// Bounds of the lists.
const (
	defaultPage = 100
	maxPage     = 1000
	maxRanges   = 1000
)

// pageSize is how many a page has at most, of those that were asked for; 0 asks for the default.
func pageSize(asked int32) (int, error) {
	switch {
	case asked == 0:
		return defaultPage, nil
	case asked < 0:
		return 0, invalid("page_size is negative")
	}
	return min(int(asked), maxPage), nil
}

// server implements the gRPC API.
type server struct {
	reconcilerv1.UnimplementedReconcilerServiceServer
	s *Service
}

func draining() error {
	return rpc.Failure{Code: codes.Unavailable, Reason: rpc.ReasonDraining, Message: "reconciler is stopping"}.Err()
}

// ListLedgers lists ledgers by agent and boot. Before the journal was read it returns
// NOT_READY, because a part would look like the whole.
func (g server) ListLedgers(ctx context.Context, req *reconcilerv1.ListLedgersRequest) (*reconcilerv1.ListLedgersResponse, error) {
	if err := g.s.notRead(); err != nil {
		return nil, rpc.Failure{Code: codes.Unavailable, Reason: rpc.ReasonNotReady, Message: err.Error(), RetryAfter: g.s.cfg.Queue.RetryBase}.Err()
	}
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	var after identity.Boot
	if t := req.GetPageToken(); t != "" {
		if err := json.Unmarshal([]byte(t), &after); err != nil || after.Validate() != nil {
			return nil, invalid("page_token is not from a response before")
		}
	}
	// One more than the page, which shows whether there is a next one.
	set, _, _ := g.s.journal.status()
	list := set.After(after, req.GetAgentId(), size+1)
	res := &reconcilerv1.ListLedgersResponse{}
	if len(list) > size {
		list = list[:size]
		token, err := json.Marshal(list[size-1].Boot())
		if err != nil {
			return nil, err
		}
		res.NextPageToken = string(token)
	}
	for _, l := range list {
		res.Ledgers = append(res.Ledgers, view(l))
	}
	return res, nil
}

// GetStatus returns how far reconciliation is.
func (g server) GetStatus(context.Context, *reconcilerv1.GetStatusRequest) (*reconcilerv1.GetStatusResponse, error) {
	n, _ := g.s.queue.length()
	through := int64(0)
	if _, t, _ := g.s.journal.status(); !t.IsZero() {
		through = t.UnixNano()
	}
	return &reconcilerv1.GetStatusResponse{
		CompleteThroughUnixNs: through,
		QueueLength:           uint64(n),
		Reconciled:            g.s.reconciled.Load(),
		Repairs:               g.s.repairs.copy(),
		OpenRepairs:           uint64(max(0, g.s.openRepairs.Load())),
		Journal:               g.s.journal.describe(),
		Scrub:                 g.s.describeScrub(),
	}, nil
}

// describeScrub says how far the scrub is.
func (s *Service) describeScrub() *reconcilerv1.ScrubStatus {
	st := s.scrubber.Status()
	if st == nil {
		return nil
	}
	checked, bytes, suspects := st.Progress()
	out := &reconcilerv1.ScrubStatus{
		Pass: st.Pass, BeganAtUnixS: st.BeganAt, EndedAtUnixS: st.EndedAt, Checked: checked, CheckedBytes: bytes, Suspects: suspects,
		Frames: st.Frames, VerifiedSinceUnixS: st.VerifiedSince(), FramesPerSecond: s.scrubber.Pace(), HashesBytes: s.cfg.Scrub.Verify == scrub.VerifyBytes,
	}
	if s.cfg.Scrub.Period > 0 {
		out.DueAtUnixS = st.Due(s.cfg.Scrub.Period).Unix()
	}
	return out
}

func invalid(msg string) error {
	return rpc.Failure{Code: codes.InvalidArgument, Reason: rpc.ReasonInvalidArgument, Message: msg}.Err()
}

func view(l *ledger.Ledger) *reconcilerv1.Ledger {
	first, _ := l.FirstSeq()
	through, _ := l.AcceptedThrough()
	last, _ := l.LastSeq()
	return &reconcilerv1.Ledger{
		AgentId: l.Boot().Agent, BootId: l.Boot().Boot,
		FirstSeq: first, AcceptedThrough: through, LastSeq: last,
		RecordCount: l.RecordCount(), BatchCount: l.BatchCount(),
		Gaps: ranges(l.Gaps(maxRanges)), Overlaps: ranges(l.Overlaps(maxRanges)),
		LastAcceptedAtUnixNs: l.LastAcceptedAt(),
	}
}

func ranges(in []ledger.Range) []*reconcilerv1.SeqRange {
	out := make([]*reconcilerv1.SeqRange, len(in))
	for i, r := range in {
		out[i] = &reconcilerv1.SeqRange{Start: r.Start, End: r.End}
	}
	return out
}
