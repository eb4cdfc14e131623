package published

import (
	"cmp"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// handle is a chunk, whose blocks are in memory once it is loaded. Its decoder is for one reader at a time.
type handle struct {
	q      *Query
	key    string
	memory *catalog.Memory // of a chunk in memory; nil for published ones
	uses   []catalog.Piece // the parts of it that count
	x      *index
	series []int       // that match; owned by the index, not to be changed
	asked  bool        // its blocks were requested
	broken atomic.Bool // it could not be read, which is noted as a Problem

	raw  bool // rows are samples
	res  timegrid.Resolution
	as   *Hint      // rows stand in for samples; nil when they are read as they are
	held []*columns // of series; nil for those that must be decoded
	warm bool       // all blocks that are needed were cached

	mu  sync.Mutex
	dec *chunk.Decoder
}

// decoder returns the decoder, made at first use.
func (h *handle) decoder() *chunk.Decoder {
	if h.dec == nil {
		h.dec = chunk.NewDecoder(h.x.Index, h.q.r.cfg.Limits)
	}
	return h.dec
}

// Series is one label set with the places of its rows.
type Series struct {
	Labels labels.Labels
	pieces []piece // by hour
}

// Times returns the bounds of the hours that have rows of it, in milliseconds.
func (s *Series) Times() (first, last int64) {
	return s.pieces[0].ob.hour.StartMS(), s.pieces[len(s.pieces)-1].ob.hour.EndMS()
}

// piece is a series of one chunk.
type piece struct {
	ob *object
	i  int
}

// Runs reads a series in time order. It is not for concurrent use. A run is valid until the next call of Next and
// must not be changed, as queries share it. Of several samples in one millisecond one counts: the one with the
// greatest time in nanoseconds; of equal ones that of the chunk that the manifest names last.
type Runs struct {
	pieces     []piece
	mint, maxt int64
	err        error
	before     *histogram.FloatHistogram

	cols chunk.Columns
	hour chunk.Columns // the rows of cols in one hour
	last decoded
	buf  buffers
	// counted is the chunk and series that ready has counted.
	counted decoded
}

// decoded says what the columns hold: a chunk of a compaction has many hours, and is decoded once for consecutive
// ones.
type decoded struct {
	h          *handle
	i          int
	mint, maxt int64
}

type buffers struct {
	t, st []int64
	v     []float64
}

// Runs starts at mint and leaves out samples after maxt (milliseconds).
func (s *Series) Runs(mint, maxt int64) *Runs {
	r := &Runs{}
	r.Reset(s, mint, maxt)
	return r
}

// Reset starts again, on s, and keeps the memory.
func (r *Runs) Reset(s *Series, mint, maxt int64) {
	r.pieces, r.mint, r.maxt, r.err, r.before, r.last, r.counted = nil, mint, maxt, nil, nil, decoded{}, decoded{}
	if s != nil {
		r.pieces = s.pieces
	}
}

// Err is a *LimitError, or nil. A chunk that can't be read is no error but a Problem.
func (r *Runs) Err() error { return r.err }

// SkipTo lets Next leave out what ends before t.
func (r *Runs) SkipTo(t int64) { r.mint = max(r.mint, t) }

// Next returns the next run that is not empty; false at the end or on an error.
func (r *Runs) Next() (samples.Run, bool) {
	for len(r.pieces) > 0 && r.err == nil {
		n, h := 1, r.pieces[0].ob.hour
		// Several pieces in one hour are series of several agents, types or units with equal labels.
		for n < len(r.pieces) && r.pieces[n].ob.hour == h {
			n++
		}
		group := r.pieces[:n]
		r.pieces = r.pieces[n:]
		if h.EndMS() < r.mint || h.StartMS() >= r.maxt {
			// What is before a skipped hour must not be taken for the sample before the next run.
			r.before = nil
			continue
		}
		var run samples.Run
		if n == 1 {
			var ok bool
			if run, ok = r.ready(group[0]); !ok {
				run = r.read(group[0])
			}
		} else {
			run = r.merge(group)
		}
		// Before the run is cut, as the last sample of an hour is needed even if it is outside of the range.
		run.Before, r.before = r.before, run.Last()
		run.Cut(r.mint, r.maxt)
		if len(run.T) > 0 && r.err == nil {
			return run, true
		}
	}
	return samples.Run{}, false
}

// ready returns a piece whose decoded rows are cached and have one row for each millisecond, without copying.
func (r *Runs) ready(p piece) (samples.Run, bool) {
	ob := p.ob
	// A chunk that was found damaged gives no rows at all, also where some of them are cached, so that every series
	// of it lacks the same.
	if ob.held == nil || ob.broken.Load() {
		return samples.Run{}, false
	}
	c := ob.have(p.i, firstNS(r.mint), lastNS(r.maxt))
	if c == nil || c.ms == nil {
		return samples.Run{}, false
	}
	// A chunk of many hours comes once for each of them, and its samples count once.
	if l := r.counted; l.h != ob.handle || l.i != p.i {
		r.counted = decoded{h: ob.handle, i: p.i}
		// Cached samples count as well, so that a query meets its limit whether or not others ran before.
		if r.err = ob.q.decoded(len(c.v)); r.err != nil {
			return samples.Run{}, true
		}
	}
	return c.run(ob.hour), true
}

// read decodes one piece into the buffers, with one row for each millisecond.
func (r *Runs) read(p piece) samples.Run {
	typ, ok := r.decode(p)
	if !ok {
		return samples.Run{}
	}
	c := &r.hour
	b := &r.buf
	b.t = slices.Grow(b.t[:0], len(c.T))
	double := false
	for i, ns := range c.T {
		b.t = append(b.t, timegrid.Millisecond(ns))
		double = double || i > 0 && b.t[i] == b.t[i-1]
	}
	run := samples.Run{}
	// Nearly always: then the columns are used as they are, without being copied.
	if !double {
		run.V = c.V
		if c.Start != nil {
			b.st = b.st[:0]
			for _, ns := range c.Start {
				b.st = append(b.st, startMS(ns))
			}
			run.STs = b.st
		}
		run.H = histograms(c.H, nil, typ)
	} else {
		last := lastRows(b.t)
		b.t, b.v, b.st = b.t[:0], b.v[:0], b.st[:0]
		for _, k := range last {
			b.t = append(b.t, timegrid.Millisecond(c.T[k]))
			if c.V != nil {
				b.v = append(b.v, c.V[k])
			}
			if c.Start != nil {
				b.st = append(b.st, startMS(c.Start[k]))
			}
		}
		if c.V != nil {
			run.V = b.v
		}
		if c.Start != nil {
			run.STs = b.st
		}
		run.H = histograms(c.H, last, typ)
	}
	run.T = b.t
	return run
}

// decode fills the columns; it is false when there is nothing to read.
func (r *Runs) decode(p piece) (series.Type, bool) {
	ob := p.ob
	if ob.broken.Load() {
		return 0, false
	}
	// Decoded from an earlier time on also serves: the rows before are cut off.
	if l := r.last; l.h != ob.handle || l.i != p.i || l.mint > r.mint || l.maxt != r.maxt {
		rows, err := ob.handle.samples(p.i, r.mint, r.maxt, &r.cols)
		r.last = decoded{ob.handle, p.i, r.mint, r.maxt}
		if err != nil {
			r.last = decoded{}
			ob.corrupt(err)
			return 0, false
		}
		if r.err = ob.q.decoded(rows); r.err != nil {
			return 0, false
		}
	}
	r.hour = ob.cut(&r.cols)
	return ob.x.meta(p.i).typ, len(r.hour.T) > 0
}

// cut returns the rows of the object's hour.
func (ob *object) cut(c *chunk.Columns) chunk.Columns {
	// An hour includes its last millisecond and not its first, as buckets do.
	from, to := firstNS(ob.hour.StartMS()+1), lastNS(ob.hour.EndMS())
	if n := len(c.T); n == 0 || c.T[0] >= from && c.T[n-1] <= to {
		return *c
	}
	i := sort.Search(len(c.T), func(k int) bool { return c.T[k] >= from })
	return c.Cut(i, i+sort.Search(len(c.T)-i, func(k int) bool { return c.T[i+k] > to }))
}

// corrupt notes once that the chunk can't be decoded, and drops its blocks from the cache so that it is fetched
// again.
func (ob *object) corrupt(err error) {
	if ob.broken.Swap(true) {
		return
	}
	// The cached bytes may be what is damaged; the next query then reads the object itself.
	for _, b := range ob.x.Plan(ob.series, -1<<63, 1<<63-1, -1) {
		ob.q.r.blocks.Remove(blockKey{ob.key, b.Offset, b.Length})
	}
	ob.q.mu.Lock()
	defer ob.q.mu.Unlock()
	ob.q.problem(Problem{Hour: ob.hour, Key: ob.key, Err: err})
}

// lastRows returns the rows that count: the last of each millisecond.
func lastRows(ms []int64) []int {
	rows := make([]int, 0, len(ms))
	for i := range ms {
		if i+1 == len(ms) || ms[i+1] != ms[i] {
			rows = append(rows, i)
		}
	}
	return rows
}

func startMS(ns int64) int64 {
	if ns == 0 {
		return 0
	}
	return timegrid.Millisecond(ns)
}

func histograms(h []series.Histogram, rows []int, typ series.Type) []*histogram.FloatHistogram {
	if h == nil {
		return nil
	}
	if rows == nil {
		out := make([]*histogram.FloatHistogram, len(h))
		for i := range h {
			out[i] = samples.FloatHistogram(&h[i], typ)
		}
		return out
	}
	out := make([]*histogram.FloatHistogram, len(rows))
	for i, k := range rows {
		out[i] = samples.FloatHistogram(&h[k], typ)
	}
	return out
}

// merge reads pieces of one hour with the same labels, of several agents, types or units.
func (r *Runs) merge(group []piece) samples.Run {
	type row struct {
		ns, st int64
		piece  int
		v      float64
		h      *histogram.FloatHistogram
	}
	var rows []row
	floats, hists, starts := false, false, false
	for k, p := range group {
		typ, ok := r.decode(p)
		if !ok {
			continue
		}
		c := &r.hour
		hs := histograms(c.H, nil, typ)
		for i, ns := range c.T {
			x := row{ns: ns, piece: k}
			if c.Start != nil {
				x.st, starts = startMS(c.Start[i]), true
			}
			if hs != nil {
				x.h, hists = hs[i], true
			} else {
				x.v, floats = c.V[i], true
			}
			rows = append(rows, x)
		}
	}
	// By nanoseconds and then by piece, so that the last row of a millisecond is the one that counts.
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.ns, b.ns), cmp.Compare(a.piece, b.piece)) })
	run := samples.Run{}
	for i, x := range rows {
		if i+1 < len(rows) && timegrid.Millisecond(rows[i+1].ns) == timegrid.Millisecond(x.ns) {
			continue
		}
		run.T = append(run.T, timegrid.Millisecond(x.ns))
		if floats {
			run.V = append(run.V, x.v)
		}
		if hists {
			run.H = append(run.H, x.h)
		}
		if starts {
			run.STs = append(run.STs, x.st)
		}
	}
	return run
}
