// Package promeval evaluates the most common shapes of PromQL over promstore: a selector, or a function over its range,
// with numbers beside it and one aggregation around it. Samples are read once for each series, by columns. Results are
// those of the Prometheus engine to the last bit, since the same operations are done in the same order; what is of any
// other shape is left to the engine.
package promeval

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/schema"
)

// Shape is an expression that this package evaluates:
//
//	[number op] [agg [by|without (...)]] ( [number op] selector | function(selector[range]) [op number] ) [op number]
type Shape struct {
	selector *parser.VectorSelector
	span     int64 // of the range, milliseconds; 0 for an instant selector
	offset   int64
	fn       *function    // over the range; nil for an instant selector
	call     *parser.Call // of fn
	inner    []operation  // on each series
	agg      *aggregation // nil when there is none
	outer    []operation  // on each group
	hint     string       // what the samples are for, as the engine names it
}

// operation is one operator with a number.
type operation struct {
	op     parser.ItemType
	number float64
	left   bool // the number stands left of the operator
	bool   bool
}

type aggregation struct {
	op       parser.ItemType
	without  bool
	grouping []string // sorted
}

// Of returns the shape of an expression, which it does not change; false if the expression has another one.
func Of(expr parser.Expr) (*Shape, bool) {
	s := &Shape{}
	if !s.around(expr) {
		return nil, false
	}
	return s, true
}

// around takes what may stand around the aggregation, or around a selector without one.
func (s *Shape) around(expr parser.Expr) bool {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return s.around(e.Expr)
	case *parser.BinaryExpr:
		o, rest, ok := operationOf(e)
		s.named("")
		if !ok || !s.around(rest) {
			return false
		}
		if s.agg != nil {
			s.outer = append(s.outer, o)
		} else {
			s.inner = append(s.inner, o)
		}
		return true
	case *parser.AggregateExpr:
		if e.Param != nil || !aggregates(e.Op) {
			return false
		}
		s.named(e.Op.String())
		s.agg = &aggregation{op: e.Op, without: e.Without, grouping: slices.Sorted(slices.Values(e.Grouping))}
		return s.within(e.Expr)
	}
	return s.within(expr)
}

// within takes what an aggregation may be of.
func (s *Shape) within(expr parser.Expr) bool {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return s.within(e.Expr)
	case *parser.BinaryExpr:
		o, rest, ok := operationOf(e)
		s.named("")
		if !ok || !s.within(rest) {
			return false
		}
		s.inner = append(s.inner, o)
		return true
	case *parser.VectorSelector:
		return s.selects(e)
	case *parser.Call:
		fn := functions[e.Func.Name]
		if fn == nil || len(e.Args) != 1 {
			return false
		}
		arg := e.Args[0]
		for p, ok := arg.(*parser.ParenExpr); ok; p, ok = arg.(*parser.ParenExpr) {
			arg = p.Expr
		}
		m, ok := arg.(*parser.MatrixSelector)
		if !ok || m.RangeExpr != nil || m.Range <= 0 || m.Range%time.Millisecond != 0 {
			return false
		}
		v, ok := m.VectorSelector.(*parser.VectorSelector)
		s.fn, s.call, s.span, s.hint = fn, e, m.Range.Milliseconds(), e.Func.Name
		return ok && s.selects(v)
	}
	return false
}

// named notes what the engine takes for the use of the samples: the innermost aggregation or operator.
func (s *Shape) named(hint string) { s.hint = hint }

func (s *Shape) selects(v *parser.VectorSelector) bool {
	s.selector, s.offset = v, v.OriginalOffset.Milliseconds()
	return v.Timestamp == nil && v.StartOrEnd == 0 && !v.Anchored && !v.Smoothed && v.OriginalOffsetExpr == nil && v.OriginalOffset%time.Millisecond == 0
}

// operationOf returns an operator with a number, and its other operand.
func operationOf(e *parser.BinaryExpr) (operation, parser.Expr, bool) {
	o := operation{op: e.Op, bool: e.ReturnBool}
	switch e.Op {
	case parser.ADD, parser.SUB, parser.MUL, parser.DIV, parser.POW, parser.MOD, parser.ATAN2,
		parser.EQLC, parser.NEQ, parser.GTR, parser.LSS, parser.GTE, parser.LTE:
	default:
		return o, nil, false
	}
	if n, ok := number(e.RHS); ok {
		o.number = n
		return o, e.LHS, true
	}
	n, ok := number(e.LHS)
	o.number, o.left = n, true
	return o, e.RHS, ok
}

func number(expr parser.Expr) (float64, bool) {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return number(e.Expr)
	case *parser.NumberLiteral:
		return e.Val, true
	}
	return 0, false
}

// dropsName reports whether the result has no metric name.
func (o *operation) dropsName() bool { return o.bool || !o.op.IsComparisonOperator() }

// of applies the operator; false when a comparison leaves the value out.
func (o *operation) of(v float64) (float64, bool) {
	l, r := v, o.number
	if o.left {
		l, r = r, l
	}
	keep := true
	out := v
	switch o.op {
	case parser.ADD:
		out = l + r
	case parser.SUB:
		out = l - r
	case parser.MUL:
		out = l * r
	case parser.DIV:
		out = l / r
	case parser.POW:
		out = math.Pow(l, r)
	case parser.MOD:
		out = math.Mod(l, r)
	case parser.ATAN2:
		out = math.Atan2(l, r)
	case parser.EQLC:
		keep = l == r
	case parser.NEQ:
		keep = l != r
	case parser.GTR:
		keep = l > r
	case parser.LSS:
		keep = l < r
	case parser.GTE:
		keep = l >= r
	case parser.LTE:
		keep = l <= r
	}
	if o.bool {
		out = 0
		if keep {
			out = 1
		}
		keep = true
	}
	return out, keep
}

// apply runs operations over points, in place.
func apply(ops []operation, points []point) []point {
	for i := range ops {
		kept := points[:0]
		for _, p := range points {
			if v, keep := ops[i].of(p.v); keep {
				kept = append(kept, point{p.step, v})
			}
		}
		points = kept
	}
	return points
}

// grouped returns the labels to group by, of series that have lost their reserved labels or not.
func (a *aggregation) grouped(dropped bool) []string {
	if !dropped {
		return a.grouping
	}
	g := slices.Clone(a.grouping)
	if a.without {
		// HashWithoutLabels leaves out the metric's name by itself.
		g = append(g, "__type__", "__unit__")
		slices.Sort(g)
		return slices.Compact(g)
	}
	return slices.DeleteFunc(g, schema.IsMetadataLabel)
}

func dropName(ops []operation) bool {
	return slices.ContainsFunc(ops, func(o operation) bool { return o.dropsName() })
}
