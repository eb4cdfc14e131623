package live

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// Runs reads a series in time order. What a run refers to is good until the next one. Not for concurrent use.
//
// Of several samples of one series in the same millisecond one counts: the one with the greatest time in
// nanoseconds; of equal ones that of the batch that was accepted first; within a batch the one with the smallest
// sequence number.
type Runs struct {
	series     *Series
	mint, maxt int64
	next       int   // cluster of the series' view
	nexts      []int // clusters of the further views
	before     *histogram.FloatHistogram
	own        buffers
}

// buffers are memory that runs use again.
type buffers struct {
	t, st []int64
	v     []float64
	h     []*histogram.FloatHistogram
	cells []cell
	recs  []record
	// columns of a cluster's segments, and unpacked the memory of those of them that are packed.
	columns, unpacked [][]float64
}

// cell is a column in a cluster.
type cell struct {
	column
	cluster *cluster
}

// Runs starts at mint and leaves out samples after maxt (milliseconds). The range must lie within that of the selection.
func (s *Series) Runs(mint, maxt int64) (r Runs) {
	r.Reset(s, mint, maxt)
	return r
}

// Reset starts again, on s.
func (r *Runs) Reset(s *Series, mint, maxt int64) {
	r.series, r.mint, r.maxt, r.next, r.before = s, mint, maxt, 0, nil
	r.nexts = r.nexts[:0]
	for range s.more {
		r.nexts = append(r.nexts, 0)
	}
}

// Next returns the next run of samples that is not empty; false at the end.
func (r *Runs) Next() (samples.Run, bool) {
	for {
		cells := r.take()
		if len(cells) == 0 {
			return samples.Run{}, false
		}
		end := cells[0].cluster.maxT
		for _, c := range cells[1:] {
			end = max(end, c.cluster.maxT)
		}
		plain := len(cells) == 1 && cells[0].cluster.plain
		// Of histograms the last sample before the range is needed: it shows whether the first one in the range is
		// a reset.
		if end < r.mint && !(plain && cells[0].view.histograms) {
			r.before = nil
			continue
		}
		run := r.read(cells)
		run.Before, r.before = r.before, run.Last()
		run.Cut(r.mint, r.maxt)
		if len(run.T) > 0 {
			return run, true
		}
	}
}

// take returns the next cluster, and the clusters of other views that overlap it; none at the end.
func (r *Runs) take() []cell {
	s := r.series
	out := r.own.cells[:0]
	if len(s.more) == 0 {
		if r.next < len(s.first.view.clusters) {
			out = append(out, cell{s.first, &s.first.view.clusters[r.next]})
			r.next++
		}
	} else {
		end := int64(math.MinInt64)
		for {
			at := -1
			var best *cluster
			for i := range 1 + len(s.more) {
				if c := r.peek(i); c != nil && (best == nil || c.minT < best.minT) {
					at, best = i, c
				}
			}
			if best == nil || len(out) > 0 && best.minT > end {
				break
			}
			end = max(end, best.maxT)
			out = append(out, cell{s.column(at), best})
			*r.nextOf(at)++
		}
	}
	r.own.cells = out
	return out
}

func (r *Runs) nextOf(i int) *int {
	if i == 0 {
		return &r.next
	}
	return &r.nexts[i-1]
}

// peek is the next cluster of column i; nil at its end.
func (r *Runs) peek(i int) *cluster {
	cs := r.series.column(i).view.clusters
	if k := *r.nextOf(i); k < len(cs) {
		return &cs[k]
	}
	return nil
}

// SkipTo lets Next leave out clusters that end before t.
func (r *Runs) SkipTo(t int64) {
	r.mint = max(r.mint, t)
	// The series of several groups are left to Next, which finds out what overlaps.
	if len(r.series.more) > 0 {
		return
	}
	v := r.series.first.view
	rest := v.clusters[r.next:]
	n := sort.Search(len(rest), func(i int) bool { return rest[i].maxT >= t })
	// The last one of histograms is left to Next, which remembers its last sample.
	if v.histograms {
		n--
	}
	if n > 0 {
		r.next, r.before = r.next+n, nil
	}
}

// read returns the samples of clusters that overlap.
func (r *Runs) read(cells []cell) samples.Run {
	if len(cells) > 1 {
		return r.gather(cells)
	}
	c := cells[0]
	if c.cluster.plain {
		return r.whole(c.cluster.segs[0], c.pos)
	}
	p := c.view.planOf(c.cluster)
	if p.bySeq {
		return r.gather(cells)
	}
	run := samples.Run{T: p.t}
	if p.sts == nil {
		run.ST = c.cluster.segs[0].start(c.pos)
	} else {
		r.own.st = r.own.st[:0]
		for _, seg := range p.sts {
			r.own.st = append(r.own.st, c.cluster.segs[seg].start(c.pos))
		}
		run.STs = r.own.st
	}
	if c.view.histograms {
		r.own.h = r.own.h[:0]
	} else {
		r.own.v = r.own.v[:0]
	}
	values := r.columns(c)
	for _, sp := range p.spans {
		if seg := c.cluster.segs[sp.seg]; c.view.histograms {
			from := int(c.pos)*len(seg.ms) + sp.row
			r.own.h = append(r.own.h, seg.hists[from:from+sp.n]...)
		} else {
			r.own.v = append(r.own.v, values[sp.seg][sp.row:sp.row+sp.n]...)
		}
	}
	if c.view.histograms {
		run.H = r.own.h
	} else {
		run.V = r.own.v
	}
	return run
}

// columns of floats of the segments of a cluster.
func (r *Runs) columns(c cell) [][]float64 {
	o := &r.own
	o.columns = o.columns[:0]
	for i, seg := range c.cluster.segs {
		if seg.hists != nil {
			break
		}
		if len(o.unpacked) == i {
			o.unpacked = append(o.unpacked, nil)
		}
		o.columns = append(o.columns, seg.column(c.pos, &o.unpacked[i]))
	}
	return o.columns
}

// whole returns the column of a series, without copying it if it is not packed.
func (r *Runs) whole(s *segment, pos uint32) samples.Run {
	run := samples.Run{T: s.ms, ST: s.start(pos)}
	if rows := len(s.ms); s.hists != nil {
		run.H = s.hists[int(pos)*rows : (int(pos)+1)*rows]
	} else {
		run.V = s.column(pos, &r.own.v)
	}
	return run
}

// rank is what decides which of several rows of one millisecond counts.
type rank struct {
	ms    int64
	sub   int32
	batch *batch
	nth   uint64 // ascending in the batch
}

// before orders rows so that of several in one millisecond the first is the one that counts. Of equal times that of the
// batch that was accepted first counts, and in a batch the first row.
func (a *rank) before(b *rank) int {
	if c := cmp.Or(cmp.Compare(a.ms, b.ms), cmp.Compare(b.sub, a.sub)); c != 0 {
		return c
	}
	if a.batch != b.batch {
		if a.batch.Wins(b.batch.Claim) {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.nth, b.nth)
}

// record is one sample, read for a series alone.
type record struct {
	rank
	st int64
	v  float64
	h  *histogram.FloatHistogram
}

// gather merges clusters of several groups, and those whose sequence numbers decide. It leaves out what the snapshot
// does not see, what another identity has won, and what is published.
func (r *Runs) gather(cells []cell) samples.Run {
	recs := r.own.recs[:0]
	for _, c := range cells {
		values := r.columns(c)
		for i, seg := range c.cluster.segs {
			column := []float64(nil)
			if seg.hists == nil {
				column = values[i]
			}
			recs = c.view.appendRecords(recs, seg, column, c.pos)
		}
	}
	r.own.recs = recs
	if !slices.IsSortedFunc(recs, func(a, b record) int { return a.before(&b.rank) }) {
		slices.SortFunc(recs, func(a, b record) int { return a.before(&b.rank) })
	}
	// The order puts the record that counts first in its millisecond, and CompactFunc keeps the first.
	recs = slices.CompactFunc(recs, func(a, b record) bool { return a.ms == b.ms })
	o := &r.own
	o.t, o.st, o.v, o.h = o.t[:0], o.st[:0], o.v[:0], o.h[:0]
	hists, floats := false, false
	for i := range recs {
		o.t, o.st, o.v, o.h = append(o.t, recs[i].ms), append(o.st, recs[i].st), append(o.v, recs[i].v), append(o.h, recs[i].h)
		hists, floats = hists || recs[i].h != nil, floats || recs[i].h == nil
	}
	run := samples.Run{T: o.t, STs: o.st}
	if floats {
		run.V = o.v
	}
	if hists {
		run.H = o.h
	}
	return run
}

// appendRecords appends those rows of a segment that count, as the series at pos has them; column has its floats.
func (v *view) appendRecords(recs []record, seg *segment, column []float64, pos uint32) []record {
	version := v.snap.version
	shown := v.snap.shownOf(seg)
	from, to := v.rows(seg)
	at := origin{}
	for row := from; row < to; row++ {
		at = seg.origin(row, at.part)
		p := &seg.parts[at.part]
		seq := p.seq(pos, at.k)
		switch shown[at.part].share {
		case nothing:
			continue
		case something:
			if p.batch.masked(seq, version) || holds(shown[at.part].covered, seq) {
				continue
			}
		}
		rec := record{rank: rank{seg.ms[row], seg.subOf(row), p.batch, seq}, st: seg.start(pos)}
		if seg.hists != nil {
			rec.h = seg.hists[int(pos)*len(seg.ms)+row]
		} else {
			rec.v = column[row]
		}
		recs = append(recs, rec)
	}
	return recs
}
