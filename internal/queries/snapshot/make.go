package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// progress is a job's checkpoint: the packs that are written so far. A worker that resumes the job names them in
// the snapshot, and continues with the rest.
type progress struct {
	// Base is the number of the snapshot on which this one is based, 0 for none.
	Base   uint64  `json:"base"`
	Pieces []piece `json:"pieces"`
}

// piece is a pack that is written.
type piece struct {
	// SHA256 is zero when nothing was left of the merged packs.
	SHA256 identity.Digest `json:"sha256"`
	// From are the packs of the base that it replaces; empty for new batches.
	From []identity.Digest `json:"from,omitempty"`
}

// making is one running job.
type making struct {
	c      *Chain
	j      *work.Job
	number uint64
	base   *Snapshot // nil: none
	state  progress
	refs   []*Ref // of the pieces; nil for one that is empty or lost
	news   bool   // state has a piece that no checkpoint has
}

func (c *Chain) make(ctx context.Context, j *work.Job) error {
	m := &making{c: c, j: j, number: j.Key().Number}
	if err := m.resume(ctx, c.numbers); err != nil {
		return err
	}
	// Merging comes before packing, because it frees places in the list of packs, which is bounded.
	if err := m.merge(ctx); err != nil {
		return err
	}
	if err := m.pack(ctx); err != nil {
		return err
	}
	if err := m.commit(ctx); err != nil {
		return err
	}
	return nil
}

// takeOver takes over the newest snapshot and drops the batches that it has from the pending ones.
func (c *Chain) takeOver(ctx context.Context, numbers []uint64) error {
	s, err := c.base(ctx, numbers, ^uint64(0))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = s
	if s == nil {
		return nil
	}
	for id := range c.pending {
		if s.Covers(id) {
			delete(c.pending, id)
		}
	}
	return nil
}

// resume reads what an earlier owner has left of this job.
func (m *making) resume(ctx context.Context, numbers []uint64) error {
	var err error
	if s := m.j.State(); len(s) > 0 {
		err := ProgressKind.Unmarshal(s, &m.state)
		if errors.Is(err, record.ErrNewerVersion) {
			return fmt.Errorf("checkpoint of %s: %w", m.j.Key(), err) // wait for a worker of that release
		}
		if err != nil {
			// Without the checkpoint the job only costs more: its packs are written again, or found to exist.
			m.c.lost(fmt.Errorf("checkpoint of %s: %w", m.j.Key(), err))
			m.state = progress{}
		}
	}
	if m.base, err = m.c.base(ctx, numbers, m.number); err != nil {
		return err
	}
	base := uint64(0)
	if m.base != nil {
		base = m.base.Number
	}
	if m.state.Base != base { // merged packs replace packs of another base, so they are of no use
		m.state.Pieces = slices.DeleteFunc(m.state.Pieces, func(p piece) bool { return len(p.From) > 0 })
		m.state.Base = base
	}
	pieces := m.state.Pieces
	m.state.Pieces = nil
	for _, p := range pieces {
		var ref *Ref
		if !p.SHA256.IsZero() {
			r, err := readRef(ctx, m.c.cfg.Store, Ref{Number: m.number, SHA256: p.SHA256}.Key(m.c.cfg.Shard))
			switch {
			case err == nil:
				ref = &r
			case absent(err):
				m.c.lost(err)
				continue // its batches are packed again
			default:
				return err
			}
		}
		m.state.Pieces, m.refs = append(m.state.Pieces, p), append(m.refs, ref)
	}
	return nil
}

// replaced maps packs of the base to the piece that replaces them.
func (m *making) replaced() map[identity.Digest]int {
	out := map[identity.Digest]int{}
	for i, p := range m.state.Pieces {
		for _, d := range p.From {
			out[d] = i
		}
	}
	return out
}

// carried returns the packs of the base that still have samples of the window and stay as they are.
func (m *making) carried() []Ref {
	if m.base == nil {
		return nil
	}
	horizon, gone := m.c.horizon(), m.replaced()
	var out []Ref
	for _, r := range m.base.Packs {
		if _, ok := gone[r.SHA256]; !ok && r.MaxTime >= horizon {
			out = append(out, r)
		}
	}
	return out
}

// packs returns the packs of the snapshot, oldest first.
func (m *making) packs() []Ref {
	var out []Ref
	done := make([]bool, len(m.refs))
	if m.base != nil {
		horizon, gone := m.c.horizon(), m.replaced()
		for _, r := range m.base.Packs {
			i, merged := gone[r.SHA256]
			switch {
			// A merged pack takes the place of the first of those that it replaces, so that the order stays that of
			// acceptance.
			case merged && !done[i]:
				if done[i] = true; m.refs[i] != nil {
					out = append(out, *m.refs[i])
				}
			case !merged && r.MaxTime >= horizon:
				out = append(out, r)
			}
		}
	}
	for i, r := range m.refs {
		if r != nil && !done[i] {
			out = append(out, *r)
		}
	}
	return out
}

// merge writes one pack instead of several small ones, without batches that have left the window.
func (m *making) merge(ctx context.Context) error {
	carried := m.carried()
	for _, group := range mergePlan(carried, uint64(m.c.cfg.PackBatches)) {
		if err := m.checkpoint(ctx); err != nil {
			return err
		}
		p := piece{}
		var left []Batch
		seen := map[identity.Batch]bool{}
		for _, i := range group {
			ref := carried[i]
			p.From = append(p.From, ref.SHA256)
			pk, err := ReadPack(ctx, m.c.cfg.Store, m.base, ref)
			if err != nil && !absent(err) {
				return err
			}
			if err != nil {
				m.c.lost(err)
				// The batches of a lost pack are missing in the snapshot; an audit finds them.
				continue
			}
			for k, e := range pk.Entries {
				raw, err := pk.Frame(k)
				if err != nil {
					m.c.lost(err)
					continue
				}
				// Packs of different owners can hold the same batch.
				if lasts(e) >= m.c.horizon() && !seen[e.Identity] {
					seen[e.Identity] = true
					left = append(left, Batch{e, raw})
				}
			}
		}
		if err := m.write(ctx, p, left); err != nil {
			return err
		}
	}
	return nil
}

// pack writes packs of the batches that no pack has.
func (m *making) pack(ctx context.Context) error {
	var todo []accepted.Batch
	have, horizon := m.packs(), m.c.horizon()
	m.c.mu.Lock()
	for id, e := range m.c.pending {
		if lasts(e) >= horizon && !covers(have, id) {
			todo = append(todo, e)
		}
	}
	// The frames are read without the lock: that takes long, and Offer must not wait for it.
	m.c.mu.Unlock()
	slices.SortFunc(todo, func(a, b accepted.Batch) int { return a.Claim().Compare(b.Claim()) })
	// What is left over becomes a backlog, which the next job takes without waiting.
	for n := 0; len(todo) > 0 && n < maxNewPacks; n++ {
		var part []accepted.Batch
		part, todo = m.c.cut(todo)
		if len(part) == 0 {
			continue
		}
		if err := m.checkpoint(ctx); err != nil {
			return err
		}
		raws, err := m.c.cfg.Frames(ctx, part)
		if err != nil {
			return fmt.Errorf("read frames: %w", err)
		}
		var batches []Batch
		for i, e := range part {
			if raws[i] == nil {
				m.c.skip(e)
				continue
			}
			batches = append(batches, Batch{e, raws[i]})
		}
		if len(batches) == 0 {
			continue
		}
		if err := m.write(ctx, piece{}, batches); err != nil {
			return err
		}
	}
	return nil
}

// cut takes the entries of one pack off the list; none when the first fits into no pack.
func (c *Chain) cut(todo []accepted.Batch) (part, rest []accepted.Batch) {
	const frameOfHeader = 256 // estimated: the header without the entries
	size := uint64(prefixBytes + frameOfHeader)
	for i, e := range todo {
		n := e.FrameBytes + uint64(len(record.JSON(e))) + 1
		switch {
		case i == 0 && size+n > MaxPackBytes:
			c.skip(e)
			return nil, todo[1:]
		case i == c.cfg.PackBatches || size+n > MaxPackBytes:
			return todo[:i], todo[i:]
		}
		size += n
	}
	return todo, nil
}

// skip leaves a batch out for the life of this chain.
func (c *Chain) skip(e accepted.Batch) {
	c.mu.Lock()
	delete(c.pending, e.Identity)
	c.mu.Unlock()
	if f := c.cfg.Events.Skipped; f != nil {
		f(e)
	}
}

// checkpoint stores the pieces that are written, before the next one is begun: the snapshot itself is the checkpoint of the
// last one, so that a job of one piece asks nothing of the table.
func (m *making) checkpoint(ctx context.Context) error {
	if !m.news {
		return nil
	}
	m.news = false
	return m.j.Checkpoint(ctx, ProgressKind.Marshal(m.state))
}

// write writes a pack, before any checkpoint names it.
func (m *making) write(ctx context.Context, p piece, batches []Batch) error {
	var ref *Ref
	if len(batches) > 0 {
		b, err := EncodePack(m.c.cfg.Shard, m.c.cfg.Shards, batches)
		if err != nil {
			return err
		}
		// Decoded again, so that a pack that no reader would accept is never written.
		pk, err := DecodePack(b)
		if err != nil {
			return err
		}
		r, err := refOf(m.number, b, pk)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(m.packs(), func(o Ref) bool { return o.SHA256 == r.SHA256 }) {
			return nil // the base has it already, byte for byte
		}
		ref, p.SHA256 = &r, r.SHA256
		if _, err := create(ctx, m.c.cfg.Store, r.Key(m.c.cfg.Shard), b, objstore.PutOptions{SHA256: r.SHA256}); err != nil {
			return err
		}
		if f := m.c.cfg.Events.Packed; f != nil {
			f(r, len(p.From) > 0)
		}
	}
	m.state.Pieces, m.refs, m.news = append(m.state.Pieces, p), append(m.refs, ref), true
	return nil
}

// commit creates the snapshot. If one with the number exists it counts, whoever made it.
func (m *making) commit(ctx context.Context) error {
	s := &Snapshot{
		AuthorityID: m.c.cfg.AuthorityID, Shard: m.c.cfg.Shard, Shards: m.c.cfg.Shards, Number: m.number, Fence: m.j.Fence(),
		CreatedAt: max(m.c.cfg.Now().UnixNano(), 0), Packs: m.packs(),
	}
	if s.Packs == nil {
		s.Packs = []Ref{}
	}
	if over := len(s.Packs) - MaxPacks; over > 0 {
		s.Packs = s.Packs[over:] // drop the oldest; an audit finds their batches
	}
	body, err := s.Marshal()
	// The inputs of packs differ in length, so their number alone does not tell. An eighth is dropped at a time, the
	// oldest first, until it fits.
	for errors.Is(err, errTooLong) && len(s.Packs) > 1 {
		s.Packs = s.Packs[(len(s.Packs)+7)/8:]
		body, err = s.Marshal()
	}
	if err != nil {
		return err
	}
	created, err := create(ctx, m.c.cfg.Store, s.Key(), body, objstore.PutOptions{ContentType: "application/json"})
	if err != nil {
		return err
	}
	// Another worker with the same number may have been faster with other contents; then takeOver reads what is
	// stored.
	m.c.numbers = append(m.c.numbers, m.number)
	if created {
		m.c.remember(s)
		m.c.mu.Lock()
		m.c.seen = m.c.cfg.Now()
		m.c.mu.Unlock()
		if f := m.c.cfg.Events.Committed; f != nil {
			f(s)
		}
	} else {
		m.c.begun = false // there may be later ones, too
	}
	if err := m.c.takeOver(ctx, m.c.numbers); err != nil {
		return err
	}
	// Only now, when a newer snapshot exists. An error does not fail the job: the next one collects again.
	snaps, packs, err := m.c.collect(ctx)
	if f := m.c.cfg.Events.Collected; f != nil {
		f(snaps, packs, err)
	}
	return nil
}

// create creates an object; created is false when it existed, perhaps from an earlier attempt.
func create(ctx context.Context, s objstore.Store, key string, body []byte, o objstore.PutOptions) (created bool, err error) {
	_, err = s.Create(ctx, key, body, o)
	if err != nil && !errors.Is(err, objstore.ErrExists) {
		return false, fmt.Errorf("create %q: %w", key, err)
	}
	return err == nil, nil
}
