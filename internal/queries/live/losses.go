package live

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/queries/missing"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Span is an interval of sample time in milliseconds, both ends included.
type Span struct{ Min, Max int64 }

func (s Span) union(o Span) Span { return Span{min(s.Min, o.Min), max(s.Max, o.Max)} }

// losses are the batches that were evicted for memory while no block had them. Each marks the answers that touch
// its samples until a block has it, however old it gets. Successive batches of one boot are one entry. What does
// not fit into the bound is kept as spans of time, which mark more answers, until somebody finds out what blocks
// lack of them.
type losses struct {
	max    int // bound of bytes
	runs   map[lossKey][]lossRun
	bytes  int           // of all runs, estimated
	coarse []Span        // disjoint, ascending
	added  uint64        // counts what was added to coarse
	tally  missing.Tally // of runs
	// shardOf is the shard that rolls an agent up; nil where nobody knows.
	shardOf func(agent string) uint32
	merged  []Span // of all, disjoint and ascending, for snapshots; nil when it must be computed
}

// Bounds of what is recorded of losses.
const (
	maxLossBytes   = 4 << 20
	maxCoarseSpans = 64
	lossRunBytes   = 200 // of an entry, beside its batches and hours
	// maxMerged is how many spans are copied to add one more; beyond it they are computed again for the next
	// snapshot.
	maxMerged = 1000
)

// lossKey is a boot, and the hours that its batches have samples in.
type lossKey struct {
	boot  identity.Boot
	hours string
}

// lossRun is batches of one boot, each beginning where the one before it ends.
type lossRun struct {
	start, next uint64 // sequence numbers: the first, and the one after the last
	counts      []byte // records of each batch, as uvarints
	hours       []timegrid.Hour
	span        Span
	shard       uint32
	batches     int
}

// hourSpan are the hours from the first sample to the last.
func (r *lossRun) hourSpan() missing.Hours {
	return missing.Hours{From: r.hours[0], To: r.hours[len(r.hours)-1]}
}

func keyOf(b *batch) lossKey {
	var text []byte
	for _, h := range b.hours {
		text = binary.AppendVarint(text, int64(h))
	}
	return lossKey{b.Identity.BootOf(), string(text)}
}

// add records the loss of b. When the bound is reached only its times are kept.
func (l *losses) add(b *batch) {
	if l.runs == nil {
		l.runs = map[lossKey][]lossRun{}
	}
	key, span := keyOf(b), Span{b.minT, b.maxT}
	spans := within(b.hours, span)
	// Snapshots hold the slice, so it is copied before it changes.
	if n := len(l.merged); n > 0 && n+len(spans) < maxMerged {
		l.merged = slices.Clone(l.merged)
		for _, s := range spans {
			l.merged = addSpan(l.merged, s, maxMerged)
		}
	} else {
		l.merged = nil
	}
	runs := l.runs[key]
	last := len(runs) - 1
	size := len(binary.AppendUvarint(nil, b.Identity.Count()))
	// Batches of a boot mostly arrive in order, so most losses extend the last run by a byte or two.
	follows := last >= 0 && runs[last].next == b.Identity.SeqStart
	if !follows {
		size += lossRunBytes + 8*len(b.hours)
	}
	if l.bytes+size > l.max {
		l.added++
		for _, s := range spans {
			l.coarse = addSpan(l.coarse, s, maxCoarseSpans)
		}
		return
	}
	l.bytes += size
	if !follows {
		shard := uint32(missing.NoShard)
		if l.shardOf != nil {
			shard = l.shardOf(b.Identity.Agent)
		}
		runs = append(runs, lossRun{start: b.Identity.SeqStart, hours: b.hours, span: span, shard: shard})
		l.runs[key] = runs
		last++
	}
	r := &runs[last]
	r.counts = binary.AppendUvarint(r.counts, b.Identity.Count())
	r.next = b.Identity.SeqEnd + 1
	r.batches++
	l.tally.Add(r.shard, r.hourSpan(), 1)
	r.span = r.span.union(span)
}

// all calls fn for the batches of a run until it returns false, and returns what fn returned last.
func (r *lossRun) all(boot identity.Boot, fn func(identity.Batch) bool) bool {
	start := r.start
	for counts := r.counts; len(counts) > 0; {
		n, size := binary.Uvarint(counts)
		counts = counts[size:]
		if !fn(identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: start, SeqEnd: start + n - 1}) {
			return false
		}
		start += n
	}
	return true
}

// forget drops the runs of which every batch is held.
func (l *losses) forget(held func(identity.Batch, []timegrid.Hour) bool) {
	for key, runs := range l.runs {
		kept := slices.DeleteFunc(runs, func(r lossRun) bool {
			found := r.all(key.boot, func(id identity.Batch) bool { return held(id, r.hours) })
			if found {
				l.tally.Add(r.shard, r.hourSpan(), -r.batches)
				l.bytes -= lossRunBytes + 8*len(r.hours) + len(r.counts)
				// Other losses may overlap these spans, so they can't be cut out; they are computed again.
				l.merged = nil
			}
			return found
		})
		if len(kept) == 0 {
			delete(l.runs, key)
		} else {
			l.runs[key] = kept
		}
	}
}

// Coarse returns the spans of time of losses of which it is not known what they were, and a mark for
// ReplaceCoarse.
func (s *Store) Coarse() ([]Span, uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.lost.coarse), s.lost.added
}

// ReplaceCoarse replaces the spans that Coarse returned with the mark by those of the batches that are neither in memory
// nor in blocks. It does nothing, and returns false, if further losses came since.
func (s *Store) ReplaceCoarse(mark uint64, spans []Span) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.lost
	if l.added != mark {
		return false
	}
	l.coarse, l.merged = nil, nil
	for _, x := range spans {
		l.coarse = addSpan(l.coarse, x, maxCoarseSpans)
	}
	return true
}

// spans returns the times of all losses, disjoint and ascending. The result is never changed afterwards.
func (l *losses) spans() []Span {
	if l.merged != nil || len(l.runs) == 0 && len(l.coarse) == 0 {
		return l.merged
	}
	all := slices.Clone(l.coarse)
	for _, runs := range l.runs {
		for i := range runs {
			all = append(all, within(runs[i].hours, runs[i].span)...)
		}
	}
	slices.SortFunc(all, func(a, b Span) int { return cmp.Compare(a.Min, b.Min) })
	n := 0
	for _, s := range all[1:] {
		if s.Min <= all[n].Max {
			all[n] = all[n].union(s)
			continue
		}
		n++
		all[n] = s
	}
	l.merged = all[:n+1]
	return l.merged
}

// within cuts a span to hours, which ascend; consecutive hours are one span. A batch with a sample now and one in
// a year has lost nothing in between.
func within(hours []timegrid.Hour, s Span) (out []Span) {
	for i, h := range hours {
		if n := len(out); i > 0 && h == hours[i-1]+1 {
			out[n-1].Max = min(h.EndMS(), s.Max)
			continue
		}
		out = append(out, Span{max(h.StartMS(), s.Min), min(h.EndMS(), s.Max)})
	}
	return out
}

// SetShards lets the store say which shards have to roll up what was evicted for memory. Call it before the first
// Insert.
func (s *Store) SetShards(of func(agent string) uint32) { s.lost.shardOf = of }

// LostBatches counts those batches of Lost by the hours of [mint, maxt]; of those that are known by their times alone
// there may be more.
func (p *Snapshot) LostBatches(mint, maxt int64) missing.Summary {
	s := p.store
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := s.lost.tally.In(missing.Hours{From: timegrid.HourOf(mint), To: timegrid.HourOf(maxt)})
	out.AtLeast = len(s.lost.coarse) > 0
	return out
}

// addSpan adds s to a disjoint, ascending list. Beyond most spans the two that are closest to each other become
// one: the list then marks too much, never too little.
func addSpan(list []Span, s Span, most int) []Span {
	i := 0
	for i < len(list) && list[i].Max < s.Min {
		i++
	}
	j := i
	for j < len(list) && list[j].Min <= s.Max {
		s = s.union(list[j])
		j++
	}
	list = slices.Replace(list, i, j, s)
	if len(list) <= most {
		return list
	}
	at, least := 0, uint64(math.MaxUint64)
	for k := range len(list) - 1 {
		if gap := uint64(list[k+1].Min - list[k].Max); gap < least { // unsigned, so it is right even if the difference overflows
			at, least = k, gap
		}
	}
	return slices.Replace(list, at, at+2, list[at].union(list[at+1]))
}

// Lost returns the first and the last time, within [mint, maxt] (milliseconds), of samples that were evicted for
// memory and that no block was known to have when the snapshot was opened; false when there are none.
func (p *Snapshot) Lost(mint, maxt int64) (Span, bool) {
	i, _ := slices.BinarySearchFunc(p.lost, mint, func(s Span, t int64) int {
		if s.Max < t {
			return -1
		}
		return 1
	})
	var out Span
	any := false
	for _, s := range p.lost[i:] {
		if s.Min > maxt {
			break
		}
		s = Span{max(s.Min, mint), min(s.Max, maxt)}
		if any {
			s = out.union(s)
		}
		out, any = s, true
	}
	return out, any
}
