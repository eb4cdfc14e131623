package engine

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Damage of records that nothing needs goes with its segment. Whether a record is needed whose key cannot be read is told by
// counting: the index knows how many bytes of a segment are in use and how many are tombstones. Where everything that could be read
// was copied, nothing is left in use, and all tombstones were seen, what could not be read was neither.

// unread is what a copy of a segment could not read.
type unread struct {
	places []Damage
	more   bool  // there are too many places to list
	tombs  int64 // bytes of the tombstones that were read
}

func (u *unread) note(d Damage) {
	if len(u.places) == maxDamagePerFile {
		u.more = true
		return
	}
	u.places = append(u.places, d)
}

// needed reports whether something that could not be read may be in use, or may be a tombstone that hides an older record from
// an index that is built anew; no record is older than those of the oldest segment. It records the damage then.
func (e *Engine) needed(num uint64, oldest bool, u *unread) bool {
	if len(u.places) == 0 && !e.damages.in(segName(num)) {
		return false
	}
	e.mu.RLock()
	live, tombs := e.live[num], e.tombs[num]
	e.mu.RUnlock()
	if live == 0 && (oldest || tombs == u.tombs) {
		e.opt.Log.Warn("a segment with damage that nothing needs is dropped", "segment", segName(num), "places", len(u.places), "more", u.more)
		return false
	}
	for _, d := range u.places {
		e.quarantine(d)
	}
	return true
}

// stay is why a segment was kept: another try makes sense when this has changed.
type stay struct {
	live   int64 // bytes in use
	oldest bool
}

// keepSegment notes that a segment had to be kept.
func (e *Engine) keepSegment(num uint64, oldest bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stays == nil {
		e.stays = map[uint64]stay{}
	}
	e.stays[num] = stay{e.live[num], oldest}
}

// mustStay reports whether a segment has damage that something needs, as far as is known without reading it. It needs e.mu.
func (e *Engine) mustStay(num uint64, oldest bool) bool {
	if s, kept := e.stays[num]; kept && s == (stay{e.live[num], oldest}) {
		return true
	}
	for _, d := range e.damages.list(segName(num)) {
		if d.Last > 0 {
			return true
		}
		if d.Key == "" {
			continue // counting tells
		}
		x, err := e.idx.record(d.Bucket, recordKey(d.Key, d.Version))
		if err != nil || x != nil && x.pos == (position{num, d.Offset}) {
			return true
		}
	}
	return false
}

// forgetSegmentDamage forgets the damage of a segment that is dropped, and of its footer.
func (e *Engine) forgetSegmentDamage(num uint64) error {
	b := e.idx.db.NewBatch()
	defer b.Close()
	for _, file := range []string{segName(num), footerName(num)} {
		if err := e.forgetDamage(b, file, func(Damage) bool { return true }); err != nil {
			return fmt.Errorf("forget damage: %w", err)
		}
	}
	if b.Empty() {
		return nil
	}
	return b.Commit(pebble.NoSync)
}
