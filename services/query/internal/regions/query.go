package regions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/queries/foreign"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// Ask says what one query may take, and for whom it asks.
type Ask struct {
	Scope  Scope
	Caller Caller
	// Strong wants everything that was accepted before in each region.
	Strong bool
	// Tokens that each region waits for, if it knows them.
	Tokens []journal.Position
	// Series and Samples are most of each region.
	Series, Samples int64
	// Reserve is called before memory is taken, from several goroutines.
	Reserve func(bytes int64) error
}

// Query is one query's streams, one in each other region. It is a promstore.Others.
type Query struct {
	p        *Peers
	a        Ask
	ctx      context.Context
	cancel   context.CancelFunc
	sessions []*session

	mu    sync.Mutex
	asked map[string][]*asked
	fatal error // of the query, not of a region
}

var _ promstore.Others = (*Query)(nil)

// Open prepares a query; it asks nothing yet. Close it. It returns nil where no other region is in scope.
func (p *Peers) Open(ctx context.Context, a Ask) *Query {
	if p == nil || len(a.Scope.Others) == 0 {
		return nil
	}
	q := &Query{p: p, a: a, asked: map[string][]*asked{}}
	q.ctx, q.cancel = context.WithCancel(ctx)
	for _, x := range p.list {
		if slices.Contains(a.Scope.Others, x.name) {
			q.sessions = append(q.sessions, newSession(q, x))
		}
	}
	return q
}

// Close ends the streams, and returns when nothing of the query runs any more.
func (q *Query) Close() {
	if q == nil {
		return
	}
	q.cancel()
	for _, s := range q.sessions {
		s.close()
	}
}

// fail ends the query: one of its own limits was met.
func (q *Query) fail(err error) {
	q.mu.Lock()
	if q.fatal == nil {
		q.fatal = err
	}
	q.mu.Unlock()
}

func (q *Query) err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fatal
}

// Begin begins an evaluation: what regions contribute is counted from now on.
func (q *Query) Begin() {
	if q == nil {
		return
	}
	for _, s := range q.sessions {
		s.mu.Lock()
		s.contributed = false
		s.mu.Unlock()
	}
}

// Torn reports whether a region was lost after something of it was used. The evaluation is then of that region in part, and
// has to be done again without it: parts of an expression would otherwise be of different data.
func (q *Query) Torn() bool {
	if q == nil || q.ctx.Err() != nil || q.err() != nil {
		return false
	}
	for _, s := range q.sessions {
		s.mu.Lock()
		torn := s.contributed && s.lost != nil
		s.mu.Unlock()
		if torn {
			return true
		}
	}
	return false
}

// State is how a region stands in the answer.
type State struct {
	Region string
	// Failure is why it is not in the answer; nil where it is.
	Failure *Failure
	// Completeness is what the region said last; nil without an answer.
	Completeness *queryv1.Completeness
}

// States of the regions that were asked, by name.
func (q *Query) States() (out []State) {
	if q == nil {
		return nil
	}
	for _, s := range q.sessions {
		if st, ok := s.state(); ok {
			out = append(out, st)
		}
	}
	return out
}

// Select asks for series. An equal question is asked once.
func (q *Query) Select(w promstore.Wanted) promstore.Asked {
	key := keyOf(&w)
	q.mu.Lock()
	defer q.mu.Unlock()
	var before *asked // that may have the samples already
	for _, a := range q.asked[key] {
		if w.Call != nil && (a.w.Call == nil || *callOf(a.w.Call) != *callOf(w.Call)) {
			continue
		}
		// The engine's ranges begin at the millisecond that a range leaves out, or at the next one.
		if a.w.Mint > w.Mint || a.w.Mint < w.Mint-1 || a.w.Maxt < w.Maxt || a.w.Maxt > w.Maxt+1 {
			continue
		}
		if (a.w.Call == nil) == (w.Call == nil) {
			return a
		}
		before = a
	}
	a := &asked{q: q, w: w, before: before, requests: make([]*request, len(q.sessions))}
	if before == nil {
		for i := range q.sessions {
			a.ask(i)
		}
	}
	q.asked[key] = append(q.asked[key], a)
	return a
}

// keyOf has all of a question but its range and call.
func keyOf(w *promstore.Wanted) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %d %t", w.Hint.Func, w.Hint.Range, w.List)
	if w.Instants != nil {
		fmt.Fprintf(&b, " %d", *w.Instants)
	}
	for _, m := range w.Matchers {
		fmt.Fprintf(&b, " %d%q%q", m.Type, m.Name, m.Value)
	}
	return b.String()
}

// call is what of a RangeCall is compared.
type call struct {
	fn                             string
	span, offset, start, end, step int64
}

func callOf(c *promstore.RangeCall) *call {
	return &call{c.Func, c.Range, c.Offset, c.Start, c.End, c.Step}
}

// asked is a question to all regions.
type asked struct {
	q *Query
	w promstore.Wanted
	// before asked for values of the same range; a region that has sent samples in their place is not asked again.
	before   *asked
	requests []*request // by session; nil is not asked yet
}

func (a *asked) ask(i int) {
	s := a.q.sessions[i]
	a.requests[i] = s.ask(&queryv1.ReadRequest{Ask: &queryv1.ReadRequest_Select{Select: selectOf(&a.w)}}, &collector{
		want: &a.w, reader: foreign.Reader{Mint: a.w.Mint, Maxt: a.w.Maxt, Reserve: a.q.a.Reserve},
	})
}

// Wait returns what the regions sent.
func (a *asked) Wait(ctx context.Context) (out []promstore.Part, err error) {
	if a.before != nil {
		if _, err := a.before.Wait(ctx); err != nil {
			return nil, err
		}
		for i, r := range a.before.requests {
			switch {
			case a.requests[i] != nil:
			case r.failure == nil && !r.into.values:
				a.requests[i] = r
			default:
				a.ask(i)
			}
		}
	}
	for i, s := range a.q.sessions {
		ok, err := s.wait(ctx, a.requests[i])
		if err != nil {
			return nil, err
		}
		if ok {
			c := a.requests[i].into
			out = append(out, promstore.Part{Region: s.peer.name, Series: c.reader.Series(), Values: c.values})
		}
	}
	return out, nil
}

// each asks every region the same and waits for the answers.
func (q *Query) each(ctx context.Context, ask func() *queryv1.ReadRequest, take func(region string, c *collector)) error {
	var all []*request
	for _, s := range q.sessions {
		all = append(all, s.ask(ask(), &collector{reserve: q.a.Reserve}))
	}
	for i, s := range q.sessions {
		ok, err := s.wait(ctx, all[i])
		if err != nil {
			return err
		}
		if ok {
			take(s.peer.name, all[i].into)
		}
	}
	return nil
}

// LabelNames asks all regions.
func (q *Query) LabelNames(ctx context.Context, mint, maxt int64, ms []*labels.Matcher) ([]string, error) {
	return q.LabelValues(ctx, "", mint, maxt, ms)
}

// LabelValues asks all regions for values of a label; for names where it is empty.
func (q *Query) LabelValues(ctx context.Context, name string, mint, maxt int64, ms []*labels.Matcher) (out []string, err error) {
	err = q.each(ctx, func() *queryv1.ReadRequest {
		return &queryv1.ReadRequest{Ask: &queryv1.ReadRequest_Labels{Labels: &queryv1.SelectLabels{
			Label: name, Matchers: matchersOf(ms), StartUnixMs: &mint, EndUnixMs: maxt}}}
	}, func(_ string, c *collector) { out = append(out, c.texts...) })
	return out, err
}

// Metadata asks all regions what metrics mean.
func (q *Query) Metadata(ctx context.Context, metric string) (out []*queryv1.MetricMetadata, err error) {
	err = q.each(ctx, func() *queryv1.ReadRequest {
		return &queryv1.ReadRequest{Ask: &queryv1.ReadRequest_Metadata{Metadata: &queryv1.SelectMetadata{Metric: metric}}}
	}, func(_ string, c *collector) { out = append(out, c.metadata...) })
	return out, err
}

// List is what one region has of a list.
type List struct {
	Region    string
	Agents    []*queryv1.Agent
	Conflicts []*queryv1.KeyedConflict
	More      bool
}

// Agents asks all regions for agents.
func (q *Query) Agents(ctx context.Context, want *queryv1.SelectAgents) (out []List, err error) {
	err = q.each(ctx, func() *queryv1.ReadRequest {
		return &queryv1.ReadRequest{Ask: &queryv1.ReadRequest_Agents{Agents: want}}
	}, func(region string, c *collector) {
		out = append(out, List{Region: region, Agents: c.agents, More: c.more})
	})
	return out, err
}

// Conflicts asks all regions for conflicts.
func (q *Query) Conflicts(ctx context.Context, want *queryv1.SelectConflicts) (out []List, err error) {
	err = q.each(ctx, func() *queryv1.ReadRequest {
		return &queryv1.ReadRequest{Ask: &queryv1.ReadRequest_Conflicts{Conflicts: want}}
	}, func(region string, c *collector) {
		out = append(out, List{Region: region, Conflicts: c.conflicts, More: c.more})
	})
	return out, err
}

// UnknownTokens are the tokens that no region knows; none where one of them has not answered.
func (q *Query) UnknownTokens(ctx context.Context) ([]string, error) {
	// Nothing is asked for but to be open.
	if err := q.Probe(ctx); err != nil {
		return nil, err
	}
	var out []string
	for i, s := range q.sessions {
		s.mu.Lock()
		unknown, lost := s.unknown, s.lost
		s.mu.Unlock()
		switch {
		case lost != nil:
			return nil, nil
		case i == 0:
			out = slices.Clone(unknown)
		default:
			out = slices.DeleteFunc(out, func(t string) bool { return !slices.Contains(unknown, t) })
		}
	}
	return out, nil
}

// Probe asks all regions how complete they are.
func (q *Query) Probe(ctx context.Context) error {
	_, err := q.Agents(ctx, &queryv1.SelectAgents{Limit: 1})
	return err
}

// limitError names the setting that the query met.
func (q *Query) limitError(what string) error {
	switch what {
	case "series":
		return &published.LimitError{Limit: "limits.series", Max: q.a.Series}
	case "samples":
		return &published.LimitError{Limit: "limits.chunk_samples", Max: q.a.Samples}
	}
	return &published.LimitError{Limit: "fanout.bytes", Max: int64(q.p.cfg.Bytes)}
}

var matcherTypes = map[labels.MatchType]queryv1.LabelMatcher_Type{
	labels.MatchEqual: queryv1.LabelMatcher_TYPE_EQUAL, labels.MatchNotEqual: queryv1.LabelMatcher_TYPE_NOT_EQUAL,
	labels.MatchRegexp: queryv1.LabelMatcher_TYPE_REGEXP, labels.MatchNotRegexp: queryv1.LabelMatcher_TYPE_NOT_REGEXP,
}

func matchersOf(ms []*labels.Matcher) (out []*queryv1.LabelMatcher) {
	for _, m := range ms {
		out = append(out, &queryv1.LabelMatcher{Type: matcherTypes[m.Type], Name: m.Name, Value: m.Value})
	}
	return out
}

// maxMatchers bounds those of one selector.
const maxMatchers = 1000

// Matchers reads matchers back. What an expression could not have is an error.
func Matchers(list []*queryv1.LabelMatcher) (out []*labels.Matcher, err error) {
	if len(list) > maxMatchers {
		return nil, fmt.Errorf("%d matchers, at most %d", len(list), maxMatchers)
	}
next:
	for _, m := range list {
		for t, x := range matcherTypes {
			if x == m.GetType() {
				p, err := labels.NewMatcher(t, m.GetName(), m.GetValue())
				if err != nil {
					return nil, err
				}
				out = append(out, p)
				continue next
			}
		}
		return nil, errors.New("a matcher of an unknown type")
	}
	return out, nil
}

func selectOf(w *promstore.Wanted) *queryv1.SelectSeries {
	out := &queryv1.SelectSeries{Matchers: matchersOf(w.Matchers), StartUnixMs: w.Mint, EndUnixMs: w.Maxt, Function: w.Hint.Func, RangeMs: w.Hint.Range, LabelsOnly: w.List}
	if in := w.Instants; in != nil {
		out.Instants = &queryv1.Instants{StartUnixMs: in.Start, EndUnixMs: in.End, StepMs: in.Step}
	}
	if c := w.Call; c != nil {
		out.Call = &queryv1.RangeCall{Function: c.Func, RangeMs: c.Range, OffsetMs: c.Offset, StartUnixMs: c.Start, EndUnixMs: c.End, StepMs: c.Step}
	}
	return out
}
