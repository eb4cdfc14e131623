package live

import (
	"container/heap"
	"crypto/sha256"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Estimates of heap bytes beside the columns.
const (
	batchOverhead   = 360
	segmentOverhead = 232
	shapeOverhead   = 256
	groupOverhead   = 128
	placeBytes      = 24
	seriesOverhead  = 208
	ghostBytes      = 240
)

// Store of accepted batches.
type Store struct {
	cfg Config

	mu      sync.RWMutex
	version uint64
	boots   map[identity.Boot]*bootIndex
	shapes  map[[sha256.Size]byte]*shape
	series  map[uint32]*series
	byHash  map[uint64][]uint32
	index   postings
	nextID  uint32
	strings map[string]string // units

	full    byAge // batches with columns
	ghosts  byAge // identities without columns
	late    byAge // batches with columns before the window that no published set covers
	removed []*batch
	bytes   int64
	samples int64
	open    map[uint64]int // snapshots by version

	// lostThrough is the newest sample time that was evicted for memory, milliseconds.
	lostThrough int64
	// lateLost is the same of batches that no published set covered.
	lateLost   int64
	losses     []lateLoss
	lossesPast int64 // the newest of those beyond the bound
	cover      Cover
	hasher     shapeHasher
	builder    labels.ScratchBuilder
}

// New makes an empty store.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Store{
		cfg:         cfg,
		boots:       map[identity.Boot]*bootIndex{},
		shapes:      map[[sha256.Size]byte]*shape{},
		series:      map[uint32]*series{},
		byHash:      map[uint64][]uint32{},
		index:       newPostings(),
		strings:     map[string]string{},
		open:        map[uint64]int{},
		lostThrough: math.MinInt64,
		lateLost:    math.MinInt64,
		lossesPast:  math.MinInt64,
		builder:     labels.NewScratchBuilder(16),
	}, nil
}

// Horizon is the oldest sample time that is kept at now, milliseconds.
func (s *Store) Horizon(now time.Time) int64 { return now.Add(-s.cfg.History).UnixMilli() }

// Known reports whether the identity is here, with or without its columns.
func (s *Store) Known(id identity.Batch) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	x := s.boots[id.BootOf()]
	return x != nil && x.find(id.SeqStart, id.SeqEnd) != nil
}

// Insert adds a batch; b is copied. The identity of b must be a's. A repeat changes
// nothing; an identity that is here without columns (Note) gets them. Errors:
// *ConflictError, *MismatchError.
func (s *Store) Insert(a Accepted, b *frame.Batch, now time.Time) (Outcome, error) {
	if b.Identity != a.Identity {
		return 0, &MismatchError{Manifest: a.Identity, Frame: b.Identity}
	}
	a.MaxTime = maxTime(b)
	maxT, _ := floorMS(a.MaxTime)
	hours := hoursOf(b)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	late := maxT < s.Horizon(now)
	if late && !s.missing(a.Identity, hours) {
		return Expired, nil
	}
	old, err := s.known(a)
	if err != nil {
		return 0, err
	}
	if old != nil && (old.shape != nil || old.removed.Load() != 0) {
		return Repeat, nil
	}
	s.version++
	nb := old
	if nb == nil {
		nb = &batch{Accepted: a, maxT: maxT, added: s.version}
		s.place(nb)
	} else {
		s.unghost(nb)
		nb.maxT, nb.added = maxT, s.version
	}
	nb.hours, nb.late = hours, late
	s.fill(nb, b)
	s.shrink()
	return Inserted, nil
}

// Note makes an identity known whose frame is not (or not yet) readable: it masks
// what it wins of others. A later Insert gives it columns.
func (s *Store) Note(a Accepted, now time.Time) (Outcome, error) {
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
	nb := &batch{Accepted: a, maxT: maxT, added: s.version}
	s.place(nb)
	heap.Push(&s.ghosts, nb)
	s.bytes += ghostBytes
	return Inserted, nil
}

// known finds the identity; a *ConflictError when it is here with another hash.
func (s *Store) known(a Accepted) (*batch, error) {
	x := s.boots[a.Identity.BootOf()]
	if x == nil {
		return nil, nil
	}
	old := x.find(a.Identity.SeqStart, a.Identity.SeqEnd)
	if old != nil && old.SHA256 != a.SHA256 {
		return nil, &ConflictError{Identity: a.Identity, Have: old.SHA256, Got: a.SHA256}
	}
	return old, nil
}

// place enters the identity into its boot and settles who wins what.
func (s *Store) place(b *batch) {
	boot := b.Identity.BootOf()
	x := s.boots[boot]
	if x == nil {
		x = &bootIndex{}
		s.boots[boot] = x
	}
	x.intersecting(b, func(o *batch) {
		if b.wins(o) {
			o.addRival(b, s.version)
		} else {
			b.addRival(o, s.version)
		}
	})
	x.add(b)
}

// fill copies the columns of f into b.
func (s *Store) fill(b *batch, f *frame.Batch) {
	sh := s.shapeOf(f)
	sh.batches++
	b.shape = sh
	b.bytes = batchOverhead
	s.bytes += batchOverhead
	first := b.Identity.SeqStart
	for i := range f.Groups {
		g := &f.Groups[i]
		seg := newSegment(b, first, g)
		first += uint64(len(g.Series)) * uint64(len(g.Timestamps))
		sg := sh.groups[i]
		if n := len(sg.segments); n > 0 {
			seg.shareStarts(sg.segments[n-1])
		}
		n := seg.bytes()
		b.bytes += n
		s.bytes += n
		sg.insert(seg)
		s.merge(sg)
	}
	s.samples += int64(b.Identity.Count())
	heap.Push(s.heapOf(b), b)
}

func (s *Store) seriesOf(ls labels.Labels) (uint32, *series) {
	h := ls.Hash()
	for _, id := range s.byHash[h] {
		if ser := s.series[id]; labels.Equal(ser.labels, ls) {
			return id, ser
		}
	}
	id := s.nextID
	s.nextID++
	ser := &series{labels: ls}
	ls.Range(func(l labels.Label) { ser.bytes += int64(len(l.Name)+len(l.Value)) + 6 })
	ser.bytes += seriesOverhead
	s.bytes += ser.bytes
	s.series[id] = ser
	s.byHash[h] = append(s.byHash[h], id)
	s.index.add(id, ls)
	return id, ser
}

func (s *Store) dropSeries(id uint32, ser *series) {
	delete(s.series, id)
	s.bytes -= ser.bytes
	h := ser.labels.Hash()
	if ids := slices.DeleteFunc(s.byHash[h], func(o uint32) bool { return o == id }); len(ids) == 0 {
		delete(s.byHash, h)
	} else {
		s.byHash[h] = ids
	}
	s.index.remove(id)
}

// maxInterned bounds the table of units.
const maxInterned = 10_000

func (s *Store) intern(v string) string {
	if have, ok := s.strings[v]; ok {
		return have
	}
	v = string([]byte(v)) // not a part of a frame's buffer
	if len(s.strings) < maxInterned {
		s.strings[v] = v
	}
	return v
}

func maxTime(b *frame.Batch) int64 {
	t := int64(math.MinInt64)
	for i := range b.Groups {
		if ts := b.Groups[i].Timestamps; len(ts) > 0 {
			t = max(t, ts[len(ts)-1])
		}
	}
	return t
}

// Stats of a store.
type Stats struct {
	// Batches with columns; Late of them lie before the window and are in no published set.
	Batches, Late          int
	Ghosts, Series, Shapes int
	Samples, Bytes         int64
}

// Stats counts what is kept. Bytes is an estimate of heap bytes.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Stats{
		Batches: len(s.full) + len(s.late), Late: len(s.late), Ghosts: len(s.ghosts), Series: len(s.series), Shapes: len(s.shapes),
		Samples: s.samples, Bytes: s.bytes,
	}
}
