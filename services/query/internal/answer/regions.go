package answer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/queries/missing"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
	"lightmetrics.dev/lightmetrics/services/query/internal/regions"
)

// Region is one region in the completeness of an answer.
type Region struct {
	Name string
	// Completeness of the region; nil where it is not in the answer.
	Completeness *Completeness
	// Reason and Detail say why it is not.
	Reason regions.Reason
	Detail string
}

// IncompleteError: a request wants a complete answer, and it is partial.
type IncompleteError struct{ Completeness Completeness }

func (e *IncompleteError) Error() string {
	var texts []string
	for i, r := range e.Completeness.Reasons {
		if i == maxNamed {
			texts = append(texts, fmt.Sprintf("and %d more reasons", len(e.Completeness.Reasons)-maxNamed))
			break
		}
		texts = append(texts, r.String())
	}
	return "the answer would be partial: " + strings.Join(texts, "; ")
}

// Whole refuses a partial answer.
func (c *Completeness) Whole() error {
	if c.Partial {
		return &IncompleteError{*c}
	}
	return nil
}

// ofRegions is the completeness of a session that reads several regions.
func (s *Session) ofRegions(states []regions.State) Completeness {
	return s.e.ofRegions(s.in.Scope.Own, s.own, states)
}

// ofRegions joins what is known of this region, if it was read, and of others.
func (e *Evaluator) ofRegions(withOwn bool, own func() Completeness, states []regions.State) Completeness {
	out := Completeness{}
	known, first := true, !withOwn
	if withOwn {
		c := own()
		out = c
		// Those of an agent that failed over are gaps in each region, and none in all together.
		c.Gaps = nil
		out.Regions = append(out.Regions, Region{Name: e.d.Regions.Own(), Completeness: &c})
		out.Gaps, out.AgentsWithGaps = nil, 0
		known = !c.CompleteThrough.IsZero()
	}
	for _, st := range states {
		r := Region{Name: st.Region}
		switch {
		case st.Failure != nil:
			r.Reason, r.Detail = st.Failure.Reason, st.Failure.Detail
			out.Reasons = append(out.Reasons, Reason{Code: ReasonRegionMissing, Text: fmt.Sprintf("nothing of the region %s is in the answer: %s: %s", st.Region, r.Reason, r.Detail)})
			known = false
		case st.Completeness == nil:
			continue // it was asked, and the answer was of no use
		default:
			c := completenessOf(st.Completeness)
			r.Completeness = &c
			if c.Partial {
				out.Reasons = append(out.Reasons, Reason{Code: ReasonRegionPartial, Text: fmt.Sprintf("of the region %s: %s", st.Region, codesOf(c.Reasons))})
			}
			for _, n := range c.Notes {
				out.Notes = append(out.Notes, Reason{Code: n.Code, Text: "in the region " + st.Region + ": " + n.Text})
			}
			known = known && !c.CompleteThrough.IsZero()
			if first || c.CompleteThrough.Before(out.CompleteThrough) {
				out.CompleteThrough, first = c.CompleteThrough, false
			}
		}
		out.Regions = append(out.Regions, r)
	}
	if !known {
		out.CompleteThrough = time.Time{}
	}
	out.Partial = len(out.Reasons) > 0
	return out
}

// codesOf are the codes of reasons, each once; the words stand with the region.
func codesOf(reasons []Reason) string {
	var codes []string
	for _, r := range reasons {
		if !slices.Contains(codes, r.Code) {
			codes = append(codes, r.Code)
		}
	}
	if len(codes) == 0 {
		return "it does not say what is missing"
	}
	return strings.Join(codes, ", ")
}

// Bounds of what another region says about itself.
const (
	maxForeignReasons = 50
	maxForeignText    = 1000
)

// completenessOf reads what another region says about its part. It is cut where it is long.
func completenessOf(c *queryv1.Completeness) Completeness {
	out := Completeness{Partial: c.GetPartial()}
	if ns := c.GetCompleteThroughUnixNs(); ns > 0 {
		out.CompleteThrough = time.Unix(0, ns)
	}
	reasons := func(texts []string, of []*queryv1.Missing) (list []Reason) {
		for i, text := range texts {
			if i == maxForeignReasons {
				break
			}
			code, rest, _ := strings.Cut(cut(text), ": ")
			r := Reason{Code: code, Text: rest}
			if i < len(of) {
				r.Missing = missingOf(of[i])
				// The text ends with it, and is put together again from both.
				if what := r.Missing.String(); what != "" {
					r.Text = strings.TrimSuffix(r.Text, " ("+what+")")
				}
			}
			list = append(list, r)
		}
		return list
	}
	out.Reasons = reasons(c.GetReasons(), c.GetMissing())
	out.Notes = reasons(c.GetNotes(), nil)
	out.Partial = out.Partial || len(out.Reasons) > 0
	return out
}

func cut(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > maxForeignText {
		text = strings.ToValidUTF8(text[:maxForeignText], "") + "…"
	}
	return text
}

func missingOf(m *queryv1.Missing) missing.Summary {
	out := missing.Summary{Batches: int(min(m.GetBatches(), 1<<40)), AtLeast: m.GetAtLeast(), MoreHours: int(m.GetMoreHours()), MoreShards: int(m.GetMoreShards())}
	for i, h := range m.GetHours() {
		if i == missing.MaxHours {
			break
		}
		out.Hours = append(out.Hours, missing.Hours{From: timegrid.HourOf(h.GetStartUnixMs() + 1), To: timegrid.HourOf(h.GetEndUnixMs())})
	}
	if n := min(len(m.GetShards()), missing.MaxShards); n > 0 {
		out.Shards = m.GetShards()[:n]
	}
	return out
}

// AwaitIn is Await for a session of a scope. A token is of one region's journal, and no region can tell whose it is: each
// waits for those that it knows. It returns those that this one does not know.
func (e *Evaluator) AwaitIn(ctx context.Context, f Fresh, scope regions.Scope) (unknown []journal.Position, err error) {
	switch {
	case len(scope.Others) == 0:
		return nil, e.Await(ctx, f)
	case !scope.Own:
		return f.Tokens, nil
	}
	return e.AwaitKnown(ctx, f)
}

// AwaitKnown is Await of the tokens that this region knows; it returns the others.
func (e *Evaluator) AwaitKnown(ctx context.Context, f Fresh) ([]journal.Position, error) {
	unknown := make([]*journal.Position, len(f.Tokens))
	g, ctx := errgroup.WithContext(ctx)
	// All at once, as one poll tells for all of them.
	for i, t := range f.Tokens {
		g.Go(func() error {
			err := e.d.Follower.WaitFor(ctx, []journal.Position{t}, false)
			var none *follow.UnknownTokenError
			if errors.As(err, &none) {
				unknown[i] = &t
				return nil
			}
			return err
		})
	}
	if f.Strong {
		g.Go(func() error { return e.d.Follower.WaitFor(ctx, nil, true) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var out []journal.Position
	for _, t := range unknown {
		if t != nil {
			out = append(out, *t)
		}
	}
	return out, nil
}

// knownSomewhere refuses a token that no region of the session knows.
func (s *Session) knownSomewhere(ctx context.Context) error {
	if len(s.in.Tokens) == 0 || s.regions == nil {
		return nil
	}
	unknown, err := s.regions.UnknownTokens(ctx)
	if err != nil {
		return err
	}
	for _, t := range s.in.Unknown {
		if slices.Contains(unknown, t.String()) {
			return &follow.UnknownTokenError{Token: t}
		}
	}
	return nil
}

// Scope reads what a request names. A wrong name is a *QueryError.
func (e *Evaluator) Scope(names []string) (regions.Scope, error) {
	if e.d.Regions == nil {
		return regions.OwnOnly, nil
	}
	s, err := e.d.Regions.ParseScope(names)
	if err != nil {
		return s, &QueryError{err}
	}
	return s, nil
}

// Ask opens a question to the other regions of a scope for what is no query: lists and pages. It is nil where there are
// none. Call done afterwards.
func (e *Evaluator) Ask(ctx context.Context, in In) (q *regions.Query, done func()) {
	if len(in.Scope.Others) == 0 {
		return nil, func() {}
	}
	r := e.Reserve()
	q = e.d.Regions.Open(ctx, regions.Ask{Scope: in.Scope, Caller: in.Caller, Strong: in.Strong, Series: 1, Samples: 1, Reserve: r.Grow})
	return q, func() {
		q.Close()
		r.Release()
	}
}

// CompletenessIn is the completeness of a list: of this region by own, and of those that q has asked.
func (e *Evaluator) CompletenessIn(scope regions.Scope, own func() Completeness, q *regions.Query) Completeness {
	if q == nil {
		return own()
	}
	return e.ofRegions(scope.Own, own, q.States())
}

// Elsewhere asks the other regions of the session; nil where there are none.
func (s *Session) Elsewhere() *regions.Query { return s.regions }

// Own reports whether this region is read.
func (s *Session) Own() bool { return s.in.Scope.Own }
