package audit

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"maps"
	"math"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// known is what the journal has of a range of agents, as 64-bit fingerprints under a random seed: of 10^7 entries
// one in 10^12 audits takes a manifest that is missing for one that is there, and the next one finds it.
type known struct {
	seed  [16]byte
	limit int
	// active: the first sequence numbers of each boot are wanted too.
	active bool

	mu sync.Mutex
	// from and until bound the agents; until is empty where nothing was left out.
	from, until string
	agents      map[string]*knownAgent
	count       int
}

type knownAgent struct {
	prints map[uint64]struct{}
	boots  map[string]firsts
}

// firsts are the first sequence numbers of a boot's batches and conflicts among the entries.
type firsts struct {
	accepted, conflict       uint64
	hasAccepted, hasConflict bool
}

func (f firsts) with(e *journal.Entry) firsts {
	start := e.ID.SeqStart
	switch conflict := e.Outcome.Conflict(); {
	case conflict && (!f.hasConflict || start < f.conflict):
		f.conflict, f.hasConflict = start, true
	case !conflict && (!f.hasAccepted || start < f.accepted):
		f.accepted, f.hasAccepted = start, true
	}
	return f
}

func newKnown(rand io.Reader, from, until string, limit int, active bool) (*known, error) {
	k := &known{from: from, until: until, limit: limit, active: active, agents: map[string]*knownAgent{}}
	_, err := io.ReadFull(rand, k.seed[:])
	return k, err
}

func (k *known) fingerprint(id identity.Batch, d identity.Digest) uint64 {
	b := make([]byte, 0, 160)
	b = append(b, k.seed[:]...)
	b = binary.LittleEndian.AppendUint64(b, id.SeqStart)
	b = binary.LittleEndian.AppendUint64(b, id.SeqEnd)
	b = append(append(b, d[:]...), id.Boot...)
	sum := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(sum[:])
}

// follow makes a follower that adds what it reads.
func (k *known) follow(a *Auditor, from journal.Positions) (*journal.Follower, error) {
	return journal.NewFollower(journal.FollowerConfig{
		Store: a.paced(), Authority: a.Authority, Fan: a.Fan, From: from,
		Segment: func(_ context.Context, s *journal.Segment) error { k.add(s.Entries); return nil },
		Folded:  func(_ context.Context, es []journal.Entry) error { k.add(es); return nil },
	})
}

// add takes entries. Where there are too many, the last agents are left to another pass.
func (k *known) add(entries []journal.Entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range entries {
		e := &entries[i]
		if e.ID.Agent < k.from || k.until != "" && e.ID.Agent >= k.until {
			continue
		}
		var d identity.Digest // that of an accepted batch is left out: the manifest's key has none
		if e.Outcome.Conflict() {
			d = e.SHA256
		}
		m := k.agents[e.ID.Agent]
		if m == nil {
			m = &knownAgent{prints: map[uint64]struct{}{}, boots: map[string]firsts{}}
			k.agents[e.ID.Agent] = m
		}
		n := len(m.prints)
		// What another region counts says nothing of a manifest in this one, whose hash may be another.
		if e.Outcome != journal.Elsewhere {
			m.prints[k.fingerprint(e.ID, d)] = struct{}{}
		}
		k.count += len(m.prints) - n
		if k.active {
			m.boots[e.ID.Boot] = m.boots[e.ID.Boot].with(e)
		}
	}
	if k.count > k.limit {
		k.drop()
	}
}

// drop leaves out the last agents until a quarter of the room is free; one agent always stays.
func (k *known) drop() {
	names := slices.Sorted(maps.Keys(k.agents))
	for len(names) > 1 && k.count > k.limit-k.limit/4 {
		last := names[len(names)-1]
		k.count -= len(k.agents[last].prints)
		delete(k.agents, last)
		k.until, names = last, names[:len(names)-1]
	}
}

// keep ends the dropping: the agents are chosen, and what comes yet is little.
func (k *known) keep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.limit = math.MaxInt
}

// end is the first agent whose entries are not in memory; empty where there is none.
func (k *known) end() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.until
}

func (k *known) has(id identity.Batch, d identity.Digest) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.agents[id.Agent]
	if m == nil {
		return false
	}
	_, ok := m.prints[k.fingerprint(id, d)]
	return ok
}

// boots are the boots of the entries, and where they begin.
func (k *known) boots() map[identity.Boot]firsts {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[identity.Boot]firsts{}
	for agent, m := range k.agents {
		for boot, f := range m.boots {
			out[identity.Boot{Agent: agent, Boot: boot}] = f
		}
	}
	return out
}
