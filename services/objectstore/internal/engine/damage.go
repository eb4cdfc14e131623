package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// Damage is a place of the store whose bytes do not match their checksum or are missing. It is
// remembered until no object needs the place any more. The bytes are not touched before Repair.
type Damage struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"` // bytes; 0: something is missing there
	Reason string `json:"reason"`
	// Bucket, Key and Version name the object, where they are known.
	Bucket  string `json:"bucket,omitempty"`
	Key     string `json:"key,omitempty"`
	Version string `json:"version,omitempty"`
	// First and Last bound the sequences of lost writes whose keys are unknown; 0: none.
	First uint64 `json:"first_lost,omitempty"`
	Last  uint64 `json:"last_lost,omitempty"`
	// Declared: a record of the log lists this damage, so a rebuild of the index finds it even
	// when the damaged place is gone.
	Declared bool `json:"declared,omitempty"`
}

// of names the object of a record in a damage.
func (d Damage) of(bucket, record string) Damage {
	d.Bucket = bucket
	d.Key, d.Version = clientKey(record)
	return d
}

func (d Damage) err() error { return &CorruptError{d.File, d.Offset, d.Reason} }

// maxDamagePerFile bounds the places that are remembered per file; further ones widen the last.
const maxDamagePerFile = 256

// damages are the known damaged places. A read is never refused because of them: bytes that
// verify are served. They inform those who do not read the bytes, which are HEAD, LIST,
// reclaiming and conditions.
type damages struct {
	kept    atomic.Int64 // places; readers take the lock only when there is one
	mu      sync.RWMutex
	places  map[string][]Damage // by file
	unknown uint64              // the last lost write whose key is unknown; 0: none
}

// add remembers a place. The result is the place as it is remembered, and false when nothing
// changed.
func (s *damages) add(d Damage) (Damage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.places[d.File]
	for i, k := range list {
		if k.Offset == d.Offset {
			// The same place is found again by every read. It replaces the known one only when it
			// says more: a longer range of lost writes, or that the log lists it.
			if d.Last < k.Last || d.Last == k.Last && d.Declared == k.Declared {
				return k, false
			}
			list[i] = d
			s.unknown = max(s.unknown, d.Last)
			return d, true
		}
	}
	if n := len(list); n >= maxDamagePerFile {
		// Widening keeps the memory bounded and claims too much rather than too little.
		w := &list[n-1]
		end := max(w.Offset+w.Length, d.Offset+d.Length)
		w.Offset = min(w.Offset, d.Offset)
		w.Length, w.Reason, w.Bucket, w.Key, w.Version = end-w.Offset, "many damaged places", "", "", ""
		if d.Last > 0 {
			w.First, w.Last = d.First, max(w.Last, d.Last)
			s.unknown = max(s.unknown, d.Last)
		}
		return *w, true
	}
	if s.places == nil {
		s.places = map[string][]Damage{}
	}
	s.places[d.File] = append(list, d)
	s.unknown = max(s.unknown, d.Last)
	s.kept.Add(1)
	return d, true
}

// remove forgets the places of a file for which gone holds, and returns them.
func (s *damages) remove(file string, gone func(Damage) bool) (removed []Damage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places[file] = slices.DeleteFunc(s.places[file], func(d Damage) bool {
		if !gone(d) {
			return false
		}
		removed = append(removed, d)
		return true
	})
	if len(s.places[file]) == 0 {
		delete(s.places, file)
	}
	s.kept.Add(-int64(len(removed)))
	// The highest remaining sequence: one of the removed places may have had the maximum.
	s.unknown = 0
	for _, list := range s.places {
		for _, d := range list {
			s.unknown = max(s.unknown, d.Last)
		}
	}
	return removed
}

// in says whether a file has a damaged place.
func (s *damages) in(file string) bool {
	if s.kept.Load() == 0 {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.places[file]) > 0
}

// list gives the damaged places of a file.
func (s *damages) list(file string) []Damage {
	if s.kept.Load() == 0 {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.places[file])
}

// of gives the damage of an entry's record or body; nil when none is known.
func (s *damages) of(x *entry) *Damage {
	if s.kept.Load() == 0 {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, d := range s.places[segName(x.pos.seg)] {
		if d.Offset < x.pos.off+x.recordSize() && x.pos.off < d.Offset+d.Length {
			return &d
		}
	}
	for _, f := range x.files {
		for _, d := range s.places[body.Name(f)] {
			return &d
		}
	}
	return nil
}

func (s *damages) all() (list []Damage) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, file := range slices.Sorted(maps.Keys(s.places)) {
		list = append(list, s.places[file]...)
	}
	return list
}

func (s *damages) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places, s.unknown = nil, 0
	s.kept.Store(0)
}

// lastUnknown is the sequence of the last lost write whose key is unknown; 0: every key is known.
func (s *damages) lastUnknown() uint64 {
	if s.kept.Load() == 0 {
		return 0
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.unknown
}

func damageKey(d Damage) []byte {
	return spaceKey(spaceDamage, fmt.Sprintf("%s@%016x", d.File, d.Offset))
}

// quarantine remembers a damaged place: it is logged, counted, listed on the admin address, and
// stored in the index, so that a restart knows it.
func (e *Engine) quarantine(d Damage) {
	d, added := e.damages.add(d)
	if !added {
		return
	}
	e.opt.Log.Error("damage was found; everything else is served", "file", d.File, "offset", d.Offset, "length", d.Length,
		"reason", d.Reason, "bucket", d.Bucket, "key", d.Key, "version", d.Version, "first_lost", d.First, "last_lost", d.Last)
	b, err := json.Marshal(d)
	if err == nil && e.idx.healthy() == nil {
		err = e.idx.db.Set(damageKey(d), b, pebble.NoSync)
	}
	if err != nil {
		e.opt.Log.Warn("damage is not kept in the index, and will be found again", "error", err)
	}
}

// quarantineRead remembers damage that a read found, unless the object was replaced meanwhile:
// then the place belongs to a record that nothing needs.
func (e *Engine) quarantineRead(x *entry, bucket, record string, err error) {
	var bad *CorruptError
	if !errors.As(err, &bad) || x.flags&flagLost != 0 {
		return
	}
	if now, ierr := e.idx.record(bucket, record); ierr != nil || now == nil || now.pos != x.pos {
		return
	}
	d := Damage{File: bad.File, Offset: bad.Offset, Length: x.recordSize(), Reason: bad.Reason}.of(bucket, record)
	if strings.HasPrefix(d.File, body.Dir) {
		// One entry per body: its blocks are not tracked one by one.
		d.Offset, d.Length = 0, 0
		d.Reason = fmt.Sprintf("at byte %d: %s", bad.Offset, bad.Reason)
	}
	e.quarantine(d)
}

// declaration makes the record that lists the damages with unknown keys. They are written into
// the log because a later rebuild of the index may not find the damaged place again, for example
// after its segment was reclaimed, and would then decide conditions that are undecidable.
func (e *Engine) declaration() (record, error) {
	list := []Damage{}
	for _, d := range e.damages.all() {
		if d.Last > 0 {
			d.Declared = true
			list = append(list, d)
		}
	}
	body, err := json.Marshal(list)
	r := record{kind: kindDamages, flags: flagQuiet, body: body, bodyLen: uint32(len(body)), bodyCRC: crc32.Checksum(body, castagnoli)}
	return r, err
}

// applyDeclaration replaces the declared damages by the list of a newer declaration.
func (e *Engine) applyDeclaration(b *pebble.Batch, body []byte) error {
	var list []Damage
	if err := json.Unmarshal(body, &list); err != nil {
		return fmt.Errorf("%w: list of damages: %w", ErrCorrupt, err)
	}
	for _, d := range e.damages.all() {
		if d.Declared {
			if err := e.forgetDamage(b, d.File, func(k Damage) bool { return k.Declared && k.Offset == d.Offset }); err != nil {
				return err
			}
		}
	}
	for _, d := range list {
		e.quarantine(d)
	}
	return nil
}

// declareNewDamage writes a declaration when this start found damage with unknown keys.
func (e *Engine) declareNewDamage() error {
	for _, d := range e.damages.all() {
		if d.Last > 0 && !d.Declared {
			o := &op{declare: true}
			e.commit([]*op{o})
			if o.err != nil {
				return fmt.Errorf("write down the damage: %w", o.err)
			}
			return nil
		}
	}
	return nil
}

// loadDamages reads the damaged places that the index has stored.
func (e *Engine) loadDamages() error {
	e.damages.clear()
	return e.idx.scan(spaceDamage, func(_, value []byte) error {
		var d Damage
		if err := json.Unmarshal(value, &d); err != nil {
			return fmt.Errorf("%w: list of damages: %w", errForeignIndex, err)
		}
		// Of a segment that was dropped when nothing needed it: see dropSegment.
		if num, ok := parseSegPath(d.File); ok && e.segments[num] == nil && d.Last == 0 && d.Length < maxSegment {
			if err := e.idx.db.Delete(damageKey(d), pebble.NoSync); err != nil {
				return fmt.Errorf("list of damages: %w", err)
			}
			return nil
		}
		e.damages.add(d)
		return nil
	})
}

// forgetDamage forgets the places of a file for which gone holds, in memory and in batch b.
func (e *Engine) forgetDamage(b *pebble.Batch, file string, gone func(Damage) bool) error {
	if !e.damages.in(file) {
		return nil
	}
	for _, d := range e.damages.remove(file, gone) {
		if err := b.Delete(damageKey(d), nil); err != nil {
			return err
		}
	}
	return nil
}

// Damages lists the damaged places that are known.
func (e *Engine) Damages() []Damage { return e.damages.all() }

// Uncertain says why conditions of absent keys cannot be decided; nil when they can. It is an
// error after the index was lost while the log has damage that hides writes of unknown keys.
func (e *Engine) Uncertain() error { return e.uncertain(nil) }

// MaybeOlder reports whether a lost write may have replaced or deleted the object whose record
// has sequence seq. Its bytes are whole, but they may not be the last acknowledged version.
func (e *Engine) MaybeOlder(seq uint64) bool { return seq <= e.damages.lastUnknown() }

// uncertain is an error when a lost write may be a later one of the key with entry x; nil is an
// absent key.
func (e *Engine) uncertain(x *entry) error {
	last := e.damages.lastUnknown()
	if last == 0 || x != nil && x.made() > last {
		return nil
	}
	return fmt.Errorf("%w: writes up to %d were lost with unknown keys", ErrUncertain, last)
}
