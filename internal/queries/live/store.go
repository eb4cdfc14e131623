package live

import (
	"container/heap"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/series/shapes"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Estimates of heap bytes besides the columns. Those of maps are what an entry takes after many others have come
// and gone (TestMemoryBoundHolds).
const (
	batchOverhead    = 340
	segmentOverhead  = 256
	partBytes        = 40
	shapeOverhead    = 256
	groupOverhead    = 200
	placeBytes       = 24
	seriesOverhead   = 200
	labelOverhead    = 6 // of a label: its lengths, and its entry in the list of series
	placeholderBytes = 280
	overlapOverhead  = 32
	overlapSize      = 24
)

// Store holds accepted batches.
type Store struct {
	cfg Config

	mu      sync.RWMutex
	version uint64
	boots   map[identity.Boot]*bootIndex
	shapes  *shapes.Table[shape]
	series  map[uint32]*storedSeries
	byHash  map[uint64]uint32 // the newest series of a hash, which names the one before it
	index   postings
	nextID  uint32
	means   []meaning // types and units of series; only grows
	meanIDs map[meaning]uint32
	helps   map[string]*help // by metric name

	full         batchHeap // batches with columns, the oldest first
	placeholders batchHeap // identities without columns
	late         batchHeap // batches with columns before the window that no block has
	lateHours    lateHours
	newest       batchHeap // all batches with columns, the newest first
	removed      []*batch
	bytes        int64
	helpBytes    int64 // of bytes
	seriesHeld   int   // series of batches with columns
	samples      int64
	agents       map[string]*agent
	heavy        map[string]*agent // those beyond their share of a bound
	open         map[uint64]int    // snapshots by version

	filling []*shapeGroup // those that may have windows to close in time; the one that waits longest first
	clock   int64         // milliseconds; of the last Insert or Expire

	packer  packer
	packed  uint64 // samples, so far
	held    int64  // bytes of packed values
	copied  uint64 // samples that merging segments copied, so far
	lost    losses
	evicted Evicted
	cover   Cover
	builder labels.ScratchBuilder
}

// New makes an empty store.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.PackAt == 0 {
		cfg.PackAt = cfg.MaxBytes / 2
	}
	if cfg.LossBytes <= 0 {
		cfg.LossBytes = maxLossBytes
	}
	return &Store{
		cfg:          cfg,
		lost:         losses{max: cfg.LossBytes},
		boots:        map[identity.Boot]*bootIndex{},
		shapes:       shapes.NewTable[shape](),
		series:       map[uint32]*storedSeries{},
		byHash:       map[uint64]uint32{},
		index:        newPostings(),
		meanIDs:      map[meaning]uint32{},
		helps:        map[string]*help{},
		full:         batchHeap{slot: slotRole, before: older},
		placeholders: batchHeap{slot: slotRole, before: older},
		late:         batchHeap{slot: slotRole, before: older},
		lateHours:    lateHours{},
		newest:       batchHeap{slot: slotNewest, before: newer},
		agents:       map[string]*agent{},
		heavy:        map[string]*agent{},
		open:         map[uint64]int{},
		builder:      labels.NewScratchBuilder(16),
	}, nil
}

// Horizon is the oldest sample time that is kept at now, in milliseconds.
func (s *Store) Horizon(now time.Time) int64 { return now.Add(-s.cfg.History).UnixMilli() }

// Known reports whether the identity is here, with or without its columns.
func (s *Store) Known(id identity.Batch) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	x := s.boots[id.BootOf()]
	return x != nil && x.find(id.SeqStart, id.SeqEnd) != nil
}

// Shows reports whether the batch is here with its columns.
func (s *Store) Shows(id identity.Batch) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	x := s.boots[id.BootOf()]
	if x == nil {
		return false
	}
	b := x.find(id.SeqStart, id.SeqEnd)
	return b != nil && b.columns()
}

// Insert adds a batch; b is copied. The identity of b must be a's. A repeat changes nothing; a placeholder (Note)
// gets its columns. Errors: *ConflictError, *MismatchError.
func (s *Store) Insert(a accepted.Batch, b *frame.Batch, now time.Time) (Outcome, error) {
	if b.Identity != a.Identity {
		return 0, &MismatchError{Manifest: a.Identity, Frame: b.Identity}
	}
	var minTime int64
	// Times and hours need a walk over all timestamps, so they are computed before the lock is taken.
	minTime, a.MaxTime = timesOf(b)
	minT, _ := floorMS(minTime)
	maxT, _ := floorMS(a.MaxTime)
	hours := hoursOf(b)

	s.mu.Lock()
	defer s.mu.Unlock()
	// First, so that what has expired neither counts against the bounds nor conflicts with the new batch.
	s.expire(now)
	late := maxT < s.Horizon(now)
	if late && !s.missing(a.Identity, hours) {
		return Expired, nil
	}
	old, err := s.known(a)
	if err != nil {
		return 0, err
	}
	// Only a placeholder of Note is filled. One that stayed after an eviction has had its columns.
	if old != nil && (old.shape != nil || old.removed.Load() != 0) {
		return Repeat, nil
	}
	s.version++
	nb := old
	if nb == nil {
		nb = &batch{Claim: a.Claim(), sha: a.FrameSHA256, added: s.version}
		s.place(nb)
	} else {
		s.dropPlaceholder(nb)
		// Open snapshots of earlier versions must not see the columns that are filled in now.
		nb.added = s.version
	}
	nb.minT, nb.maxT, nb.hours, nb.late = minT, maxT, hours, late
	s.fill(nb, b)
	s.learn(a, b)
	s.shrink(now)
	return Inserted, nil
}

// Note makes an identity known whose frame is not readable, or not yet: it masks what it wins of others. A later
// Insert gives it columns.
func (s *Store) Note(a accepted.Batch, now time.Time) (Outcome, error) {
	maxT, _ := floorMS(a.MaxTime)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	if maxT < s.Horizon(now) {
		return Expired, nil
	}
	if old, err := s.known(a); old != nil || err != nil {
		return Repeat, err
	}
	s.version++
	nb := &batch{Claim: a.Claim(), sha: a.FrameSHA256, maxT: maxT, added: s.version}
	s.place(nb)
	s.makePlaceholder(nb)
	return Inserted, nil
}

// known finds the identity; a *ConflictError when it is here with another hash.
func (s *Store) known(a accepted.Batch) (*batch, error) {
	x := s.boots[a.Identity.BootOf()]
	if x == nil {
		return nil, nil
	}
	old := x.find(a.Identity.SeqStart, a.Identity.SeqEnd)
	if old != nil && old.sha != a.FrameSHA256 {
		return nil, &ConflictError{Identity: a.Identity, Have: old.sha, Got: a.FrameSHA256}
	}
	return old, nil
}

// place enters the identity into its boot and decides who wins the sequence numbers that it shares with others.
func (s *Store) place(b *batch) {
	boot := b.Identity.BootOf()
	x := s.boots[boot]
	if x == nil {
		boot = identity.Boot{Agent: strings.Clone(boot.Agent), Boot: strings.Clone(boot.Boot)}
		x = &bootIndex{boot: boot}
		s.boots[boot] = x
	}
	// The batches of a boot share its strings.
	b.Identity.Agent, b.Identity.Boot = x.boot.Agent, x.boot.Boot
	x.intersecting(b, func(o *batch) {
		if !b.Wins(o.Claim) {
			b.addOverlap(o, s.version, len(s.open) > 0)
			return
		}
		if o.shape != nil {
			o.shape.disturb(o)
		}
		// The batch that loses is charged for the record of the overlap. If that is b, it happens when b
		// is filled or becomes a placeholder.
		had := o.overlapBytes()
		o.addOverlap(b, s.version, len(s.open) > 0)
		if more := o.overlapBytes() - had; o.columns() {
			o.bytes += more
			s.charge(o.agent, more, 0)
		} else {
			s.bytes += more
		}
	})
	x.add(b)
}

// fill copies the columns of f into b.
func (s *Store) fill(b *batch, f *frame.Batch) {
	b.agent = s.agent(b.Identity.Agent)
	sh := s.shapeOf(f)
	sh.batches++
	b.shape = sh
	if b.overlaps.Load() != nil {
		sh.disturb(b)
	}
	s.hold(sh, b.agent)
	b.bytes = batchOverhead + int64(len(b.hours))*8 + b.overlapBytes()
	s.charge(b.agent, b.bytes, 0)
	first := b.Identity.SeqStart
	for i := range f.Groups {
		g := &f.Groups[i]
		sg := sh.groups[i]
		if sg.width == 0 {
			sg.width = widthOf(g.Timestamps)
		}
		segs := newSegments(b, first, g, sg.width)
		first += uint64(len(g.Series)) * uint64(len(g.Timestamps))
		for _, seg := range segs {
			if n := len(sg.segments); n > 0 {
				seg.shareStarts(sg.segments[n-1])
			}
			seg.charges(func(_ *batch, bytes int64) {
				b.bytes += bytes
				s.charge(b.agent, bytes, 0)
			})
		}
		// Charged before they are added, which gives back to each batch what merging saves.
		s.add(sg, segs)
		s.pack(sg, len(g.Values))
	}
	s.samples += int64(b.Identity.Count())
	heap.Push(s.heapOf(b), b)
	if b.late {
		s.lateHours.add(b)
	}
	heap.Push(&s.newest, b)
	heap.Push(&b.agent.batches, b)
}

// columns reports whether b has its columns.
func (b *batch) columns() bool { return b.shape != nil && b.removed.Load() == 0 }

func (s *Store) seriesOf(ls labels.Labels) (uint32, *storedSeries) {
	h := ls.Hash()
	newest, any := s.byHash[h]
	for id, ok := newest, any; ok; {
		ser := s.series[id]
		if labels.Equal(ser.labels, ls) {
			return id, ser
		}
		id, ok = ser.before, ser.before != id
	}
	// Ids are never reused: snapshots leave out newer series by their id, and lists of ids stay sorted by
	// appending.
	id := s.nextID
	s.nextID++
	ser := &storedSeries{labels: ls, before: id}
	if any {
		ser.before = newest
	}
	ls.Range(func(l labels.Label) { ser.bytes += int32(len(l.Name)+len(l.Value)) + labelOverhead })
	s.series[id] = ser
	s.byHash[h] = id
	ser.bytes += seriesOverhead + int32(s.index.add(id, ls))
	return id, ser
}

func (s *Store) dropSeries(id uint32, ser *storedSeries) {
	s.unchain(id, ser)
	delete(s.series, id)
	if s.index.remove(id) {
		s.dropHelps()
	}
}

// unchain takes a series out of those of its hash.
func (s *Store) unchain(id uint32, ser *storedSeries) {
	h := ser.labels.Hash()
	first := ser.before == id
	if newest := s.byHash[h]; newest == id {
		if first {
			delete(s.byHash, h)
		} else {
			s.byHash[h] = ser.before
		}
		return
	}
	for o := s.byHash[h]; ; o = s.series[o].before {
		if later := s.series[o]; later.before == id {
			later.before = ser.before
			if first {
				later.before = o
			}
			return
		}
	}
}

// timesOf are the times of the first and the last sample, nanoseconds.
func timesOf(b *frame.Batch) (first, last int64) {
	first, last = math.MaxInt64, math.MinInt64
	for i := range b.Groups {
		if ts := b.Groups[i].Timestamps; len(ts) > 0 {
			first, last = min(first, ts[0]), max(last, ts[len(ts)-1])
		}
	}
	return first, last
}

// Stats of a store.
type Stats struct {
	// Batches with columns; Late of them lie before the window and are in no block.
	Batches, Late                int
	Placeholders, Series, Shapes int
	Samples, Bytes               int64
	Evicted                      Evicted
	// Packed counts the samples that were packed so far, and PackedBytes is what those take that are held.
	Packed      uint64
	PackedBytes int64
	// Copied counts the samples that were copied to merge segments so far.
	Copied uint64
}

// Evicted counts batches that were evicted because a bound was exceeded, by reason.
type Evicted struct {
	Future uint64 // they had samples in the far future
	Agent  uint64 // their agent was beyond its share
	Oldest uint64
}

// Stats counts what is kept. Bytes estimates heap bytes, without what only open snapshots see.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Stats{
		Batches: s.full.Len() + s.late.Len(), Late: s.late.Len(), Placeholders: s.placeholders.Len(), Series: len(s.series), Shapes: s.shapes.Len(),
		Samples: s.samples, Bytes: s.bytes, Evicted: s.evicted, Packed: s.packed, PackedBytes: s.held, Copied: s.copied,
	}
}
