package claims

import (
	"cmp"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// draft collects what operations on one boot do to it, all in one part of a transaction. Every operation is decided by
// the boot as it was read: one that meets what another of the same part changes has to wait for the next part. So a key
// is written once at most, and answers can name the revision at which it was.
type draft struct {
	keys  *bootKeys
	epoch Epoch
	base  *view

	// The lists are short: a part has 16 operations at most, or one fold.
	gaps []gap
	// on: claims of the base that must be as they were read.
	on   []reliedOn
	puts []Claim
	// deletes are the starts of claims.
	deletes []uint64
	// touched are the ranges that the part changes.
	touched []span
	// heads are those that the part writes: of a boot of which the store knew none, by claims that have looked at all of them since a
	// revision; or of a fold, which nothing joins.
	heads   Heads
	above   uint64
	looked  int64
	alone   bool
	forgets bool

	// one has the lists of a part with a single operation, which most are.
	one struct {
		gaps    [1]gap
		on      [1]reliedOn
		puts    [1]Claim
		touched [1]span
	}
}

// gap: behind the claim of the base with the index before (-1 is the begin), up to the number end, nothing may stand.
type gap struct {
	before int
	end    uint64
}

// reliedOn is a claim that must have been changed last at a revision.
type reliedOn struct {
	start    uint64
	modified int64
}

// span is a range of sequence numbers.
type span struct{ start, end uint64 }

func spanOf(id identity.Batch) span { return span{id.SeqStart, id.SeqEnd} }

func (s span) meets(o span) bool { return s.start <= o.end && o.start <= s.end }

func newDraft(k *bootKeys, epoch Epoch, base *view) *draft {
	d := &draft{keys: k, epoch: epoch, base: base}
	d.gaps, d.on, d.puts, d.touched = d.one.gaps[:0], d.one.on[:0], d.one.puts[:0], d.one.touched[:0]
	return d
}

// waits reports that an operation on id can't be decided in this part.
func (d *draft) waits(id identity.Batch) bool {
	return d.alone || slices.ContainsFunc(d.touched, spanOf(id).meets)
}

// relyOn guards a claim that an answer is made of.
func (d *draft) relyOn(s stored) {
	r := reliedOn{s.Identity.SeqStart, s.modified}
	if !slices.Contains(d.on, r) {
		d.on = append(d.on, r)
	}
}

// relyOnGap guards that nothing intersects id, as the base has it. A claim never changes its range, so the one before id
// is guarded by its creation alone: it may become durable meanwhile.
func (d *draft) relyOnGap(id identity.Batch) {
	before := d.base.from(id.SeqStart) - 1
	i := slices.IndexFunc(d.gaps, func(g gap) bool { return g.before == before })
	if i < 0 {
		d.gaps = append(d.gaps, gap{before, id.SeqEnd})
		return
	}
	d.gaps[i].end = max(d.gaps[i].end, id.SeqEnd)
}

func (d *draft) put(c Claim) {
	d.puts = append(d.puts, c)
	d.touched = append(d.touched, spanOf(c.Identity))
}

func (d *draft) remove(c Claim) {
	d.deletes = append(d.deletes, c.Identity.SeqStart)
	d.touched = append(d.touched, spanOf(c.Identity))
}

// size is how many requests the part makes of the store, by the greatest of its lists.
func (d *draft) size() int {
	// One each more for the heads and for what says that they were forgotten.
	return 2 + max(len(d.on)+2*len(d.gaps), len(d.puts)+len(d.deletes), 1)
}

// part is the transaction's part: its guards, and its writes, in the order of their keys.
func (d *draft) part() Part {
	slices.SortFunc(d.gaps, func(a, b gap) int { return cmp.Compare(a.before, b.before) })
	slices.SortFunc(d.on, func(a, b reliedOn) int { return cmp.Compare(a.start, b.start) })
	slices.SortFunc(d.puts, func(a, b Claim) int { return cmp.Compare(a.Identity.SeqStart, b.Identity.SeqStart) })
	slices.Sort(d.deletes)
	p := Part{Guards: make([]Guard, 0, 2+len(d.on)+2*len(d.gaps))}
	p.Guards = append(p.Guards, Guard{Key: d.keys.heads, Is: Modified, Revision: d.base.headsAt})
	if d.looked > 0 {
		p.Guards = append(p.Guards, Guard{Key: d.keys.forgotten, Is: NotSince, Revision: d.looked})
	}
	for _, r := range d.on {
		p.Guards = append(p.Guards, Guard{Key: d.keys.claim(r.start), Is: Modified, Revision: r.modified})
	}
	for _, g := range d.gaps {
		from := d.keys.from
		if g.before >= 0 {
			c := d.base.claims[g.before]
			from = d.keys.afterClaim(c.Identity.SeqStart)
			// Compared by its key: in a store that was restored, another claim of the boot may have been created at the same revision.
			p.Guards = append(p.Guards, Guard{Key: from[:len(from)-len(behind)], Is: Created, Revision: c.created})
		}
		p.Guards = append(p.Guards, Guard{Key: from, End: d.keys.afterClaim(g.end), Is: Absent})
	}
	if n := len(d.puts); n > 0 {
		p.Puts = make([]Put, n, n+1) // and the heads
	}
	for i := range d.puts {
		p.Puts[i] = Put{Key: d.keys.claim(d.puts[i].Identity.SeqStart), Value: d.puts[i].Marshal()}
	}
	for _, start := range d.deletes {
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

// committed makes the base the boot as it is after the part was done at a revision, and gives it; nil where that is not known.
func (d *draft) committed(revision int64) *view {
	if d.forgets {
		return nil
	}
	v := d.base
	if d.heads != nil {
		v.heads, v.above, v.headsAt = d.heads, d.above, revision
	}
	for _, start := range d.deletes {
		if i, there := v.find(start); there {
			v.claims = slices.Delete(v.claims, i, i+1)
		}
	}
	for _, c := range d.puts {
		i, there := v.find(c.Identity.SeqStart)
		s := stored{stamped(c, revision), revision, revision}
		if there {
			s.created = v.claims[i].created
			v.claims[i] = s
			continue
		}
		v.claims = slices.Insert(v.claims, i, s)
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
