package published

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// matchers converts PromQL matchers to those of an index. Once ctx is done regular expressions match nothing more,
// so that a long scan ends.
func matchers(ctx context.Context, ms []*labels.Matcher) []chunk.Matcher {
	out := make([]chunk.Matcher, len(ms))
	for i, m := range ms {
		switch m.Type {
		case labels.MatchEqual, labels.MatchNotEqual:
			out[i] = chunk.Equal(m.Name, m.Value)
			// Equality is a look-up in the index; only other matchers need a call for each value.
			out[i].Not = m.Type == labels.MatchNotEqual
		default:
			out[i] = chunk.Matcher{Name: m.Name, Match: func(v string) bool { return ctx.Err() == nil && m.Matches(v) }}
		}
	}
	return out
}

// mayMatch and inTime rule out chunks by what the manifest says about them.
func mayMatch(o *catalog.Object, ms []*labels.Matcher) bool {
	if o.Metric == layout.MixedMetrics {
		return true
	}
	for _, m := range ms {
		if m.Name == model.MetricNameLabel && !m.Matches(o.Metric) {
			return false
		}
	}
	return true
}

func inTime(o *catalog.Object, mint, maxt int64) bool {
	return o.MinTime <= lastNS(maxt) && o.MaxTime >= firstNS(mint)
}

const nsPerMS = 1_000_000

// firstNS and lastNS are the first and last nanosecond of a millisecond, within int64.
func firstNS(ms int64) int64 {
	// Cut off, because selectors without bounds have times that overflow in nanoseconds.
	const least, most = -1 << 63 / nsPerMS, (1<<63 - 1) / nsPerMS
	return max(min(ms, most), least) * nsPerMS
}

func lastNS(ms int64) int64 {
	ns := firstNS(ms)
	return max(ns, ns+(nsPerMS-1))
}

// objects reads, in parallel, the indexes of the raw blocks of some hours, and of the blocks that stand in for
// them where samples have expired. It returns the chunks that have a matching series, by hour and place in the
// view. A chunk of a compaction is returned once for each of its hours, with one handle.
func (q *Query) objects(ctx context.Context, hint Hint, from, to timegrid.Hour, mint, maxt int64, ms []*labels.Matcher) ([]*object, standIns, error) {
	// One group for samples and stand-ins, so that a query waits for its slowest index once.
	reads := group{ctx: ctx, limit: q.r.cfg.Parallel}
	instead := q.standIns(from, to, finest)
	handles, err := q.seek(&reads, timegrid.Raw, q.blocksOf(timegrid.Raw, from, to), mint, maxt, ms)
	for _, res := range instead.resolutions() {
		if err != nil {
			return nil, instead, err
		}
		var more []*handle
		least, most := widen(mint, maxt)
		more, err = q.seek(&reads, res, instead.blocks[res], least, most, ms)
		for _, h := range more {
			h.as = &hint
		}
		handles = append(handles, more...)
	}
	if err == nil {
		err = reads.Wait()
	}
	if err != nil {
		return nil, instead, err
	}
	return expand(handles, mint, maxt), instead, nil
}

// seek starts the reads of indexes; its result is complete when they are done.
func (q *Query) seek(reads *group, res timegrid.Resolution, blocks []*catalog.Block, mint, maxt int64, ms []*labels.Matcher) ([]*handle, error) {
	key := selectionKey(ms)
	plan := q.r.plans.of(blocks)
	s := &seek{q: q, res: res, ms: ms, key: key, agent: q.r.cfg.AgentLabel.Split(ms, false).Agent, none: plan.nothing(key)}
	var handles []*handle
	for n := range plan.units {
		u := &plan.units[n]
		if !s.mayHold(n, u) || !inTime(u.o, mint, maxt) {
			continue
		}
		h := &handle{q: q, key: u.o.ChunkKey, memory: u.o.Memory, uses: u.uses, raw: res == timegrid.Raw, res: res}
		x, ok := q.cachedIndex(u.o, key)
		if !ok {
			handles = append(handles, h)
			reads.Go(func(ctx context.Context) error {
				x, err := q.index(ctx, u.o)
				if err != nil {
					h.broken.Store(true)
					return q.failed(reads.ctx, u.uses[0].From, u.o.IndexKey, err)
				}
				if err := s.found(ctx, n, h, x); err != nil {
					return err
				}
				if some := q.r.choose(x, key, h.series); some != nil {
					h.x, h.series = some, some.all()
				}
				return nil
			})
			// A cached index needs no goroutine.
			continue
		}
		// Reads that were started write into handles, so they must end before the query does.
		if err := s.found(reads.ctx, n, h, x); err != nil {
			return nil, reads.refused(err)
		}
		if len(h.series) > 0 {
			handles = append(handles, h)
		}
	}
	return handles, nil
}

// seek is one selection over the units of a plan.
type seek struct {
	q     *Query
	res   timegrid.Resolution
	ms    []*labels.Matcher
	key   string
	agent []*labels.Matcher // of the label with the agent
	none  *nothing          // units that are known to have nothing that matches

	mu     sync.Mutex
	series int // found so far
}

// mayHold is false when unit n is known to have nothing that matches.
func (s *seek) mayHold(n int, u *unit) bool {
	if s.none.has(n) {
		return false
	}
	if mayMatch(u.o, s.ms) && u.mayHoldAgent(s.agent) {
		return true
	}
	s.none.add(n)
	return false
}

// found records which series of the index of unit n match.
func (s *seek) found(ctx context.Context, n int, h *handle, x *index) error {
	held, err := x.selected(ctx, s.key, s.ms)
	if err != nil {
		return err
	}
	h.x, h.series = x, held
	// Remembered with the plan, so that the next query with the same matchers skips the unit without asking its
	// index.
	if len(held) == 0 {
		s.none.add(n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.series += len(held); s.res == timegrid.Raw && s.q.limits.Series > 0 && s.series > s.q.limits.Series*maxHoursAtOnce {
		return &LimitError{"limits.series", int64(s.q.limits.Series)}
	}
	return nil
}

// expand returns the hours of chunks that have a matching series.
func expand(handles []*handle, mint, maxt int64) []*object {
	var out []*object
	for _, h := range handles {
		for k := range h.uses {
			p := &h.uses[k]
			if h.x == nil {
				continue
			}
			held := h.x.counted(p, h.series)
			for hour := p.From; hour <= p.To && len(held) > 0; hour++ {
				if hour.EndMS() >= mint && hour.StartMS() < maxt {
					out = append(out, &object{handle: h, hour: hour, series: held})
				}
			}
		}
	}
	if byHour := func(a, b *object) int { return cmp.Compare(a.hour, b.hour) }; !slices.IsSortedFunc(out, byHour) {
		// Stable, because of several samples in one millisecond the one that the manifest names last counts.
		slices.SortStableFunc(out, byHour)
	}
	return out
}

// maxHoursAtOnce: a series is in every hour, so this early check of the limit is a wide one; the caller makes the
// exact one.
const maxHoursAtOnce = 1000

// load fetches the blocks of all objects in parallel.
func (q *Query) load(ctx context.Context, objects []*object, mint, maxt int64) error {
	reads := group{ctx: ctx, limit: q.r.cfg.Parallel}
	var asked []*object
	for _, ob := range objects {
		// Objects of one compaction share a handle, which is loaded once.
		if ob.asked {
			continue
		}
		ob.asked = true
		least, most := mint, maxt
		if ob.as != nil {
			least, most = widen(mint, maxt)
		}
		missing := q.cached(ob.handle, firstNS(least), lastNS(most))
		asked = append(asked, ob)
		if len(missing) == 0 {
			continue
		}
		reads.Go(func(ctx context.Context) error {
			err := q.fetch(ctx, ob.handle, missing)
			if err != nil {
				// Its series are skipped from now on; failed decides whether that is a problem or the end of the
				// query.
				ob.broken.Store(true)
			}
			return q.failed(reads.ctx, ob.hour, ob.key, err)
		})
	}
	q.r.keepDecoded(asked)
	return reads.Wait()
}

// group runs requests in parallel until the first error. It creates nothing until it is used: when everything is
// cached it costs nothing.
type group struct {
	ctx   context.Context
	limit int
	g     *errgroup.Group
	gctx  context.Context
}

func (g *group) Go(fn func(context.Context) error) {
	if g.g == nil {
		g.g, g.gctx = errgroup.WithContext(g.ctx)
		g.g.SetLimit(g.limit)
	}
	g.g.Go(func() error { return fn(g.gctx) })
}

func (g *group) Wait() error {
	if g.g == nil {
		return nil
	}
	return g.g.Wait()
}

// refused waits for the requests that were started, and returns the cause of the refusal.
func (g *group) refused(cause error) error {
	_ = g.Wait() // any error of it comes after the cause
	return cause
}

// Select returns the raw series that match all matchers and may have samples in [mint, maxt] (milliseconds,
// inclusive), in no order. Where samples have expired, what is left stands in for them, which Reduced reports. An
// object that can't be read is a Problem, and its series are left out. Errors: *LimitError, a context error.
func (q *Query) Select(ctx context.Context, mint, maxt int64, ms ...*labels.Matcher) ([]Series, error) {
	return q.SelectFor(ctx, Hint{}, mint, maxt, ms...)
}

// SelectFor is Select with what the samples are used for.
func (q *Query) SelectFor(ctx context.Context, hint Hint, mint, maxt int64, ms ...*labels.Matcher) ([]Series, error) {
	from, to, ok := q.span(mint, maxt)
	if !ok {
		return nil, nil
	}
	if err := q.pin(ctx, from, to); err != nil {
		return nil, err
	}
	objects, instead, err := q.objects(ctx, hint, from, to, mint, maxt, ms)
	if err != nil {
		return nil, err
	}
	// Hours whose rows have nothing that matches are not noted: their samples had nothing either.
	q.reduceFound(instead, objects)
	if err := q.load(ctx, objects, mint, maxt); err != nil {
		return nil, err
	}
	return gather(objects), nil
}

// Listed returns the raw series that match all matchers and have samples in [mint, maxt] (milliseconds, inclusive), in
// no order. Mostly the times in the indexes tell, and no chunk is read. Errors are those of Select.
func (q *Query) Listed(ctx context.Context, mint, maxt int64, ms ...*labels.Matcher) ([]Series, error) {
	from, to, ok := q.span(mint, maxt)
	if !ok {
		return nil, nil
	}
	if err := q.pin(ctx, from, to); err != nil {
		return nil, err
	}
	objects, instead, err := q.objects(ctx, Hint{Func: "series"}, from, to, mint, maxt, ms)
	if err != nil {
		return nil, err
	}
	q.reduceFound(instead, objects)
	found, unknown := gather(objects), map[*object]bool{}
	has := make([]bool, len(found))
	for i := range found {
		known := false
		if has[i], known = found[i].has(mint, maxt); !known {
			for _, p := range found[i].pieces {
				unknown[p.ob] = true
			}
		}
	}
	if len(unknown) > 0 {
		// In the order of objects, and not that of the map: requests are made in the same order each time.
		if err := q.load(ctx, slices.DeleteFunc(objects, func(ob *object) bool { return !unknown[ob] }), mint, maxt); err != nil {
			return nil, err
		}
	}
	out := found[:0]
	var r Runs
	for i := range found {
		if _, known := found[i].has(mint, maxt); !has[i] && !known {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			r.Reset(&found[i], mint, maxt)
			if _, has[i] = r.Next(); r.Err() != nil {
				return nil, r.Err()
			}
		}
		if has[i] {
			out = append(out, found[i])
		}
	}
	return out, nil
}

// has reports whether the series has a sample in [mint, maxt], milliseconds, as far as the indexes tell.
func (s *Series) has(mint, maxt int64) (has, known bool) {
	known = true
	for _, p := range s.pieces {
		if p.ob.as != nil {
			known = false // what its rows show of the range is found by reading them
			continue
		}
		h := p.ob.hour
		if h.EndMS() < mint || h.StartMS() >= maxt {
			continue
		}
		got, sure := p.ob.x.HasRow(p.i, firstNS(max(mint, h.StartMS()+1)), lastNS(min(maxt, h.EndMS())))
		if got {
			return true, true
		}
		known = known && sure
	}
	return false, known
}

func (q *Query) blocksOf(res timegrid.Resolution, from, to timegrid.Hour) []*catalog.Block {
	var blocks []*catalog.Block
	for h := from; h <= to; h++ {
		if res == timegrid.Raw {
			blocks = append(blocks, q.lateBlocks(h)...)
		}
		if of := q.Blocks(h, res); blocks == nil {
			blocks = of
		} else {
			blocks = append(blocks, of...)
		}
	}
	return blocks
}

// gather joins what has the same labels. Objects are sorted by hour.
func gather(objects []*object) []Series {
	most, all := 0, 0
	for _, ob := range objects {
		most, all = max(most, len(ob.series)), all+len(ob.series)
	}
	// Pieces are counted before they are put in place, so that all of them share one array.
	of := make([]int32, 0, all) // the series of each piece
	out, counts := make([]Series, 0, most), make([]int32, 0, most)
	at := make(map[uint64]int32, most) // the last series with a hash
	var others map[int32]int32         // the one before it with the same hash: different label sets can have the same
	// Where the series of a chunk with several hours stand in of: those of its next hour are the same.
	type place struct{ at, n int }
	hours := map[*handle]place{}
	for _, ob := range objects {
		if p, ok := hours[ob.handle]; ok && ob.whole() && p.n == len(ob.series) {
			for _, k := range of[p.at : p.at+p.n] {
				of, counts[k] = append(of, k), counts[k]+1
			}
			continue
		}
		if ob.whole() {
			hours[ob.handle] = place{len(of), len(ob.series)}
		}
		for _, i := range ob.series {
			m := ob.x.meta(i)
			last, ok := at[m.hash]
			k := last
			for found := ok; found && !labels.Equal(out[k].Labels, m.labels); {
				if k, found = others[k]; !found {
					k = -1
				}
			}
			if !ok || k < 0 {
				k = int32(len(out))
				out, counts = append(out, Series{Labels: m.labels}), append(counts, 0)
				at[m.hash] = k
				if ok {
					if others == nil {
						others = map[int32]int32{}
					}
					others[k] = last
				}
			}
			of, counts[k] = append(of, k), counts[k]+1
		}
	}
	pieces := make([]piece, all)
	for k, n := range counts {
		out[k].pieces, pieces = pieces[:0:n], pieces[n:]
	}
	n := 0
	for _, ob := range objects {
		for _, i := range ob.series {
			out[of[n]].pieces = append(out[of[n]].pieces, piece{ob, i})
			n++
		}
	}
	return out
}
