package published

import (
	"slices"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Runs reads a series in time order. It is not for concurrent use. A run is valid until the next call of Next and
// must not be changed, as queries share it. Of several samples in one millisecond one counts: the one with the
// greatest time in nanoseconds; of equal ones that of the chunk that the manifest names last.
type Runs struct {
	pieces     []piece
	mint, maxt int64
	err        error
	before     *histogram.FloatHistogram

	sources []source // of the pieces of one hour
	merge   merge
}

// Runs starts at mint and leaves out samples after maxt (milliseconds).
func (s *Series) Runs(mint, maxt int64) *Runs {
	r := &Runs{}
	r.Reset(s, mint, maxt)
	return r
}

// Reset starts again, on s, and keeps the memory.
func (r *Runs) Reset(s *Series, mint, maxt int64) {
	r.pieces, r.mint, r.maxt, r.err, r.before = nil, mint, maxt, nil, nil
	for i := range r.sources {
		r.sources[i].last, r.sources[i].counted = decoded{}, decoded{}
	}
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
		group, to := r.group()
		n := len(group)
		if to.EndMS() < r.mint || group[0].ob.hour.StartMS() >= r.maxt {
			// What is before a skipped hour must not be taken for the sample before the next run.
			r.before = nil
			continue
		}
		for len(r.sources) < n {
			r.sources = append(r.sources, source{})
		}
		for k, p := range group {
			r.fill(&r.sources[k], p, to, n)
		}
		run := r.merge.run(r.sources[:n])
		// Before the run is cut, as the last sample of an hour is needed even if it is outside of the range.
		run.Before, r.before = r.before, run.Last()
		run.Cut(r.mint, r.maxt)
		if len(run.T) > 0 && r.err == nil {
			return run, true
		}
	}
	return samples.Run{}, false
}

// group takes the pieces of the next hour: several are series of several agents, types or units with equal labels, or of late
// batches. A single one comes with the hours after in which the same series of its chunk is the only one as well, the last of
// which is to: a chunk of a compaction has many hours, which are read as one run.
func (r *Runs) group() (group []piece, to timegrid.Hour) {
	n := r.inHour()
	group, r.pieces = r.pieces[:n], r.pieces[n:]
	p := group[0]
	to = p.ob.hour
	for n == 1 && len(r.pieces) > 0 {
		next := r.pieces[0]
		if next.ob.handle != p.ob.handle || next.i != p.i || next.ob.hour != to+1 || next.ob.hour.StartMS() >= r.maxt || r.inHour() > 1 {
			break
		}
		to, r.pieces = to+1, r.pieces[1:]
	}
	return group, to
}

// inHour is how many of the pieces that are left are of the first one's hour.
func (r *Runs) inHour() int {
	n := 1
	for n < len(r.pieces) && r.pieces[n].ob.hour == r.pieces[0].ob.hour {
		n++
	}
	return n
}

// decoded says what columns hold: a chunk of a compaction has many hours, and is decoded once for consecutive ones.
type decoded struct {
	h          *handle
	i          int
	mint, maxt int64
}

// source is a piece with its rows of an hour.
type source struct {
	rows
	cols chunk.Columns
	last decoded
	// counted is the chunk and series whose cached rows were counted.
	counted decoded
	buf     struct{ t, st []int64 }
}

// rows are samples in columns. They may share memory with the cache and must not be changed.
type rows struct {
	t       []int64 // milliseconds; some are equal if doubles is set
	ns      []int64 // the same in nanoseconds; nil when t is exact
	v       []float64
	st      []int64                     // nil when no start is known
	h       []*histogram.FloatHistogram // in place of v
	doubles bool
}

// maxAtOnce is how many pieces of an hour are decoded for all hours of a query at once; of more, which are series of
// that many agents with equal labels, only the hour is decoded, so that their rows take little memory.
const maxAtOnce = 16

// fill gives a the rows of one of n pieces of an hour, or of a single one and its chunk's hours until to; none when it can't be
// read.
func (r *Runs) fill(a *source, p piece, to timegrid.Hour, n int) {
	a.rows = rows{}
	if r.err != nil || r.cached(a, p, to) {
		return
	}
	mint, maxt := r.mint, r.maxt
	if n > maxAtOnce {
		mint, maxt = max(mint, p.ob.hour.StartMS()), min(maxt, p.ob.hour.EndMS())
	}
	if !r.decode(a, p, mint, maxt) {
		return
	}
	c := cut(&a.cols, p.ob.hour, to)
	a.buf.t = slices.Grow(a.buf.t[:0], len(c.T))
	for i, ns := range c.T {
		a.buf.t = append(a.buf.t, timegrid.Millisecond(ns))
		a.doubles = a.doubles || i > 0 && a.buf.t[i] == a.buf.t[i-1]
	}
	a.t, a.ns, a.v, a.h = a.buf.t, c.T, c.V, histograms(c.H, p.ob.x.meta(p.i).typ)
	if c.Start != nil {
		a.buf.st = a.buf.st[:0]
		for _, ns := range c.Start {
			a.buf.st = append(a.buf.st, startMS(ns))
		}
		a.st = a.buf.st
	}
}

// cached takes the rows of a piece from decoded columns that are cached, without copying; false when it can't.
func (r *Runs) cached(a *source, p piece, to timegrid.Hour) bool {
	ob := p.ob
	// A chunk that was found damaged gives no rows at all, also where some of them are cached, so that every series
	// of it lacks the same.
	if ob.held == nil || ob.broken.Load() {
		return false
	}
	c := ob.have(p.i, firstNS(r.mint), lastNS(r.maxt))
	if c == nil || c.ms == nil {
		return false
	}
	// A chunk of many hours comes once for each of them, and its samples count once.
	if l := a.counted; l.h != ob.handle || l.i != p.i {
		a.counted = decoded{h: ob.handle, i: p.i}
		// Cached samples count as well, so that a query meets its limit whether or not others ran before.
		if r.err = ob.q.decoded(len(c.v)); r.err != nil {
			return true
		}
	}
	a.rows = c.rows(ob.hour, to)
	return true
}

// decode fills the columns of a; it is false when there is nothing to read.
func (r *Runs) decode(a *source, p piece, mint, maxt int64) bool {
	ob := p.ob
	if ob.broken.Load() {
		return false
	}
	// Decoded from an earlier time on also serves: the rows before are cut off.
	if l := a.last; l.h != ob.handle || l.i != p.i || l.mint > mint || l.maxt != maxt {
		n, err := ob.handle.samples(p.i, mint, maxt, &a.cols)
		a.last = decoded{ob.handle, p.i, mint, maxt}
		if err != nil {
			a.last = decoded{}
			ob.corrupt(err)
			return false
		}
		if r.err = ob.q.decoded(n); r.err != nil {
			return false
		}
	}
	return true
}

func histograms(h []series.Histogram, typ series.Type) []*histogram.FloatHistogram {
	if h == nil {
		return nil
	}
	out := make([]*histogram.FloatHistogram, len(h))
	for i := range h {
		out[i] = samples.FloatHistogram(&h[i], typ)
	}
	return out
}

func startMS(ns int64) int64 {
	if ns == 0 {
		return 0
	}
	return timegrid.Millisecond(ns)
}
