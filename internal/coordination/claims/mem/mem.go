// Package mem is a store of claims in memory: for tests, and as the model that etcd is compared with.
package mem

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Store is a claims.KV. It is safe for concurrent use.
type Store struct {
	mu       sync.Mutex
	cluster  uint64
	revision int64
	entries  map[string]claims.Entry
}

var _ claims.KV = (*Store)(nil)

// NoFolds are the folds of regions in which nothing was ever folded; for tests.
type NoFolds struct{ Epoch uint64 }

// Guess always knows.
func (f NoFolds) Guess(identity.Batch) (claims.Looked, bool) { return f.looked(), true }

func (f NoFolds) looked() claims.Looked {
	return claims.Looked{Heads: claims.Heads{{Region: "none"}}, Since: 1 << 62, Epoch: f.Epoch}
}

// Decide says that every identity is free.
func (f NoFolds) Decide(context.Context, claims.Op, claims.Folds) (claims.Answer, claims.Looked, error) {
	return claims.Answer{}, f.looked(), nil
}

// Spans has none.
func (NoFolds) Spans(context.Context, identity.Batch, claims.Folds) ([]claims.Span, error) {
	return nil, nil
}

// New makes an empty store.
func New() *Store { return &Store{cluster: 1, revision: 1, entries: map[string]claims.Entry{}} }

// Copy is a store that goes on by itself from here, as the same cluster: what a backup of this one would be restored to.
func (s *Store) Copy() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Store{cluster: s.cluster, revision: s.revision, entries: maps.Clone(s.entries)}
}

// Restore makes this store what another one is, as the cluster of that id: a backup that was restored by the book.
func (s *Store) Restore(from *Store, cluster uint64) {
	c := from.Copy()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster, s.revision, s.entries = cluster, c.revision, c.entries
}

// Commit runs a transaction.
func (s *Store) Commit(_ context.Context, t claims.Txn) (claims.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := claims.Result{Cluster: s.cluster, Revision: s.revision, Held: s.holds(t.Guards)}
	if !r.Held {
		return r, nil
	}
	// All guards first: parts do not see each other.
	for _, p := range t.Parts {
		r.Parts = append(r.Parts, claims.PartResult{Held: s.holds(p.Guards)})
	}
	next, wrote := s.revision+1, false
	for i, p := range t.Parts {
		if !r.Parts[i].Held || len(p.Guards) == 0 {
			for _, q := range p.Reads {
				r.Parts[i].Reads = append(r.Parts[i].Reads, s.read(q))
			}
		}
		if !r.Parts[i].Held {
			continue
		}
		wrote = s.write(p, next) || wrote
	}
	if wrote {
		s.revision = next
	}
	r.Revision = s.revision
	return r, nil
}

func (s *Store) write(p claims.Part, revision int64) bool {
	wrote := len(p.Puts) > 0
	for _, w := range p.Puts {
		e, there := s.entries[w.Key]
		if !there {
			e = claims.Entry{Key: w.Key, Created: revision}
		}
		e.Value, e.Modified = slices.Clone(w.Value), revision
		s.entries[w.Key] = e
	}
	for _, key := range p.Deletes {
		_, there := s.entries[key]
		delete(s.entries, key)
		wrote = wrote || there
	}
	return wrote
}

func (s *Store) holds(guards []claims.Guard) bool {
	return !slices.ContainsFunc(guards, func(g claims.Guard) bool { return !s.hold(g) })
}

func (s *Store) hold(g claims.Guard) bool {
	e, there := s.entries[g.Key]
	switch g.Is {
	case claims.Absent:
		return len(s.read(claims.Range{From: g.Key, End: g.End, Limit: 1})) == 0
	case claims.Created:
		return there && e.Created == g.Revision
	case claims.Modified:
		return e.Modified == g.Revision // 0 for one that is not there
	case claims.Holds:
		return there && bytes.Equal(e.Value, g.Value)
	case claims.NotSince:
		return e.Modified <= g.Revision
	}
	return false
}

func (s *Store) read(q claims.Range) []claims.Entry {
	if q.End == "" {
		if e, ok := s.entries[q.From]; ok {
			return []claims.Entry{e}
		}
		return nil
	}
	var out []claims.Entry
	for key, e := range s.entries {
		if key >= q.From && key < q.End {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b claims.Entry) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	if q.Limit > 0 && int64(len(out)) > q.Limit {
		out = out[:q.Limit]
	}
	return out
}
