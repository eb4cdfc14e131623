package claims

import (
	"cmp"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// draft collects what operations on one boot do to it, all in one part of a transaction. Every operation is decided by
// the boot as it was read: one that meets what another of the same part changes has to wait for the next part. So a key
// is written once at most, and answers can name the revision at which it was.
type draft struct {
	keys  bootKeys
	epoch Epoch
	base  *view

	// gaps: behind which claim of the base (by index; -1 is the begin), up to which sequence number, nothing may stand.
	gaps map[int]uint64
	// on: claims of the base that must be as they were read, by start.
	on      map[uint64]int64
	puts    map[uint64]Claim
	deletes map[uint64]bool
	// touched are the ranges that the part changes.
	touched []identity.Batch
	// heads are those that the part writes: of a boot of which the store knew none, by claims that have looked at all of them since a
	// revision; or of a fold, which nothing joins.
	heads   Heads
	above   uint64
	looked  int64
	alone   bool
	forgets bool
}

func newDraft(k bootKeys, epoch Epoch, base *view) *draft {
	return &draft{keys: k, epoch: epoch, base: base, gaps: map[int]uint64{}, on: map[uint64]int64{}, puts: map[uint64]Claim{}, deletes: map[uint64]bool{}}
}

// waits reports that an operation on id can't be decided in this part.
func (d *draft) waits(id identity.Batch) bool {
	return d.alone || slices.ContainsFunc(d.touched, id.Intersects)
}

// relyOn guards a claim that an answer is made of.
func (d *draft) relyOn(s stored) { d.on[s.Identity.SeqStart] = s.modified }

// relyOnGap guards that nothing intersects id, as the base has it. A claim never changes its range, so the one before id
// is guarded by its creation alone: it may become durable meanwhile.
func (d *draft) relyOnGap(id identity.Batch) {
	before := d.base.from(id.SeqStart) - 1
	d.gaps[before] = max(d.gaps[before], id.SeqEnd)
}

func (d *draft) put(c Claim) {
	d.puts[c.Identity.SeqStart] = c
	d.touched = append(d.touched, c.Identity)
}

func (d *draft) remove(c Claim) {
	d.deletes[c.Identity.SeqStart] = true
	d.touched = append(d.touched, c.Identity)
}

// size is how many requests the part makes of the store, by the greatest of its lists.
func (d *draft) size() int {
	// One each more for the heads and for what says that they were forgotten.
	return 2 + max(len(d.on)+2*len(d.gaps), len(d.puts)+len(d.deletes), 1)
}

// part is the transaction's part: its guards, and its writes.
func (d *draft) part() Part {
	p := Part{Guards: []Guard{{Key: d.keys.heads, Is: Modified, Revision: d.base.headsAt}}}
	if d.looked > 0 {
		p.Guards = append(p.Guards, Guard{Key: d.keys.forgotten, Is: NotSince, Revision: d.looked})
	}
	for _, start := range sorted(d.on) {
		p.Guards = append(p.Guards, Guard{Key: d.keys.claim(start), Is: Modified, Revision: d.on[start]})
	}
	for _, i := range sorted(d.gaps) {
		from := d.keys.from
		if i >= 0 {
			c := d.base.claims[i]
			from = d.keys.claim(c.Identity.SeqStart)
			p.Guards = append(p.Guards, Guard{Key: from, Is: Created, Revision: c.created})
			from = after(from)
		}
		p.Guards = append(p.Guards, Guard{Key: from, End: after(d.keys.claim(d.gaps[i])), Is: Absent})
	}
	for _, start := range sorted(d.puts) {
		p.Puts = append(p.Puts, Put{Key: d.keys.claim(start), Value: d.puts[start].Marshal()})
	}
	for _, start := range sorted(d.deletes) {
		p.Deletes = append(p.Deletes, d.keys.claim(start))
	}
	switch {
	case d.forgets:
		p.Guards = append(p.Guards, Guard{Key: d.keys.from, End: d.keys.end, Is: Absent})
		p.Deletes = append(p.Deletes, d.keys.heads)
		p.Puts = append(p.Puts, Put{Key: d.keys.forgotten, Value: []byte{version}})
	case d.heads != nil:
		p.Puts = append(p.Puts, Put{Key: d.keys.heads, Value: d.heads.Marshal(d.above)})
	}
	return p
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// committed is the boot after the part was done at a revision; nil where that is not known.
func (d *draft) committed(revision int64) *view {
	if d.forgets {
		return nil
	}
	v := &view{boot: d.base.boot, heads: d.base.heads, above: d.base.above, headsAt: d.base.headsAt, forgotten: d.base.forgotten, more: d.base.more}
	if d.heads != nil {
		v.heads, v.above, v.headsAt = d.heads, d.above, revision
	}
	for _, s := range d.base.claims {
		start := s.Identity.SeqStart
		c, put := d.puts[start]
		switch {
		case d.deletes[start]:
			continue
		case put:
			s = stored{stamped(c, revision), s.created, revision}
		}
		v.claims = append(v.claims, s)
	}
	for _, start := range sorted(d.puts) {
		if i, there := v.find(start); !there {
			v.claims = slices.Insert(v.claims, i, stored{stamped(d.puts[start], revision), revision, revision})
		}
	}
	// Without any of the claims that were known, it is not known where the others begin.
	if v.more && len(v.claims) == 0 {
		return nil
	}
	return v
}

// stamped is a claim that was written at a revision.
func stamped(c Claim, revision int64) Claim {
	if c.State == Claimed {
		c.Stamp.Fence = uint64(revision)
	}
	return c
}
