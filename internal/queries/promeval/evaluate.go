package promeval

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unsafe"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/schema"
	"github.com/prometheus/prometheus/util/annotations"

	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
)

// ErrOther says that the samples are such that the engine must evaluate: histograms are among them, or label sets become
// equal. What the Queryable has noted until then is void.
var ErrOther = errors.New("promeval: left to the engine")

// ErrTooMany says that more samples would be in memory than Times.MaxSamples.
var ErrTooMany = errors.New("promeval: too many samples")

// Times are when an expression is evaluated, in milliseconds.
type Times struct {
	Start, End int64
	Step       int64 // 0 for an instant
	Lookback   int64 // of instant selectors
	MaxSamples int
}

// farTimes are not evaluated here, so that sums of times can't overflow.
const farTimes = 1 << 60

// Evaluate evaluates the shape: to a promql.Vector at an instant, else to a promql.Matrix. Errors: ErrOther, ErrTooMany,
// *promstore.LimitError, an error of the queryable's guard, a context error.
func (s *Shape) Evaluate(ctx context.Context, q *promstore.Queryable, at Times) (parser.Value, annotations.Annotations, error) {
	for _, t := range []int64{at.Start, at.End, s.offset, s.span, at.Lookback, at.Step} {
		if t < -farTimes || t > farTimes {
			return nil, nil, ErrOther
		}
	}
	e := &evaluation{Shape: s, at: at, q: q, steps: 1}
	if at.Step > 0 {
		e.steps = int((at.End-at.Start)/at.Step) + 1
	}
	e.nameless = s.fn != nil && !s.fn.keepsName || dropName(s.inner)
	if s.agg != nil {
		e.groups = &groups{aggregation: s.agg, by: s.agg.grouped(e.nameless), at: map[uint64]int{}}
	}
	defer e.groups.release()
	if err := e.run(ctx); err != nil {
		return nil, nil, err
	}
	v, err := e.value()
	return v, e.remarks, err
}

// point is the value at a step.
type point struct {
	step int32
	v    float64
}

const pointBytes = int64(unsafe.Sizeof(promql.FPoint{}))

// evaluation is one evaluation of a shape.
type evaluation struct {
	*Shape
	at       Times
	q        *promstore.Queryable
	steps    int
	nameless bool // series lose their metric's name before they are aggregated

	points  []point // of the series or group that is taken
	held    int     // points of all series
	groups  *groups // nil without an aggregation
	names   map[uint64]struct{}
	matrix  promql.Matrix
	slab    []promql.FPoint
	remarks annotations.Annotations
}

func (e *evaluation) run(ctx context.Context) error {
	if done, err := e.fromRows(ctx); done || err != nil {
		return err
	}
	span, hint := e.span, promstore.Hint{Func: e.hint, Range: e.span}
	var sel *promstore.Selection
	var err error
	// A range is open at its begin, so its first millisecond is left out.
	if e.fn == nil {
		span = e.at.Lookback
		sel, err = e.q.FindAt(ctx, promstore.Instants{Start: e.at.Start - e.offset, End: e.at.End - e.offset, Step: e.at.Step}, hint, e.at.Start-e.offset-span+1, e.at.End-e.offset, e.selector.LabelMatchers...)
	} else {
		sel, err = e.q.Find(ctx, hint, e.at.Start-e.offset-span+1, e.at.End-e.offset, e.selector.LabelMatchers...)
	}
	if err != nil {
		return err
	}
	e.unique(sel)
	samples := int64(sel.Len()) * ((e.at.End-e.at.Start+span)/denseMillis + 1)
	each := max(1, min(taskPoints/e.steps, taskSeries))
	p := e.q.ParallelFor(samples)
	m := memories.Get().(*memory)
	defer m.release()
	readers, results := m.use(e, p.Workers(), p.Slots())
	return p.Do((sel.Len()+each-1)/each, func(worker, slot, k int) {
		results[slot].read(ctx, &readers[worker], sel, k*each, min((k+1)*each, sel.Len()), span)
	}, func(slot, k int) error { return e.takeAll(&results[slot], sel, k*each) })
}

const (
	// taskPoints and taskSeries are about how many of them are read before they are taken.
	taskPoints, taskSeries = 2048, 16
	// denseMillis is a common distance of samples, to guess how many there are.
	denseMillis = 10_000
)

// takeAll takes the series of a result, the first of which has the number from.
func (e *evaluation) takeAll(res *result, sel *promstore.Selection, from int) error {
	begin := 0
	for i := range res.series {
		s := &res.series[i]
		if e.held+s.most > e.at.MaxSamples {
			return ErrTooMany
		}
		e.points, begin = res.points[begin:s.end:s.end], s.end
		ls := sel.Labels(from + i)
		if len(e.points) > 0 && e.fn != nil && e.fn.counter {
			e.remark(ls)
		}
		if err := e.take(ls); err != nil {
			return err
		}
	}
	e.points = nil // they are the result's
	return res.err
}

// fromRows takes the values of the function from rolled rows; false if they can't answer.
func (e *evaluation) fromRows(ctx context.Context) (bool, error) {
	if e.fn == nil {
		return false, nil
	}
	c := promstore.RangeCall{Func: e.call.Func.Name, Matchers: e.selector.LabelMatchers, Range: e.span, Offset: e.offset, Start: e.at.Start, End: e.at.End, Step: e.at.Step}
	if c.Start == c.End {
		c.Step = 0 // one time has no step
	}
	rolled, ok, err := e.q.RolledSeries(ctx, c)
	if err != nil || !ok {
		return false, err
	}
	for i := range rolled {
		if err := errors.Join(ctx.Err(), e.q.Check()); err != nil {
			return false, err
		}
		values, floats := rolled[i].Values()
		if !floats {
			return false, ErrOther
		}
		e.points = e.points[:0]
		for step, v := range values {
			if !value.IsStaleNaN(v) {
				e.points = append(e.points, point{int32(step), v})
			}
		}
		if err := e.take(rolled[i].Labels()); err != nil {
			return false, err
		}
	}
	return true, nil
}

// unique makes take look for equal label sets, unless they must differ: where the name goes that is the same in all of
// them.
func (e *evaluation) unique(sel *promstore.Selection) {
	if !e.nameless {
		return
	}
	named := slices.ContainsFunc(e.selector.LabelMatchers, func(m *labels.Matcher) bool {
		return m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual
	})
	for i := 0; named && i < sel.Len(); i++ {
		ls := sel.Labels(i)
		named = !ls.Has("__type__") && !ls.Has("__unit__")
	}
	if !named {
		e.names = map[uint64]struct{}{}
	}
}

// remark is the engine's on a rate of what is not named like a counter.
func (e *evaluation) remark(ls labels.Labels) {
	name := ls.Get(model.MetricNameLabel)
	if name == "" || strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count") || strings.HasSuffix(name, "_bucket") {
		return
	}
	e.remarks.Add(annotations.NewPossibleNonCounterInfo(name, e.call.Args[0].PositionRange()))
}

// take adds the points of a series to the result or to its group.
func (e *evaluation) take(ls labels.Labels) error {
	if e.held += len(e.points); e.held > e.at.MaxSamples {
		return ErrTooMany
	}
	if len(e.points) == 0 {
		return nil
	}
	if e.names != nil {
		ls = ls.DropReserved(schema.IsMetadataLabel)
		h := ls.Hash()
		if _, ok := e.names[h]; ok {
			return ErrOther // the engine finds out what is wrong, if anything is
		}
		e.names[h] = struct{}{}
	}
	points := apply(e.inner, e.points)
	if len(points) == 0 {
		return nil
	}
	if e.groups == nil {
		if e.nameless && e.names == nil {
			ls = ls.DropReserved(schema.IsMetadataLabel)
		}
		return e.result(ls, points)
	}
	to, fresh := e.groups.of(ls)
	if fresh {
		if err := e.q.Reserve(cellBytes * int64(e.groups.needs(e.steps))); err != nil {
			return err
		}
		to.cells = e.groups.take(e.steps)
	}
	e.groups.add(to, points)
	return nil
}

// slabPoints is how many points of results share one allocation.
const slabPoints = 2048

// result appends a series to the result.
func (e *evaluation) result(ls labels.Labels, points []point) error {
	if cap(e.slab)-len(e.slab) < len(points) {
		n := max(len(points), min(slabPoints, e.steps*16))
		if err := e.q.Reserve(pointBytes * int64(n)); err != nil {
			return err
		}
		e.slab = make([]promql.FPoint, 0, n)
	}
	from := len(e.slab)
	for _, p := range points {
		e.slab = append(e.slab, promql.FPoint{T: e.at.Start + int64(p.step)*e.at.Step, F: p.v})
	}
	e.matrix = append(e.matrix, promql.Series{Metric: ls, Floats: e.slab[from:len(e.slab):len(e.slab)]})
	return nil
}

// value is the result in the form and the order in which the engine gives it.
func (e *evaluation) value() (parser.Value, error) {
	if e.groups != nil {
		dropped := dropName(e.outer)
		if dropped && e.groups.meet() {
			return nil, ErrOther // also where a later comparison leaves nothing of them: an operator before it has failed
		}
		for i := range e.groups.all {
			g := &e.groups.all[i]
			e.points = apply(e.outer, e.groups.points(g, e.points[:0]))
			if len(e.points) == 0 {
				continue
			}
			ls := g.labels
			if dropped {
				ls = ls.DropReserved(schema.IsMetadataLabel)
			}
			if err := e.result(ls, e.points); err != nil {
				return nil, err
			}
		}
	}
	if e.at.Step == 0 {
		out := make(promql.Vector, len(e.matrix))
		for i := range e.matrix {
			out[i] = promql.Sample{Metric: e.matrix[i].Metric, T: e.at.Start, F: e.matrix[i].Floats[0].F}
		}
		return out, nil
	}
	if e.matrix == nil {
		e.matrix = promql.Matrix{}
	}
	slices.SortFunc(e.matrix, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
	return e.matrix, nil
}
