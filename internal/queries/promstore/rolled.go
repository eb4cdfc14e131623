package promstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// RangeCall is a function over a plain range selector, evaluated at Start, Start + Step
// and so on to End. All times are milliseconds; Step is 0 for one time.
type RangeCall struct {
	Func             string
	Matchers         []*labels.Matcher
	Range, Offset    int64
	Start, End, Step int64
}

// RolledLabel selects what Rolled prepared.
const RolledLabel = "__rolled__"

// Rolled evaluates c from rolled rows, and from raw samples in the hours that no rolled block
// covers. It returns the value of a selector on RolledLabel that replaces the call: its series
// have the values of the call at the times of evaluation. ok is false when the rolled rows
// can't give what the samples would; nothing has changed then. Where samples have expired,
// approximate values are accepted, and published.Query reports the hours that they are of.
// Errors: *LimitError, a context error.
func (q *Queryable) Rolled(ctx context.Context, c RangeCall) (selector string, ok bool, err error) {
	series, ok, err := q.RolledSeries(ctx, c)
	if err != nil || !ok {
		return "", false, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.prepared = append(q.prepared, series)
	return strconv.Itoa(len(q.prepared) - 1), true, nil
}

// RolledSeries is Rolled for callers that use the values themselves, without an engine.
func (q *Queryable) RolledSeries(ctx context.Context, c RangeCall) ([]RolledSeries, bool, error) {
	if q.others != nil {
		return q.rolledEverywhere(ctx, c)
	}
	return q.rolledHere(ctx, c, false)
}

// rolledHere evaluates c for the series of this region; all says that those without a value are wanted, too.
func (q *Queryable) rolledHere(ctx context.Context, c RangeCall, all bool) ([]RolledSeries, bool, error) {
	fn, known := rangeFuncs[c.Func]
	if q.pub == nil || !known || !plain(c) {
		return nil, false, nil
	}
	// A range is open at its beginning, so its first millisecond is left out.
	mint, maxt := c.Start-c.Offset-c.Range+1, c.End-c.Offset
	if err := q.pub.Pin(ctx, mint, maxt); err != nil {
		return nil, false, err
	}
	mark := q.pub.Mark()
	for _, rows := range q.ways(c, q.pub.AnyExpired(mint, maxt)) {
		series, ok, err := q.rolled(ctx, c, fn, rows, all)
		if errors.Is(err, errNotRolled) { // nor will finer rows
			q.pub.Undo(mark)
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		if ok && !q.pub.Failed(mark) {
			return series, true, nil
		}
		q.pub.Undo(mark)
	}
	return nil, false, nil
}

// coarsest are the resolutions from the one with the fewest rows.
var coarsest = []timegrid.Resolution{timegrid.OneHour, timegrid.FiveMinutes, timegrid.OneMinute}

// ways lists the rows that may answer, the best first: exact ones of coarse resolutions, then
// exact ones where samples have expired and samples elsewhere, then approximate ones.
func (q *Queryable) ways(c RangeCall, expired bool) []published.Rows {
	var whole, near []timegrid.Resolution
	if expired {
		for _, res := range coarsest {
			if onBuckets(c, res.Millis()) {
				whole = append(whole, res)
			}
			if c.Range >= res.Millis() {
				// coarsest begins with the widest buckets. For an approximation the narrowest are best, so
				// the order is turned around.
				near = append([]timegrid.Resolution{res}, near...)
			}
		}
	}
	var out []published.Rows
	for _, res := range coarsest {
		if q.resolutions && aligned(c, res.Millis()) {
			out = append(out, published.Rows{Resolution: res, Expired: whole})
		}
	}
	if len(whole) > 0 {
		out = append(out, published.Rows{Expired: whole})
	}
	if len(near) > 0 {
		out = append(out, published.Rows{Expired: near, Nearly: true})
	}
	return out
}

// plain reports whether the selector names one metric. With several, the engine drops the
// name and label sets of two metrics may become equal.
func plain(c RangeCall) bool { return metric(c) != "" }

// metric is the name that the selector wants; empty when it may find several.
func metric(c RangeCall) string {
	for _, m := range c.Matchers {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
			return m.Value
		}
	}
	return ""
}

// aligned reports whether buckets of width w (milliseconds) pay: a range has at least four,
// and there are no more buckets than steps.
func aligned(c RangeCall, w int64) bool { return c.Range >= 4*w && onBuckets(c, w) }

// onBuckets reports that every range is exactly some buckets.
func onBuckets(c RangeCall, w int64) bool {
	return c.Range >= w && c.Range%w == 0 && (c.Start-c.Offset)%w == 0 && (c.Step == 0 || c.Step >= w && c.Step%w == 0)
}

// maxPrepared bounds the values that are prepared for a call, those of a histogram one by one.
const maxPrepared = 50_000_000

func (q *Queryable) rolled(ctx context.Context, c RangeCall, fn rangeFunc, rows published.Rows, empty bool) ([]RolledSeries, bool, error) {
	mint, maxt := c.Start-c.Offset-c.Range+1, c.End-c.Offset
	// Samples in memory are only searched where there are rows to put beside them.
	if !q.pub.MayRoll(rows, mint, maxt) {
		return nil, false, nil
	}
	ls, err := q.snap.Select(ctx, mint, maxt, c.Matchers...)
	if err != nil {
		return nil, false, err
	}
	// A bucket and samples of the same time can't be combined, so hours with samples are read as samples.
	ls, hours := live.InHours(ls)
	rows.Want = fn.want
	found, ok, err := q.pub.SelectRolled(ctx, rows, mint, maxt, func(h timegrid.Hour) bool { return hours[h] },
		func(typ series.Type) bool { return fn.takes(typ, metric(c)) }, c.Matchers...)
	if err != nil || !ok {
		return nil, false, err
	}
	resolutions := map[timegrid.Resolution]bool{}
	if rows.Resolution != timegrid.Raw {
		resolutions[rows.Resolution] = true
	}
	for i := range found {
		for k := range found[i].Parts() {
			resolutions[found[i].Resolution(k)] = true
		}
	}
	all := joinRolled(ls, found)
	steps := int64(1)
	if c.Step > 0 {
		steps = (c.End-c.Start)/c.Step + 1
	}
	// Checked before memory is taken for the values.
	if steps*int64(len(all)) > maxPrepared {
		return nil, false, nil
	}
	if err := q.Reserve(8*steps*int64(len(all)) + seriesBytes*int64(len(all))); err != nil {
		return nil, false, err
	}
	times := make([]int64, steps)
	for i := range times {
		times[i] = c.Start + int64(i)*c.Step
	}
	var left atomic.Int64
	left.Store(maxPrepared - steps*int64(len(all)))
	p := q.parallelRolled(found, int64(len(all))*(steps+int64(len(hours))*denseRows))
	readers, results := make([]evaluation, p.Workers()), make([]rolledResult, p.Slots())
	for i := range readers {
		readers[i] = evaluation{c: c, fn: fn, mint: mint, maxt: maxt, times: times, left: &left, empty: empty}
	}
	out := make([]RolledSeries, 0, len(all))
	err = p.Do((len(all)+rolledAtOnce-1)/rolledAtOnce, func(worker, slot, k int) {
		results[slot].read(ctx, &readers[worker], all[k*rolledAtOnce:min((k+1)*rolledAtOnce, len(all))])
	}, func(slot, _ int) error {
		out = append(out, results[slot].series...)
		return results[slot].err
	})
	if errors.Is(err, errLabelsMeet) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if empty {
		slices.SortFunc(out, func(a, b RolledSeries) int { return labels.Compare(a.full, b.full) })
	} else {
		sortByLabels(out)
	}
	q.noteMerges(len(all), func(i int) (labels.Labels, agentlabel.Seen) { return all[i].labels, all[i].agents(mint, maxt) })
	// Reported only now: an attempt that failed has used nothing.
	for res := range resolutions {
		q.pub.Used(res)
	}
	return out, true, q.touch(mint, maxt, len(all))
}

const (
	// rolledAtOnce is how many series are evaluated between two checks of the context, and by one worker.
	rolledAtOnce = 8
	// denseRows guesses how many samples a series has in an hour in memory.
	denseRows = 360
)

// errLabelsMeet: the engine drops labels of the series, after which label sets might be equal.
var errLabelsMeet = errors.New("promstore: label sets might meet")

// parallelRolled is what evaluates so many samples and rows. Histograms share memory with the decoder of their chunk, so
// what may have some of blocks is evaluated one after the other.
func (q *Queryable) parallelRolled(found []published.Rolled, samples int64) Parallel {
	for i := range found {
		if found[i].Raw != nil {
			return alone{}
		}
		for k := range found[i].Parts() {
			if native(found[i].Type(k)) {
				return alone{}
			}
		}
	}
	return q.ParallelFor(samples)
}

// rolledResult is some consecutive series with their values, those that have any.
type rolledResult struct {
	series []RolledSeries
	err    error // of the series after these
}

func (res *rolledResult) read(ctx context.Context, ev *evaluation, of []rolledInput) {
	if res.series, res.err = res.series[:0], ctx.Err(); res.err != nil {
		return
	}
	for i := range of {
		values, hists, any, err := ev.series(&of[i])
		if res.err = err; err != nil {
			return
		}
		full := of[i].labels
		if !any {
			if ev.empty {
				res.series = append(res.series, RolledSeries{full: full})
			}
			continue
		}
		lset, ok := ev.fn.resultLabels(full)
		if !ok {
			res.err = errLabelsMeet
			return
		}
		res.series = append(res.series, RolledSeries{lset, full, ev.times, values, hists})
	}
}

func sortByLabels(of []RolledSeries) {
	slices.SortFunc(of, func(a, b RolledSeries) int { return labels.Compare(a.labels, b.labels) })
}

// resultLabels are those of a function's value; false where the engine drops further ones.
func (f rangeFunc) resultLabels(full labels.Labels) (labels.Labels, bool) {
	if full.Has("__type__") || full.Has("__unit__") {
		return full, false
	}
	if f.keepsName {
		return full, true
	}
	return labels.NewBuilder(full).Del(model.MetricNameLabel).Labels(), true
}

// rolledInput is a label set with its samples and its rolled rows.
type rolledInput struct {
	merged
	rolled *published.Rolled
}

// agents is that of merged, with the rolled rows.
func (in *rolledInput) agents(mint, maxt int64) agentlabel.Seen {
	seen := in.merged.agents(mint, maxt)
	if in.rolled != nil {
		seen.Merge(in.rolled.Agents(mint, maxt))
	}
	return seen
}

func joinRolled(ls []live.Series, rs []published.Rolled) []rolledInput {
	out := make([]rolledInput, 0, len(rs)+len(ls))
	at := make(map[uint64][]int, len(rs))
	for i := range rs {
		h := rs[i].Labels.Hash()
		at[h] = append(at[h], i)
		out = append(out, rolledInput{merged{labels: rs[i].Labels, published: rs[i].Raw}, &rs[i]})
	}
next:
	for i := range ls {
		// Different labels may have the same hash.
		for _, k := range at[ls[i].Labels.Hash()] {
			if labels.Equal(out[k].labels, ls[i].Labels) {
				out[k].live = &ls[i]
				continue next
			}
		}
		out = append(out, rolledInput{merged: merged{labels: ls[i].Labels, live: &ls[i]}})
	}
	return out
}

// RolledSeries has a value for each time, a stale marker where there is none.
type RolledSeries struct {
	labels labels.Labels
	full   labels.Labels // of the series
	t      []int64
	v      []float64
	h      []*histogram.FloatHistogram // nil, or with nil where v counts
}

// Labels of the result: without the metric's name where the function drops it.
func (s *RolledSeries) Labels() labels.Labels { return s.labels }

// Values has one for each time of evaluation, a stale marker where there is none. It is false for histograms.
func (s *RolledSeries) Values() ([]float64, bool) { return s.v, s.h == nil }

// Iterator reads the values as samples.
func (s *RolledSeries) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	it, ok := reuse.(*iterator[int64])
	if !ok {
		it = &iterator[int64]{}
	}
	it.read, it.err = nil, nil
	// A reused iterator may still refer to another series. done is set below, so the one prepared run is
	// all that it reads.
	it.runs.reset(&merged{}, math.MinInt64, math.MaxInt64)
	it.run, it.i, it.done = samples.Run{T: s.t, V: s.v, H: s.h}, -1, true
	return it
}

// preparedSet gives what Rolled prepared under a number.
func (q *Queryable) preparedSet(ms []*labels.Matcher) (storage.SeriesSet, bool) {
	if len(ms) != 1 || ms[0].Name != RolledLabel || ms[0].Type != labels.MatchEqual {
		return nil, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n, err := strconv.Atoi(ms[0].Value)
	// The label may also come from a user; such a selector is read like any other.
	if err != nil || n < 0 || n >= len(q.prepared) {
		return nil, false
	}
	return &rolledSet{found: q.prepared[n], at: -1}, true
}

type rolledSet struct {
	seriesSet
	found []RolledSeries
	at    int
}

func (s *rolledSet) Next() bool         { s.at++; return s.at < len(s.found) }
func (s *rolledSet) At() storage.Series { return &s.found[s.at] }

var staleNaN = math.Float64frombits(value.StaleNaN)
