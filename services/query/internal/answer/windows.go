package answer

import (
	"context"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql/parser"

	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
)

// windowed replaces range functions that rolled blocks answer exactly by selectors of prepared results. An
// expression without such functions is returned unchanged.
func (s *Session) windowed(ctx context.Context, q *request) (string, error) {
	if s.pub == nil {
		return q.text, nil
	}
	// Another copy, as this one is changed.
	expr, err := s.e.Parser.ParseExpr(q.text)
	if err != nil {
		return "", err
	}
	r := rewriter{s: s, ctx: ctx, start: timestamp.FromTime(q.start), end: timestamp.FromTime(q.end), step: q.step.Milliseconds()}
	// One time has no step; a step that is not used must not prevent the replacement.
	if r.start == r.end {
		r.step = 0
	}
	// Blocks and selectors count in milliseconds, so a finer step can't be aligned.
	if r.step != 0 && q.step%time.Millisecond != 0 {
		return q.text, nil
	}
	if s.regions != nil {
		r.asks = true
		expr = r.expr(expr)
		r.asks = false
	}
	expr = r.expr(expr)
	if r.err != nil || !r.changed {
		return q.text, r.err
	}
	return expr.String(), nil
}

type rewriter struct {
	s                *Session
	ctx              context.Context
	start, end, step int64 // milliseconds
	asks             bool  // other regions are asked, and nothing is replaced
	changed          bool
	err              error
}

// expr returns the replacement of n. Below subqueries, and below functions such as absent that look at the
// matchers of their argument, nothing is replaced.
func (r *rewriter) expr(n parser.Expr) parser.Expr {
	switch n := n.(type) {
	case *parser.Call:
		if out := r.call(n); out != nil {
			return out
		}
		switch n.Func.Name {
		// Their result has labels of the matchers, or times of the samples, which a prepared result does not have.
		case "absent", "absent_over_time", "info", "timestamp":
			return n
		}
		for i := range n.Args {
			n.Args[i] = r.expr(n.Args[i])
		}
	case *parser.AggregateExpr:
		n.Expr = r.expr(n.Expr)
		if n.Param != nil {
			n.Param = r.expr(n.Param)
		}
	case *parser.BinaryExpr:
		n.LHS, n.RHS = r.expr(n.LHS), r.expr(n.RHS)
	case *parser.ParenExpr:
		n.Expr = r.expr(n.Expr)
	case *parser.UnaryExpr:
		n.Expr = r.expr(n.Expr)
	}
	return n
}

// call returns the selector that replaces a call, or nil.
func (r *rewriter) call(n *parser.Call) parser.Expr {
	if r.err != nil || len(n.Args) != 1 {
		return nil
	}
	arg := n.Args[0]
	for p, ok := arg.(*parser.ParenExpr); ok; p, ok = arg.(*parser.ParenExpr) {
		arg = p.Expr
	}
	m, ok := arg.(*parser.MatrixSelector)
	if !ok || m.RangeExpr != nil {
		return nil
	}
	v, ok := m.VectorSelector.(*parser.VectorSelector)
	// With @ the range does not move with the evaluation, and modified ranges are not those of the rolled rows.
	if !ok || v.Timestamp != nil || v.StartOrEnd != 0 || v.Anchored || v.Smoothed || v.OriginalOffsetExpr != nil {
		return nil
	}
	if m.Range%time.Millisecond != 0 || v.OriginalOffset%time.Millisecond != 0 {
		return nil
	}
	c := promstore.RangeCall{
		Func: n.Func.Name, Matchers: v.LabelMatchers, Range: m.Range.Milliseconds(), Offset: v.OriginalOffset.Milliseconds(),
		Start: r.start, End: r.end, Step: r.step,
	}
	if r.asks {
		r.s.AskRolled(c)
		return nil
	}
	id, ok, err := r.s.Rolled(r.ctx, c)
	if err != nil || !ok {
		r.err = err
		return nil
	}
	r.changed = true
	return &parser.VectorSelector{LabelMatchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, promstore.RolledLabel, id)}}
}
