package query

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
	"lightmetrics.dev/lightmetrics/services/query/internal/regions"
)

// Reasons of this service's errors, in addition to those of internal/platform/rpc and of the follower.
const (
	reasonBadQuery  = "BAD_QUERY"
	reasonLimit     = "LIMIT_EXCEEDED"
	reasonTimeout   = "QUERY_TIMEOUT"
	reasonExecution = "QUERY_FAILED"
	reasonPartial   = "ANSWER_PARTIAL"
)

// server is the QueryService.
type server struct {
	queryv1.UnimplementedQueryServiceServer
	s *Service
}

// failure maps an error of the evaluator to a status with a reason.
func failure(err error) error {
	var (
		bad   *answer.QueryError
		limit *promstore.LimitError
		busy  *answer.BusyError
		full  *answer.MemoryError
		token *follow.NotVisibleError
		none  *follow.UnknownTokenError
		late  promql.ErrQueryTimeout
		gone  promql.ErrQueryCanceled
		part  *answer.IncompleteError
	)
	f := rpc.Failure{Code: codes.FailedPrecondition, Reason: reasonExecution, Message: err.Error()}
	switch {
	case errors.As(err, &bad):
		f.Code, f.Reason = codes.InvalidArgument, reasonBadQuery
	case errors.As(err, &limit):
		f.Code, f.Reason = codes.ResourceExhausted, reasonLimit
		f.Metadata = map[string]string{"limit": limit.Limit}
	case errors.As(err, &busy), errors.As(err, &full):
		f.Code, f.Reason, f.RetryAfter = codes.Unavailable, rpc.ReasonOverloaded, time.Second
	case errors.As(err, &part):
		f.Code, f.Reason, f.RetryAfter = codes.Unavailable, reasonPartial, time.Second
	case errors.As(err, &none):
		f.Code, f.Reason = codes.InvalidArgument, follow.ReasonTokenUnknown
	// Before the deadline: its cause may be one.
	case errors.As(err, &token):
		f.Code, f.Reason, f.RetryAfter = codes.Unavailable, follow.ReasonNotVisible, time.Second
	case errors.As(err, &late), errors.Is(err, context.DeadlineExceeded):
		f.Code, f.Reason = codes.DeadlineExceeded, reasonTimeout
	case errors.As(err, &gone), errors.Is(err, context.Canceled):
		f.Code, f.Reason = codes.Canceled, rpc.ReasonCanceled
	}
	return f.Err()
}

// open waits until what the request asks to see is visible, and opens a session.
func (v *server) open(ctx context.Context, req interface {
	GetMinTokens() []string
	GetStrong() bool
	GetRegions() []string
}) (*answer.Session, error) {
	scope, err := v.s.eval.Scope(req.GetRegions())
	if err != nil {
		return nil, err
	}
	fresh, err := answer.ParseFresh(req.GetMinTokens(), req.GetStrong())
	if err != nil {
		return nil, err
	}
	unknown, err := v.s.eval.AwaitIn(ctx, fresh, scope)
	if err != nil {
		return nil, err
	}
	return v.s.eval.OpenIn(ctx, answer.In{Scope: scope, Caller: regions.CallerFrom(ctx), Strong: fresh.Strong, Tokens: fresh.Tokens, Unknown: unknown})
}

// whole is the completeness of an answer; an error where the request wants it complete and it is not.
func whole(c answer.Completeness, required bool) (*queryv1.Completeness, error) {
	if required {
		if err := c.Whole(); err != nil {
			return nil, err
		}
	}
	return protoCompleteness(c), nil
}

// Query evaluates at one instant.
func (v *server) Query(ctx context.Context, req *queryv1.QueryRequest) (*queryv1.QueryResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, v.s.cfg.Limits.Timeout)
	defer cancel()
	ses, err := v.open(ctx, req)
	if err != nil {
		return nil, failure(err)
	}
	defer ses.Close()
	at := v.s.now()
	if req.TimeUnixMs != nil {
		at = time.UnixMilli(req.GetTimeUnixMs())
	}
	res, err := ses.Instant(ctx, req.GetExpression(), at, answer.Options{})
	if err != nil {
		return nil, failure(err)
	}
	complete, err := whole(ses.Completeness(), req.GetRequireComplete())
	if err != nil {
		return nil, failure(err)
	}
	// The messages are built in addition to the result, and their memory counts for the query too.
	if err := ses.Reserve(protoBytes(res.Value)); err != nil {
		return nil, failure(err)
	}
	out := &queryv1.QueryResponse{ResultType: string(res.Value.Type())}
	switch val := res.Value.(type) {
	case promql.String:
		out.StringValue = val.V
	case promql.Scalar:
		out.Series = []*queryv1.Series{{Points: []*queryv1.Point{{TimeUnixMs: val.T, Value: val.V}}}}
	case promql.Vector:
		for _, s := range val {
			point := &queryv1.Point{TimeUnixMs: s.T, Value: s.F}
			if s.H != nil {
				point = protoHistogram(s.T, s.H)
			}
			out.Series = append(out.Series, &queryv1.Series{Labels: labelMap(s.Metric), Points: []*queryv1.Point{point}})
		}
	case promql.Matrix:
		for _, s := range val {
			out.Series = append(out.Series, protoSeries(s))
		}
	}
	out.Completeness = complete
	return out, nil
}

// QueryRange evaluates over a range.
func (v *server) QueryRange(req *queryv1.QueryRangeRequest, stream grpc.ServerStreamingServer[queryv1.QueryRangeResponse]) error {
	ctx, cancel := context.WithTimeout(stream.Context(), v.s.cfg.Limits.Timeout)
	defer cancel()
	ses, err := v.open(ctx, req)
	if err != nil {
		return failure(err)
	}
	defer ses.Close()
	res, err := ses.Range(ctx, req.GetExpression(), time.UnixMilli(req.GetStartUnixMs()), time.UnixMilli(req.GetEndUnixMs()),
		time.Duration(req.GetStepMs())*time.Millisecond, answer.Options{})
	if err != nil {
		return failure(err)
	}
	matrix, err := res.Matrix()
	if err != nil {
		return failure(err)
	}
	complete, err := whole(ses.Completeness(), req.GetRequireComplete())
	if err != nil {
		return failure(err)
	}
	out := newSender(stream, v.s.cfg.WriteTimeout)
	defer out.close()
	for _, s := range matrix {
		if err := out.send(ctx, &queryv1.QueryRangeResponse{Series: protoSeries(s)}); err != nil {
			return err
		}
	}
	return out.send(ctx, &queryv1.QueryRangeResponse{Completeness: complete})
}

// protoBytes estimates what a result takes as messages, in which each point is an object.
func protoBytes(v parser.Value) int64 {
	const point, series = 96, 512
	switch v := v.(type) {
	case promql.Vector:
		return int64(len(v)) * (series + point)
	case promql.Matrix:
		n := int64(len(v)) * series
		for i := range v {
			n += int64(len(v[i].Floats)+len(v[i].Histograms)) * point
		}
		return n
	}
	return series
}

// protoSeries merges floats and histograms in time order.
func protoSeries(s promql.Series) *queryv1.Series {
	out := &queryv1.Series{Labels: labelMap(s.Metric), Points: make([]*queryv1.Point, 0, len(s.Floats)+len(s.Histograms))}
	// Both lists are sorted, so one pass merges them.
	hs := s.Histograms
	for _, p := range s.Floats {
		for ; len(hs) > 0 && hs[0].T < p.T; hs = hs[1:] {
			out.Points = append(out.Points, protoHistogram(hs[0].T, hs[0].H))
		}
		out.Points = append(out.Points, &queryv1.Point{TimeUnixMs: p.T, Value: p.F})
	}
	for _, p := range hs {
		out.Points = append(out.Points, protoHistogram(p.T, p.H))
	}
	return out
}

func protoHistogram(t int64, h *histogram.FloatHistogram) *queryv1.Point {
	out := &queryv1.Histogram{Count: h.Count, Sum: h.Sum}
	for it := h.AllBucketIterator(); it.Next(); {
		if b := it.At(); b.Count != 0 {
			out.Buckets = append(out.Buckets, &queryv1.Bucket{
				Lower: b.Lower, Upper: b.Upper, LowerInclusive: b.LowerInclusive, UpperInclusive: b.UpperInclusive, Count: b.Count,
			})
		}
	}
	return &queryv1.Point{TimeUnixMs: t, Histogram: out}
}

func labelMap(ls labels.Labels) map[string]string { return ls.Map() }

func protoCompleteness(c answer.Completeness) *queryv1.Completeness {
	out := &queryv1.Completeness{Partial: c.Partial}
	if !c.CompleteThrough.IsZero() {
		out.CompleteThroughUnixNs = c.CompleteThrough.UnixNano()
	}
	for _, r := range c.Reasons {
		out.Reasons = append(out.Reasons, r.String())
		out.Missing = append(out.Missing, protoMissing(r))
	}
	for _, n := range c.Notes {
		out.Notes = append(out.Notes, n.String())
	}
	for _, a := range c.Gaps {
		out.Agents = append(out.Agents, protoAgent(a))
	}
	out.Regions = protoRegions(c.Regions)
	return out
}

func protoRegions(list []answer.Region) (out []*queryv1.RegionCompleteness) {
	for _, r := range list {
		p := &queryv1.RegionCompleteness{Region: r.Name, Reason: string(r.Reason), Detail: r.Detail}
		if r.Completeness != nil {
			p.Completeness = protoCompleteness(*r.Completeness)
		}
		out = append(out, p)
	}
	return out
}

func protoMissing(r answer.Reason) *queryv1.Missing {
	m := r.Missing
	out := &queryv1.Missing{Code: r.Code, Batches: uint64(m.Batches), AtLeast: m.AtLeast,
		MoreHours: uint32(m.MoreHours), Shards: m.Shards, MoreShards: uint32(m.MoreShards)}
	for _, h := range m.Hours {
		out.Hours = append(out.Hours, &queryv1.HourRange{StartUnixMs: h.Start().UnixMilli(), EndUnixMs: h.End().UnixMilli()})
	}
	return out
}

func protoAgent(a follow.Agent) *queryv1.Agent {
	return &queryv1.Agent{
		AgentId: a.Boot.Agent, BootId: a.Boot.Boot, FirstSeq: a.FirstSeq, AcceptedThrough: a.AcceptedThrough, LastSeq: a.LastSeq,
		RecordCount: a.Records, BatchCount: a.Batches, Gaps: protoRanges(a.Gaps), Overlaps: protoRanges(a.Overlaps),
		LastAcceptedAtUnixNs: a.LastAcceptedAt, ConcurrentBootIds: a.Concurrent,
	}
}

func protoRanges(rs []ledger.Range) []*queryv1.SeqRange {
	out := make([]*queryv1.SeqRange, len(rs))
	for i, r := range rs {
		out[i] = &queryv1.SeqRange{Start: r.Start, End: r.End}
	}
	return out
}
