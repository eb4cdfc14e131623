package rollup

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/shapes"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// ErrInput: a frame is not what the plan says, or was added twice or not at all.
var ErrInput = errors.New("frame is not an input of the plan")

// Part is one of several disjoint sets of series that together are the hour's. An hour that does not fit into
// memory is built part by part. The zero value is everything.
type Part struct{ Index, Of uint32 }

func (p Part) holds(seriesKey []byte) bool {
	if p.Of <= 1 {
		return true
	}
	h := fnv.New64a()
	h.Write(seriesKey)
	return uint32(h.Sum64()>>32)%p.Of == p.Index
}

// Holds reports whether the series is in the part.
func (p Part) Holds(s *chunk.Series) bool {
	return p.Of <= 1 || p.holds(s.AppendKey(nil))
}

// KeyBytes is the size of a series' identity: agent, labels, type and unit.
func KeyBytes(s *chunk.Series) int { return len(s.AppendKey(nil)) }

// Builder gathers the frames of an hour's inputs, in any order, into raw series. It is not for concurrent use.
type Builder struct {
	hour   timegrid.Hour
	part   Part
	inputs []accepted.Claim
	lost   [][]ledger.Range
	seen   []bool
	counts Counts

	shapes *shapes.Table[shape]
	last   lastShape
	series []*rawSeries
	byKey  map[string]*rawSeries
	text   map[string]string
	// strings are those of the frame whose series are being looked up, interned.
	strings []string
	groups  int
	bytes   int64
	limit   int64 // of bytes; 0 is none
	// shapeBytes are of the table of shapes.
	shapeBytes int64
}

// shapesShare: one part of so many of the limit is for the table of shapes, which every part of the hour needs
// alike. When the table exceeds it, it is cleared; a shape that comes again then gets new groups, which costs a
// place for each of its series.
const shapesShare = 16

// shapeCost approximates the memory of a shape in the table, without its key.
const shapeCost = 64

// NewBuilder makes a builder of a part of hour h. The inputs may include batches of other hours: they take part in
// deciding overlaps.
func NewBuilder(h timegrid.Hour, inputs []accepted.Claim, part Part) *Builder {
	return &Builder{
		hour: h, part: part, inputs: inputs, lost: Lost(inputs), seen: make([]bool, len(inputs)),
		shapes: shapes.NewExactTable[shape](), byKey: map[string]*rawSeries{}, text: map[string]string{},
	}
}

// Lose takes sequence numbers, ascending, away from inputs[i]: they count elsewhere. Call it before Add.
func (b *Builder) Lose(i int, numbers []ledger.Range) {
	if len(numbers) == 0 {
		return
	}
	all := slices.Concat(b.lost[i], numbers)
	slices.SortFunc(all, func(x, y ledger.Range) int { return cmp.Compare(x.Start, y.Start) })
	b.lost[i] = all[:1]
	for _, r := range all[1:] {
		// Ranges that touch stay apart: a search goes by their ends.
		if last := &b.lost[i][len(b.lost[i])-1]; r.Start <= last.End {
			last.End = max(last.End, r.End)
			continue
		}
		b.lost[i] = append(b.lost[i], r)
	}
}

// Limit bounds Bytes: Add fails with *TooLargeError when a frame would exceed it. 0 is no bound.
func (b *Builder) Limit(bytes int64) { b.limit = bytes }

// Bytes estimates the memory of what was added, until the chunks of all resolutions are made.
func (b *Builder) Bytes() int64 { return b.bytes }

// full reports whether the limit is exceeded.
func (b *Builder) full() bool { return b.limit > 0 && b.bytes > b.limit }

func (b *Builder) tooLarge() error { return &TooLargeError{b.limit, b.part.Of} }

// Add copies the records that f, the frame of inputs[i], has in the hour. Errors wrap ErrInput, or are
// *TooLargeError; after an error the builder must not be used.
func (b *Builder) Add(i int, f *frame.Batch) error {
	if i < 0 || i >= len(b.inputs) || b.seen[i] {
		return fmt.Errorf("%w: input %d of %d, or a second time", ErrInput, i, len(b.inputs))
	}
	in := b.inputs[i]
	if f.Identity != in.Identity {
		return fmt.Errorf("%w: frame of %s, input is %s", ErrInput, f.Identity, in.Identity)
	}
	// Sequence numbers follow from positions in the frame, so another number of records would give them
	// wrong ones.
	if n := f.Records(); n != in.Identity.Count() {
		return fmt.Errorf("%w: %s has %d records", ErrInput, in.Identity, n)
	}
	b.seen[i] = true
	sh := b.shapeOf(f)
	if b.full() {
		return b.tooLarge()
	}
	seq := in.Identity.SeqStart
	for k := range f.Groups {
		g := &f.Groups[k]
		b.addGroup(sh.groups[k], i, seq, g)
		seq += uint64(len(g.Series)) * uint64(len(g.Timestamps))
		if b.full() {
			return b.tooLarge()
		}
	}
	return nil
}

// AddElsewhere takes inputs[i] without its frame: none of its records lies in the hour. It only takes part in deciding
// overlaps. All of them are counted by the first part, because only the frame says of which part each is.
func (b *Builder) AddElsewhere(i int) error {
	if i < 0 || i >= len(b.inputs) || b.seen[i] {
		return fmt.Errorf("%w: input %d of %d, or a second time", ErrInput, i, len(b.inputs))
	}
	b.seen[i] = true
	if b.part.Index > 0 {
		return nil
	}
	n, lost := b.inputs[i].Identity.Count(), uint64(0)
	for _, r := range b.lost[i] {
		lost += r.End - r.Start + 1
	}
	b.counts.Inputs, b.counts.Overlapped, b.counts.OtherHours = b.counts.Inputs+n, b.counts.Overlapped+lost, b.counts.OtherHours+n-lost
	return nil
}

// addGroup copies the rows that lie in the hour and counts the others.
func (b *Builder) addGroup(sg *group, input int, first uint64, g *frame.Group) {
	rows, n := len(g.Timestamps), len(sg.kept)
	b.counts.Inputs += uint64(rows) * uint64(n)
	// Timestamps of a group ascend, so the hour's rows are contiguous.
	from := sort.Search(rows, func(k int) bool { return timegrid.HourOfNS(g.Timestamps[k]) >= b.hour })
	to := sort.Search(rows, func(k int) bool { return timegrid.HourOfNS(g.Timestamps[k]) > b.hour })
	lost := b.lost[input]
	// Nearly all batches overlap nothing, and then no record has to be checked by itself.
	if lost == nil {
		b.counts.OtherHours += uint64(n) * uint64(rows-(to-from))
	} else {
		for _, k := range sg.kept {
			for row := range rows {
				switch {
				case within(lost, first+uint64(k)*uint64(rows)+uint64(row)):
					b.counts.Overlapped++
				case row < from || row >= to:
					b.counts.OtherHours++
				}
			}
		}
	}
	if from == to || n == 0 {
		return
	}
	s := &segment{input: input, first: first, rows: rows, from: from, t: append([]int64(nil), g.Timestamps[from:to]...)}
	if len(g.Histograms) > 0 {
		s.h = make([]series.Histogram, 0, n*(to-from))
		for _, k := range sg.kept {
			// Histograms are cloned because the frame's memory is reused for the next one.
			for row := from; row < to; row++ {
				h := &g.Histograms[k*rows+row]
				s.h = append(s.h, h.Clone())
				b.bytes += costOfHistogram(h, sg.rows+row-from < rolledRows)
			}
		}
	} else {
		s.v = make([]float64, 0, n*(to-from))
		for _, k := range sg.kept {
			s.v = append(s.v, g.Values[k*rows+from:k*rows+to]...)
		}
	}
	// Only the first rows of a series cost a row of 1m as well: there are at most 60 of those in an hour.
	b.bytes += int64(n) * int64((to-from)*recordCost+max(0, min(to-from, rolledRows-sg.rows))*rowCost)
	sg.rows += to - from
	for at, k := range sg.kept {
		if t := g.Series[k].StartTime; t != 0 {
			if s.starts == nil {
				s.starts = make([]int64, n)
			}
			s.starts[at] = t
		}
	}
	b.bytes += int64(len(s.starts))*16 + 128
	sg.segments = append(sg.segments, s)
}

// segment is the rows of one group of one batch that lie in the hour.
type segment struct {
	input int
	first uint64 // sequence number of the group's first record
	rows  int    // of the group in its frame
	from  int    // row of the frame that is the first here
	t     []int64
	v     []float64 // by kept series, then row
	h     []series.Histogram
	// starts of the accumulation by kept series; nil when all are unknown.
	starts []int64
}

// seq is the sequence number of row r of the series at place k of the frame's group.
func (s *segment) seq(k, r int) uint64 {
	return s.first + uint64(k)*uint64(s.rows) + uint64(s.from+r)
}

// shape is a table of series that many batches share.
type shape struct{ groups []*group }

// group is one group of a shape with the segments of all its batches.
type group struct {
	id       int
	kept     []int // places in the frame's group that are in this part
	rows     int   // of all segments
	segments []*segment
}

// rawSeries is one series being built.
type rawSeries struct {
	chunk.Series
	name   string // of the metric
	places []place
}

// place is where a series stands in the frames of a shape: At is an index into kept.
type place = shapes.Place[group]

// shapeOf finds the shape of f, or makes it.
func (b *Builder) shapeOf(f *frame.Batch) *shape {
	// Frames of an agent mostly come one after the other and have the same tables.
	last := lastShape{f.TablesVersion(), f.Identity.Agent, nil}
	if b.last.shape != nil && last.tables != 0 && last.tables == b.last.tables && last.agent == b.last.agent {
		return b.last.shape
	}
	last.shape = b.findShape(f)
	b.last = last
	return last.shape
}

// lastShape is that of the last frame.
type lastShape struct {
	tables uint64 // their version; 0 is unknown
	agent  string
	shape  *shape
}

func (b *Builder) findShape(f *frame.Batch) *shape {
	sh := b.shapes.Find(f.Identity.Agent, f)
	if sh != nil {
		return sh
	}
	sh = &shape{groups: make([]*group, len(f.Groups))}
	cost := int64(b.shapes.KeyBytes()) + shapeCost
	if b.shapeBytes += cost; b.limit > 0 && b.shapeBytes > b.limit/shapesShare {
		// Clearing loses no data: groups stay with their series, and only sharing between batches ends.
		b.shapes.Clear()
		b.shapeBytes = cost
	}
	b.shapes.Enter(sh)
	// Each string of the frame is looked up once, not once for each label that refers to it.
	b.strings = slices.Grow(b.strings[:0], len(f.Strings))[:len(f.Strings)]
	clear(b.strings)
	for i := range f.Groups {
		sh.groups[i] = b.newGroup(f, &f.Groups[i])
	}
	return sh
}

func (b *Builder) newGroup(f *frame.Batch, g *frame.Group) *group {
	sg := &group{id: b.groups}
	b.groups++
	var key []byte
	var refs []series.LabelRef
	for j := range g.Series {
		r := &g.Series[j]
		typ := typeOf(r, len(g.Histograms) > 0)
		key = f.AppendKey(key[:0], f.Identity.Agent, r, typ)
		if !b.part.holds(key) {
			continue
		}
		if b.full() { // the caller checks it too, and fails
			return sg
		}
		s := b.byKey[string(key)]
		if s == nil {
			// Only of what this part has: the strings of all others are not counted, and would have no bound.
			s = &rawSeries{}
			s.Agent, s.Type, s.Unit = b.intern(f.Identity.Agent), typ, b.string(f, r.Unit)
			refs = f.AppendRefs(refs[:0], r)
			s.Labels = make([]series.Label, len(refs))
			for i, l := range refs {
				s.Labels[i] = series.Label{Name: b.string(f, l.Name), Value: b.string(f, l.Value)}
			}
			s.name = s.Name()
			b.byKey[string(key)] = s
			b.series = append(b.series, s)
			b.bytes += seriesCost + int64(labelCost*len(key))
		}
		s.places = append(s.places, place{Group: sg, At: uint32(len(sg.kept))})
		sg.kept = append(sg.kept, j)
	}
	b.bytes += int64(len(sg.kept)) * 24
	return sg
}

// string is the interned string i of f; an empty entry of b.strings was not asked for yet.
func (b *Builder) string(f *frame.Batch, i uint32) string {
	if i > 0 && b.strings[i] == "" {
		b.strings[i] = b.intern(f.Strings[i])
	}
	return b.strings[i]
}

// typeOf treats histograms of unknown type as cumulative ones, so that a series has either floats or histograms.
func typeOf(r *series.Ref, histograms bool) series.Type {
	if histograms && r.Type == series.Unknown {
		return series.HistogramCumulative
	}
	return r.Type
}

// intern copies a string out of the frame, once: a substring would keep the whole frame in memory.
func (b *Builder) intern(s string) string {
	if v, ok := b.text[s]; ok {
		return v
	}
	v := string([]byte(s))
	b.text[v] = v
	return v
}
