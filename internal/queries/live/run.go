package live

import (
	"cmp"
	"slices"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// Runs reads a series in time order. Not for concurrent use.
//
// Of several samples of one series in the same millisecond one counts: the one with the greatest time in
// nanoseconds; of equal ones that of the batch that was accepted first; within a batch the one with the smallest
// sequence number.
type Runs struct {
	series     *Series
	next       int
	mint, maxt int64
	before     *histogram.FloatHistogram
}

// Runs starts at mint and leaves out samples after maxt (milliseconds).
func (s *Series) Runs(mint, maxt int64) Runs { return Runs{series: s, mint: mint, maxt: maxt} }

// Reset starts again, on s.
func (r *Runs) Reset(s *Series, mint, maxt int64) { *r = s.Runs(mint, maxt) }

// Next returns the next run of samples that is not empty; false at the end.
func (r *Runs) Next() (samples.Run, bool) {
	cells := r.series.cells
	for r.next < len(cells) {
		first := r.next
		// Segments that overlap in time are read together; a segment on its own is returned as it is, without
		// copying.
		end := cells[first].view.maxT()
		r.next++
		for r.next < len(cells) && cells[r.next].view.minT() <= end {
			end = max(end, cells[r.next].view.maxT())
			r.next++
		}
		plain := r.next == first+1 && cells[first].view.plain
		// Of histograms the last sample before the range is needed: it shows whether the first one in the range is
		// a reset.
		if end < r.mint && !(plain && cells[first].view.hists != nil) {
			r.before = nil
			continue
		}
		var run samples.Run
		if plain {
			run = cells[first].whole()
		} else {
			run = gather(cells[first:r.next], r.series.snap)
		}
		run.Before, r.before = r.before, run.Last()
		run.Cut(r.mint, r.maxt)
		if len(run.T) > 0 {
			return run, true
		}
	}
	return samples.Run{}, false
}

// SkipTo lets Next leave out segments that end before t.
func (r *Runs) SkipTo(t int64) {
	r.mint = max(r.mint, t)
	cells := r.series.cells
	if r.next < len(cells) && cells[r.next].view.maxT() < t {
		// Segments are sorted by minT, so those that may end before t are found by search; they are skipped one by
		// one, as an earlier one may end later.
		i := sort.Search(len(cells)-r.next, func(i int) bool { return cells[r.next+i].view.minT() > t }) + r.next
		for j := r.next; j < i; j++ {
			// The last one of histograms is left to Next, which remembers its last sample.
			if cells[j].view.maxT() >= t || j+1 == i && cells[j].view.hists != nil {
				break
			}
			r.next, r.before = j+1, nil
		}
	}
}

// whole returns the cell's column without copying it.
func (c cell) whole() samples.Run {
	rows := len(c.view.ms)
	from, to := int(c.pos)*rows, (int(c.pos)+1)*rows
	run := samples.Run{T: c.view.ms, ST: c.view.start(c.pos)}
	if c.view.hists != nil {
		run.H = c.view.hists[from:to]
	} else {
		run.V = c.view.values[from:to]
	}
	return run
}

// record is one sample with everything that decides between samples of one millisecond.
type record struct {
	ms    int64
	sub   int32
	batch *batch
	seq   uint64
	st    int64
	v     float64
	h     *histogram.FloatHistogram
}

// before orders records so that of several in one millisecond the first is the one that counts.
func (a *record) before(b *record) int {
	if c := cmp.Or(cmp.Compare(a.ms, b.ms), cmp.Compare(b.sub, a.sub)); c != 0 {
		return c
	}
	if a.batch != b.batch {
		if a.batch.Wins(b.batch.Claim) {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.seq, b.seq)
}

// gather merges overlapping segments. It leaves out what the snapshot does not see, what another identity has won,
// and what is published.
func gather(cells []cell, snap *Snapshot) samples.Run {
	version := snap.version
	var recs []record
	kinds := [2]bool{}
	for _, c := range cells {
		seg := c.view.segment
		rows := len(seg.ms)
		for _, p := range seg.parts {
			if !p.batch.visible(version) {
				continue
			}
			contested := p.batch.overlaps.Load() != nil
			published := snap.published(p.batch)
			for row := p.row; row < p.row+p.rows; row++ {
				seq := p.seq(c.pos, row)
				if contested && p.batch.masked(seq, version) || published.holds(seg.ms[row], seq) {
					continue
				}
				rec := record{ms: seg.ms[row], sub: seg.subOf(row), batch: p.batch, seq: seq, st: seg.start(c.pos)}
				if seg.hists != nil {
					rec.h = seg.hists[int(c.pos)*rows+row]
					kinds[1] = true
				} else {
					rec.v = seg.values[int(c.pos)*rows+row]
					kinds[0] = true
				}
				recs = append(recs, rec)
			}
		}
	}
	// The order puts the record that counts first in its millisecond, and CompactFunc keeps the first.
	slices.SortFunc(recs, func(a, b record) int { return a.before(&b) })
	recs = slices.CompactFunc(recs, func(a, b record) bool { return a.ms == b.ms })
	run := samples.Run{T: make([]int64, len(recs)), STs: make([]int64, len(recs))}
	if kinds[0] {
		run.V = make([]float64, len(recs))
	}
	if kinds[1] {
		run.H = make([]*histogram.FloatHistogram, len(recs))
	}
	for i := range recs {
		run.T[i], run.STs[i] = recs[i].ms, recs[i].st
		if run.V != nil {
			run.V[i] = recs[i].v
		}
		if run.H != nil {
			run.H[i] = recs[i].h
		}
	}
	return run
}
