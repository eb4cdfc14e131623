package live

import (
	"math"
	"slices"
	"sort"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// view is a group as a snapshot sees it in a range of time. The series of the group share it: which rows count, and in
// which order, is found out once and not for each of them.
type view struct {
	snap       *Snapshot
	mint, maxt int64
	histograms bool
	clusters   []cluster // ascending, disjoint in time
	agents     agentlabel.Seen

	mu     sync.Mutex // of what is found out when a series first asks
	asked  bool
	within answer
}

// cluster is segments that overlap in time.
type cluster struct {
	segs       []*segment // by minT
	minT, maxT int64
	// whole: every row of its segments counts, but for those of several in one millisecond; plain: and there is one segment.
	whole, plain bool

	plan *plan // nil until it is needed
}

// plan says which rows of a cluster count, in the order of time.
type plan struct {
	t     []int64
	spans []span
	// sts has the segment of each row if their start times differ.
	sts []int
	// bySeq: the sequence numbers of some rows decide, so every series has others.
	bySeq bool
}

// answer to whether series of a group have samples in the range.
type answer uint8

const (
	no answer = iota
	yes
	bySeq // each series must be asked
)

// view of the segments that a group had; nil if none of them has something to show in [mint, maxt].
func (p *Snapshot) view(g *shapeGroup, segs []*segment, mint, maxt int64, hours *coveringHours) *view {
	end := sort.Search(len(segs), func(i int) bool { return segs[i].minT() > maxt })
	var v *view
	for i, seg := range segs[:end] {
		// Of histograms the last segment before the range is kept: its last sample shows whether the first one in
		// the range is a reset.
		if seg.maxT() < mint && (seg.hists == nil || i+1 < end && segs[i+1].minT() < mint) {
			continue
		}
		calm := g.calm(seg, p.version)
		if !calm && !slices.ContainsFunc(seg.parts, func(pt part) bool { return pt.batch.visible(p.version) }) {
			continue
		}
		covered := hours.of(seg)
		share := covered.publishedOf(seg)
		if share == everything {
			continue
		}
		if v == nil {
			v = &view{snap: p, mint: mint, maxt: maxt, histograms: seg.hists != nil, clusters: make([]cluster, 0, end-i)}
		}
		v.add(segs[i:i+1:i+1], share == nothing && !seg.repeats && (calm || seg.unmasked(p.version)))
		v.agents.Merge(p.agentsOf(seg, calm, mint, maxt))
	}
	return v
}

// shows reports that a segment has rows in [mint, maxt] all of which count: then every series of the group has a sample there.
// Where it is false, the batches of the segments decide.
func (p *Snapshot) shows(g *shapeGroup, segs []*segment, mint, maxt int64, hours *coveringHours) bool {
	end := sort.Search(len(segs), func(i int) bool { return segs[i].minT() > maxt })
	// The last ones first: most lists are of a range that ends now.
	for _, seg := range slices.Backward(segs[:end]) {
		if seg.maxT() < mint || !g.calm(seg, p.version) {
			continue
		}
		if from, to := seg.between(mint, maxt); from == to {
			continue
		}
		if c := hours.of(seg); c.publishedOf(seg) == nothing {
			return true
		}
	}
	return false
}

// add adds the next segment by minT; whole says that every row of it counts, as far as it alone tells.
func (v *view) add(seg []*segment, whole bool) {
	n := len(v.clusters)
	if n == 0 || v.clusters[n-1].maxT < seg[0].minT() {
		v.clusters = v.clusters[:n+1]
		c := &v.clusters[n]
		c.segs, c.minT, c.maxT, c.whole, c.plain = seg, seg[0].minT(), seg[0].maxT(), whole, whole
		return
	}
	c := &v.clusters[n-1]
	c.segs, c.maxT, c.whole, c.plain = append(c.segs, seg[0]), max(c.maxT, seg[0].maxT()), c.whole && whole, false
}

// planOf a cluster that is not plain.
func (v *view) planOf(c *cluster) *plan {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.planLocked(c)
}

func (v *view) planLocked(c *cluster) *plan {
	if c.plan == nil {
		p := v.makePlan(c)
		c.plan = &p
	}
	return c.plan
}

// candidate is a row of a segment that may count.
type candidate struct {
	rank
	seg, row int
}

func (v *view) makePlan(c *cluster) (out plan) {
	segs := c.segs
	if c.whole {
		out = v.mergeSegments(segs)
	} else {
		out = v.makeParts(segs)
	}
	if !out.bySeq && slices.ContainsFunc(segs, func(s *segment) bool { return !slices.Equal(s.starts, segs[0].starts) }) {
		for _, sp := range out.spans {
			for range sp.n {
				out.sts = append(out.sts, sp.seg)
			}
		}
	}
	return out
}

// makeParts asks every batch of the segments what of it counts.
func (v *view) makeParts(segs []*segment) plan {
	all := true // rows of all segments count, but for repeats
	shown := make([][]shownPart, len(segs))
	for i, seg := range segs {
		shown[i] = v.snap.shownOf(seg)
		for _, p := range shown[i] {
			all = all && p.share == everything
		}
		all = all && !seg.repeats
	}
	if all {
		return v.mergeSegments(segs)
	}
	return v.sortRows(segs, shown)
}

// mergeSegments merges segments of which every row counts, but for those in the millisecond of a row of another one.
func (v *view) mergeSegments(segs []*segment) (out plan) {
	type head struct{ row, to int }
	heads := make([]head, len(segs))
	total := 0
	for i, seg := range segs {
		heads[i].row, heads[i].to = v.rows(seg)
		total += heads[i].to - heads[i].row
	}
	out.t = make([]int64, 0, total)
	for {
		// The segment with the next row, and the time of the next row of any other.
		at, other := -1, int64(math.MaxInt64)
		for i := range heads {
			h := &heads[i]
			if h.row == h.to {
				continue
			}
			ms := segs[i].ms[h.row]
			switch {
			case at < 0:
				at = i
			case ms == segs[at].ms[heads[at].row]:
				// One of the two counts; the other is passed over.
				if v.candidate(segs, i, h.row).before(&v.candidate(segs, at, heads[at].row).rank) < 0 {
					at, i = i, at
				}
				heads[i].row++
				if h := heads[i]; h.row < h.to {
					other = min(other, segs[i].ms[h.row])
				}
			case ms < segs[at].ms[heads[at].row]:
				other = min(other, segs[at].ms[heads[at].row])
				at = i
			default:
				other = min(other, ms)
			}
		}
		if at < 0 {
			return out
		}
		h, ms := &heads[at], segs[at].ms
		from := h.row
		for h.row++; h.row < h.to && ms[h.row] < other; h.row++ {
		}
		out.t = append(out.t, ms[from:h.row]...)
		out.spans = append(out.spans, span{at, from, h.row - from})
	}
}

func (v *view) candidate(segs []*segment, seg, row int) *candidate {
	s := segs[seg]
	at := uint32(0)
	return &candidate{rank{s.ms[row], s.subOf(row), s.parts[s.origin(row, at).part].batch, uint64(row)}, seg, row}
}

// sortRows is mergeSegments for segments of which some rows do not count.
func (v *view) sortRows(segs []*segment, shown [][]shownPart) (out plan) {
	var rows []candidate
	sorted := true
	for i, seg := range segs {
		from, to := v.rows(seg)
		at := origin{}
		for row := from; row < to; row++ {
			at = seg.origin(row, at.part)
			switch shown[i][at.part].share {
			case nothing:
				continue
			case something:
				return plan{bySeq: true}
			}
			next := candidate{rank{seg.ms[row], seg.subOf(row), seg.parts[at.part].batch, uint64(row)}, i, row}
			sorted = sorted && (len(rows) == 0 || rows[len(rows)-1].ms < next.ms)
			rows = append(rows, next)
		}
	}
	if !sorted {
		slices.SortFunc(rows, func(a, b candidate) int { return a.before(&b.rank) })
		// The order puts the row that counts first in its millisecond, and CompactFunc keeps the first.
		rows = slices.CompactFunc(rows, func(a, b candidate) bool { return a.ms == b.ms })
	}
	out.t = make([]int64, len(rows))
	for i := range rows {
		out.t[i] = rows[i].ms
		out.spans = appendRow(out.spans, rows[i].seg, rows[i].row)
	}
	return out
}

// rows [from, to) of a segment may be wanted. Of histograms those before the range are, too: see Snapshot.view.
func (v *view) rows(seg *segment) (from, to int) {
	from, to = seg.between(v.mint, v.maxt)
	if v.histograms {
		from = 0
	}
	return from, to
}

// has answers whether the series of the group have a sample in the range.
func (v *view) has() answer {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.asked {
		v.within, v.asked = v.answer(), true
	}
	return v.within
}

func (v *view) answer() answer {
	out := no
	for i := range v.clusters {
		c := &v.clusters[i]
		if c.maxT < v.mint {
			continue
		}
		t := c.segs[0].ms
		if !c.plain {
			p := v.planLocked(c)
			if p.bySeq {
				out = bySeq
				continue // a later one may still show that all of them have
			}
			t = p.t
		}
		if from, to := samples.Between(t, v.mint, v.maxt); from < to {
			return yes
		}
	}
	return out
}

// InHours keeps the series that have samples in the range for which they were selected, and returns the hours that may
// have some of them. What the series of a group share is found out once, and no values are read.
func InHours(ls []Series) ([]Series, map[timegrid.Hour]bool) {
	hours, seen := map[timegrid.Hour]bool{}, map[*view]bool{}
	ls = slices.DeleteFunc(ls, func(s Series) bool { return !s.Has() })
	for i := range ls {
		for k := range 1 + len(ls[i].more) {
			v := ls[i].column(k).view
			if seen[v] || v.has() == no {
				continue
			}
			seen[v] = true
			for _, c := range v.clusters {
				// Of histograms a cluster before the range may be there.
				if c.maxT >= v.mint {
					hours[c.segs[0].hour()] = true
				}
			}
		}
	}
	return ls, hours
}

// shownPart is how much of a part of a segment a snapshot shows: everything or nothing if the series of the group do not
// differ in that, something if their sequence numbers decide.
type shownPart struct {
	share   share
	covered []ledger.Range
}

func (p *Snapshot) shownOf(seg *segment) []shownPart {
	out := make([]shownPart, len(seg.parts))
	c := p.covering(seg)
	for i := range seg.parts {
		b := seg.parts[i].batch
		if !b.visible(p.version) {
			continue
		}
		o := &out[i]
		o.share, o.covered = b.unmasked(p.version), c.of(b)
		switch hiddenOf(o.covered, b.Identity) {
		case everything:
			o.share = nothing
		case something:
			o.share = min(o.share, something)
		}
	}
	return out
}
