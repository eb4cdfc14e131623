package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// Querier sends queries to a query service. Its methods may be called concurrently. Errors of the
// service are *Error.
type Querier struct {
	conn   io.Closer
	client queryv1.QueryServiceClient
}

// DialQuery prepares a connection to the gRPC address of a query service, such as
// "127.0.0.1:4761". It connects with the first query.
func DialQuery(address string, c Credentials) (*Querier, error) {
	cfg, err := c.config()
	if err == nil {
		err = config.CheckAddress(address)
	}
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	conn, err := rpc.Dial(address, cfg)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return &Querier{conn, queryv1.NewQueryServiceClient(conn)}, nil
}

// NewQuerier makes a Querier that uses conn. Close leaves conn open.
func NewQuerier(conn grpc.ClientConnInterface) *Querier {
	return &Querier{io.NopCloser(nil), queryv1.NewQueryServiceClient(conn)}
}

// Close ends the connection that DialQuery made.
func (q *Querier) Close() error { return q.conn.Close() }

// Answer is the answer to a query. Check Completeness before you rely on it.
type Answer struct {
	// Type is "vector", "matrix", "scalar" or "string", as in PromQL.
	Type string
	// Series of a vector or matrix; a scalar is one without labels.
	Series []AnswerSeries
	// Text of a string.
	Text string
	// Completeness says whether anything is missing from the answer.
	Completeness Completeness
}

// AnswerSeries is a series of an answer.
type AnswerSeries struct {
	Labels Labels
	// Points in the order of their times; one in a vector.
	Points []Point
}

// Point is a value at a time.
type Point struct {
	Time  time.Time
	Value float64
	// Histogram is the value in place of Value where it is not nil.
	Histogram *AnswerHistogram
}

// AnswerHistogram is a native histogram with its bucket bounds written out.
type AnswerHistogram struct {
	Count, Sum float64
	// Buckets that are not empty, ascending.
	Buckets []Bucket
}

// Bucket of a histogram.
type Bucket struct {
	Lower, Upper                   float64
	LowerInclusive, UpperInclusive bool
	Count                          float64
}

// Completeness says whether anything is missing from an answer, and what.
type Completeness struct {
	// Partial: something is known to be missing, or it is not known whether something is.
	// Reasons say what.
	Partial bool
	Reasons []Note
	// Missing says how much is missing: one for each of the Reasons.
	Missing []Missing
	// CompleteThrough: every batch that was accepted before this time is in the answer or named in
	// Reasons; zero when unknown.
	CompleteThrough time.Time
	// Notes are remarks on a complete answer, such as MERGED_AGENTS.
	Notes []Note
	// Agents with gaps or overlaps. Their samples were lost, or sent twice, before the answer. Of an answer of
	// several regions Querier.Agents has them: what one region lacks of an agent another may have.
	Agents []AgentState
	// Regions of an answer of several regions, each with its own completeness; what stands above is then of all
	// together. Empty where one region was asked.
	Regions []RegionState
}

// RegionState says what of one region is in an answer.
type RegionState struct {
	Region string
	// Completeness of what is in the answer; nil where nothing of the region is.
	Completeness *Completeness
	// Reason why nothing of the region is in the answer, such as UNREACHABLE or DEADLINE, and Detail for people.
	Reason, Detail string
}

// Note is a stable code with a text for people.
type Note struct {
	Code, Text string
}

func (n Note) String() string { return n.Code + ": " + n.Text }

// Missing says how much is missing for one reason, as far as that is known.
type Missing struct {
	// Code of the reason.
	Code string
	// Batches that were accepted; 0 where their number is not known. AtLeast: there are more.
	Batches uint64
	AtLeast bool
	// Hours with samples that are missing, ascending and apart; at most 20. MoreHours are further ranges.
	Hours     []TimeRange
	MoreHours int
	// Shards of the rollups to which their agents belong, ascending; at most 20. MoreShards are further ones.
	Shards     []uint32
	MoreShards int
}

// TimeRange is from Start to before End.
type TimeRange struct{ Start, End time.Time }

// PartialError is Completeness.Err of a partial answer.
type PartialError struct{ Reasons []Note }

func (e *PartialError) Error() string {
	texts := make([]string, len(e.Reasons))
	for i, r := range e.Reasons {
		texts[i] = r.String()
	}
	return "the answer is partial: " + strings.Join(texts, "; ")
}

// Err is a *PartialError where the answer is partial, for callers that need all or nothing.
func (c Completeness) Err() error {
	if !c.Partial {
		return nil
	}
	return &PartialError{c.Reasons}
}

// Range of sequence numbers, both included.
type Range struct{ First, Last uint64 }

func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// AgentState is the ledger of one boot of an agent.
type AgentState struct {
	Boot identity.Boot
	// FirstSeq to AcceptedThrough are accepted without a gap; LastSeq is the highest accepted number.
	FirstSeq, AcceptedThrough, LastSeq uint64
	// Records and Batches that are accepted.
	Records, Batches uint64
	// Gaps are missing, Overlaps covered by more than one batch; at most 1,000 each.
	Gaps, Overlaps []Range
	LastAccepted   time.Time
	// Regions that have these batches; none where one region was asked. What one region lacks and another has is
	// no gap.
	Regions []string
	// Concurrent boots send samples of the same minutes: two machines have one agent id.
	Concurrent []string
}

// Conflict is a frame whose identity was accepted with other bytes. It is kept in quarantine.
type Conflict struct {
	Batch identity.Batch
	// AcceptedSHA256 and SubmittedSHA256 are of the frame that holds the identity and of the
	// one in quarantine, in lower-case hex.
	AcceptedSHA256, SubmittedSHA256 string
	// Accepted is the batch of the accepted frame: Batch itself, or another one of the boot that shares record numbers with it.
	Accepted  identity.Batch
	Observed  time.Time
	Collector string
	// Region whose quarantine has the frame; empty where one region was asked.
	Region string
}

// Token says where a batch stands in the journal of what was accepted: a query that gets it sees the batch. It has no
// meaning outside of the deployment that gave it.
type Token string

// Written is what a query has to see. Where that does not happen in follow.token_timeout of the service, the query fails
// with an *Error whose Reason is ReasonNotVisible.
type Written struct {
	// Tokens of batches, at most 100: Writer.Written has those of a Writer, and answers of collectors over HTTP have one
	// in the field journal_position.
	Tokens []Token
	// Everything that was accepted before the query.
	Everything bool
}

func (w Written) tokens() []string {
	var out []string
	for _, t := range w.Tokens {
		out = append(out, string(t))
	}
	return out
}

// Names of Wanted.Regions beside those of regions.
const (
	// AllRegions is every region that the service knows, LocalRegion its own.
	AllRegions  = "all"
	LocalRegion = "local"
)

// Wanted says what a query is asked of, and what it has to see.
type Wanted struct {
	Written
	// Regions to read: names, AllRegions or LocalRegion. Nothing is what the service's settings say, all by default.
	Regions []string
	// Complete: the query fails with an *Error whose Reason is ReasonPartial where its answer would be partial.
	Complete bool
}

// Instant evaluates a PromQL expression at a time; zero is now.
func (q *Querier) Instant(ctx context.Context, expression string, at time.Time) (*Answer, error) {
	return q.InstantAfter(ctx, Written{}, expression, at)
}

// InstantAfter is Instant once w is visible.
func (q *Querier) InstantAfter(ctx context.Context, w Written, expression string, at time.Time) (*Answer, error) {
	return q.InstantOf(ctx, Wanted{Written: w}, expression, at)
}

// InstantOf is Instant of what w wants.
func (q *Querier) InstantOf(ctx context.Context, w Wanted, expression string, at time.Time) (*Answer, error) {
	req := &queryv1.QueryRequest{Expression: expression, MinTokens: w.tokens(), Strong: w.Everything, Regions: w.Regions, RequireComplete: w.Complete}
	if !at.IsZero() {
		// Prometheus' resolution of times is a millisecond.
		ms := at.UnixMilli()
		req.TimeUnixMs = &ms
	}
	resp, err := q.client.Query(ctx, req)
	if err != nil {
		return nil, errorOf(ctx, err)
	}
	a := &Answer{Type: resp.GetResultType(), Text: resp.GetStringValue(), Completeness: completenessOf(resp.GetCompleteness())}
	for _, s := range resp.GetSeries() {
		a.Series = append(a.Series, seriesOf(s))
	}
	return a, nil
}

// Range evaluates a PromQL expression at start, start+step, … up to end.
func (q *Querier) Range(ctx context.Context, expression string, start, end time.Time, step time.Duration) (*Answer, error) {
	return q.RangeAfter(ctx, Written{}, expression, start, end, step)
}

// RangeAfter is Range once w is visible.
func (q *Querier) RangeAfter(ctx context.Context, w Written, expression string, start, end time.Time, step time.Duration) (*Answer, error) {
	return q.RangeOf(ctx, Wanted{Written: w}, expression, start, end, step)
}

// RangeOf is Range of what w wants.
func (q *Querier) RangeOf(ctx context.Context, w Wanted, expression string, start, end time.Time, step time.Duration) (*Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	// Ends the stream when this function returns early; the service would otherwise compute on for nobody.
	defer cancel()
	stream, err := q.client.QueryRange(ctx, &queryv1.QueryRangeRequest{
		Expression: expression, StartUnixMs: start.UnixMilli(), EndUnixMs: end.UnixMilli(), StepMs: step.Milliseconds(),
		MinTokens: w.tokens(), Strong: w.Everything, Regions: w.Regions, RequireComplete: w.Complete})
	if err != nil {
		return nil, errorOf(ctx, err)
	}
	a, whole := &Answer{Type: "matrix"}, false
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && whole:
			return a, nil
		case errors.Is(err, io.EOF):
			// The completeness is the last message: without it the answer may lack series.
			return nil, &Error{Message: "the answer ended early", Temporary: true, err: io.ErrUnexpectedEOF}
		case err != nil:
			return nil, errorOf(ctx, err)
		}
		if s := m.GetSeries(); s != nil {
			a.Series = append(a.Series, seriesOf(s))
		}
		if c := m.GetCompleteness(); c != nil {
			a.Completeness, whole = completenessOf(c), true
		}
	}
}

// listPage is the size of a page of a list.
const listPage = 1000

// Agents lists every boot of every agent, or of one where agent is not empty, by agent and boot.
func (q *Querier) Agents(ctx context.Context, agent string) ([]AgentState, Completeness, error) {
	return q.AgentsOf(ctx, nil, agent)
}

// AgentsOf is Agents of some regions, as in Wanted: an agent that sent to several has one entry for each boot.
func (q *Querier) AgentsOf(ctx context.Context, regions []string, agent string) ([]AgentState, Completeness, error) {
	var out []AgentState
	var all Completeness
	req := &queryv1.ListAgentsRequest{AgentId: agent, PageSize: listPage, Regions: regions}
	for {
		resp, err := q.client.ListAgents(ctx, req)
		if err != nil {
			return nil, all, errorOf(ctx, err)
		}
		// The list is as complete as its least complete page.
		if c := completenessOf(resp.GetCompleteness()); len(out) == 0 || c.Partial {
			all = c
		}
		for _, a := range resp.GetAgents() {
			out = append(out, agentOf(a))
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return out, all, nil
		}
	}
}

// Conflicts lists the frames in quarantine, of one agent where agent is not empty, by identity. Where a region is not in the
// list, the error is a *PartialError, beside the conflicts of the others.
func (q *Querier) Conflicts(ctx context.Context, agent string) ([]Conflict, error) {
	return q.ConflictsOf(ctx, nil, agent)
}

// ConflictsOf is Conflicts of some regions, as in Wanted.
func (q *Querier) ConflictsOf(ctx context.Context, regions []string, agent string) ([]Conflict, error) {
	var out []Conflict
	var lacking []Note
	req := &queryv1.ListConflictsRequest{AgentId: agent, PageSize: listPage, Regions: regions}
	for {
		resp, err := q.client.ListConflicts(ctx, req)
		if err != nil {
			return nil, errorOf(ctx, err)
		}
		for _, c := range resp.GetConflicts() {
			id := identity.Batch{Agent: c.GetAgentId(), Boot: c.GetBootId(), SeqStart: c.GetSeqStart(), SeqEnd: c.GetSeqEnd()}
			holder := id
			if c.AcceptedSeqStart != nil && c.AcceptedSeqEnd != nil {
				holder.SeqStart, holder.SeqEnd = c.GetAcceptedSeqStart(), c.GetAcceptedSeqEnd()
			}
			out = append(out, Conflict{
				Batch: id, Accepted: holder,
				AcceptedSHA256: c.GetAcceptedSha256(), SubmittedSHA256: c.GetSubmittedSha256(),
				Observed: timeOf(c.GetObservedAtUnixNs()), Collector: c.GetCollectorId(), Region: c.GetRegion(),
			})
		}
		for _, r := range regionsOf(resp.GetRegions()) {
			n := Note{Code: "REGION_MISSING", Text: fmt.Sprintf("nothing of the region %s is in the list: %s: %s", r.Region, r.Reason, r.Detail)}
			if r.Completeness == nil && !slices.Contains(lacking, n) {
				lacking = append(lacking, n)
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			if len(lacking) > 0 {
				return out, &PartialError{lacking}
			}
			return out, nil
		}
	}
}

func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func seriesOf(s *queryv1.Series) AnswerSeries {
	out := AnswerSeries{Labels: s.GetLabels(), Points: make([]Point, 0, len(s.GetPoints()))}
	for _, p := range s.GetPoints() {
		point := Point{Time: time.UnixMilli(p.GetTimeUnixMs()).UTC(), Value: p.GetValue()}
		if h := p.GetHistogram(); h != nil {
			point.Histogram = &AnswerHistogram{Count: h.GetCount(), Sum: h.GetSum()}
			for _, b := range h.GetBuckets() {
				point.Histogram.Buckets = append(point.Histogram.Buckets, Bucket{
					Lower: b.GetLower(), Upper: b.GetUpper(), LowerInclusive: b.GetLowerInclusive(), UpperInclusive: b.GetUpperInclusive(), Count: b.GetCount()})
			}
		}
		out.Points = append(out.Points, point)
	}
	return out
}

func completenessOf(c *queryv1.Completeness) Completeness {
	// No statement about completeness is not a statement that the answer is complete.
	if c == nil {
		return Completeness{Partial: true, Reasons: []Note{{Code: "UNKNOWN", Text: "the service did not say how complete the answer is"}}}
	}
	out := Completeness{Partial: c.GetPartial(), CompleteThrough: timeOf(c.GetCompleteThroughUnixNs()), Reasons: notesOf(c.GetReasons()), Notes: notesOf(c.GetNotes())}
	for _, m := range c.GetMissing() {
		x := Missing{Code: m.GetCode(), Batches: m.GetBatches(), AtLeast: m.GetAtLeast(), MoreHours: int(m.GetMoreHours()), Shards: m.GetShards(), MoreShards: int(m.GetMoreShards())}
		for _, h := range m.GetHours() {
			x.Hours = append(x.Hours, TimeRange{time.UnixMilli(h.GetStartUnixMs()).UTC(), time.UnixMilli(h.GetEndUnixMs()).UTC()})
		}
		out.Missing = append(out.Missing, x)
	}
	for _, a := range c.GetAgents() {
		out.Agents = append(out.Agents, agentOf(a))
	}
	out.Regions = regionsOf(c.GetRegions())
	return out
}

func regionsOf(list []*queryv1.RegionCompleteness) (out []RegionState) {
	for _, r := range list {
		s := RegionState{Region: r.GetRegion(), Reason: r.GetReason(), Detail: r.GetDetail()}
		if r.GetCompleteness() != nil {
			c := completenessOf(r.GetCompleteness())
			s.Completeness = &c
		}
		out = append(out, s)
	}
	return out
}

func notesOf(texts []string) []Note {
	var out []Note
	for _, t := range texts {
		// The service sends a note as "CODE: text".
		code, text, _ := strings.Cut(t, ": ")
		out = append(out, Note{code, text})
	}
	return out
}

func agentOf(a *queryv1.Agent) AgentState {
	return AgentState{
		Boot: identity.Boot{Agent: a.GetAgentId(), Boot: a.GetBootId()}, FirstSeq: a.GetFirstSeq(), AcceptedThrough: a.GetAcceptedThrough(), LastSeq: a.GetLastSeq(),
		Records: a.GetRecordCount(), Batches: a.GetBatchCount(), Gaps: rangesOf(a.GetGaps()), Overlaps: rangesOf(a.GetOverlaps()),
		LastAccepted: timeOf(a.GetLastAcceptedAtUnixNs()), Concurrent: a.GetConcurrentBootIds(), Regions: a.GetRegions(),
	}
}

func rangesOf(rs []*queryv1.SeqRange) []Range {
	var out []Range
	for _, r := range rs {
		out = append(out, Range{r.GetStart(), r.GetEnd()})
	}
	return out
}
