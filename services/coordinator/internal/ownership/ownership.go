// Package ownership decides which worker should own which shard, and who may be given
// one now. It is pure: the caller hands in what it sees and the time, and carries out
// the decision.
//
// The promises, for K shards and n live workers:
//
//   - loads differ by at most one (Assign);
//   - when one worker comes or goes, at most ceil(K/n) shards move, n with that worker;
//   - a membership that is back to what it was before the quiet period moves nothing;
//   - a shard is given to its new owner only when nobody holds it.
package ownership

import (
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/shard"
)

// Kind of workers. Each kind has a set of shards of its own.
type Kind string

// Rollup workers are the only ones who share work by owning shards.
const Rollup Kind = "rollup"

// Kinds are all kinds.
func Kinds() []Kind { return []Kind{Rollup} }

// ParseKind reads a kind.
func ParseKind(s string) (Kind, error) {
	if k := Kind(s); slices.Contains(Kinds(), k) {
		return k, nil
	}
	return "", fmt.Errorf("kind %q: want one of %v", s, Kinds())
}

// Limits of names and numbers.
const (
	MaxWorkerID = 128
	MaxWorkers  = 1024
)

// CheckWorkerID refuses what can't be a worker's name.
func CheckWorkerID(id string) error {
	if len(id) < 1 || len(id) > MaxWorkerID {
		return fmt.Errorf("worker id %q: want 1 to %d characters", id, MaxWorkerID)
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("worker id %q: want letters, digits, '.', '_' and '-'", id)
		}
	}
	return nil
}

// Session is one life of a worker: its lease. A worker that starts again has another.
type Session int64

// Epoch counts the grants of a shard; it only grows.
type Epoch uint64

// Fence of a grant: of two grants of a shard, the later one has the greater fence.
type Fence uint64

// Worker is a live session.
type Worker struct {
	ID       string
	Session  Session
	Draining bool
	// Since orders the sessions of one worker; the one that came last counts.
	Since int64
}

// Grant says who holds a shard; the zero value is nobody.
type Grant struct {
	Worker  string
	Session Session
	Epoch   Epoch
}

// Held reports whether somebody holds the shard.
func (g Grant) Held() bool { return g.Session != 0 }

// View is what is known at one moment. Targets and Grants have one entry per shard.
type View struct {
	Workers []Worker
	// Targets are the workers that should own each shard; "" is none yet.
	Targets []string
	Grants  []Grant
}

// Current are the sessions that count: the newest of each worker, by its name.
func Current(ws []Worker) map[string]Worker {
	m := make(map[string]Worker, len(ws))
	for _, w := range ws {
		if old, ok := m[w.ID]; !ok || newer(w, old) {
			m[w.ID] = w
		}
	}
	return m
}

func newer(a, b Worker) bool {
	if a.Since != b.Since {
		return a.Since > b.Since
	}
	return a.Session > b.Session
}

// Eligible are the names of the workers that may own shards, in order.
func Eligible(ws []Worker) []string {
	var ids []string
	for id, w := range Current(ws) {
		if !w.Draining {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Revoked are the shards that a session holds and should give back: the worker is
// draining or replaced by a newer session, or another worker should own them.
func Revoked(v View, s Session) []shard.ID {
	current := Current(v.Workers)
	var out []shard.ID
	for i, g := range v.Grants {
		if g.Session != s {
			continue
		}
		w, live := current[g.Worker]
		if !live || w.Session != s || w.Draining || v.Targets[i] != g.Worker {
			out = append(out, shard.ID(i))
		}
	}
	return out
}

// Due are the shards that nobody holds and whose target is live: they may be granted now.
func Due(v View) []Grantee {
	current := Current(v.Workers)
	var out []Grantee
	for i, g := range v.Grants {
		if w, ok := current[v.Targets[i]]; ok && !g.Held() && !w.Draining {
			out = append(out, Grantee{Shard: shard.ID(i), Worker: w.ID, Session: w.Session})
		}
	}
	return out
}

// Grantee is who a shard should be granted to.
type Grantee struct {
	Shard   shard.ID
	Worker  string
	Session Session
}
