package etcd

import (
	"fmt"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// State is what etcd says of one kind. It is not changed once it was handed out.
type State struct {
	// Shards is the number of shards; 0 until the first worker came.
	Shards   uint32
	Sessions map[ownership.Session]Session
	Targets  []string
	Grants   []Grant
	Epochs   []Epoch
	Moves    []Move

	targetsRev int64
}

// Session is a live worker.
type Session struct {
	ownership.Worker
	Address string

	record sessionRecord
	rev    int64
}

// Grant of a shard; the zero value is nobody's.
type Grant struct {
	ownership.Grant
	Fence ownership.Fence
}

// Epoch is the last grant of a shard.
type Epoch struct {
	Epoch  ownership.Epoch
	Worker string
	AtNS   int64

	rev int64
}

// View is the state as the core sees it.
func (s *State) View() ownership.View {
	v := ownership.View{Targets: slices.Clone(s.Targets), Grants: make([]ownership.Grant, len(s.Grants))}
	for _, w := range s.Sessions {
		v.Workers = append(v.Workers, w.Worker)
	}
	for i, g := range s.Grants {
		v.Grants[i] = g.Grant
	}
	return v
}

// Held counts the shards that each session holds.
func (s *State) Held() map[ownership.Session]int {
	m := map[ownership.Session]int{}
	for _, g := range s.Grants {
		if g.Held() {
			m[g.Session]++
		}
	}
	return m
}

func newState() *State { return &State{Sessions: map[ownership.Session]Session{}} }

func (s *State) clone() *State {
	c := *s
	c.Sessions, c.Targets, c.Grants, c.Epochs = maps.Clone(s.Sessions), slices.Clone(s.Targets), slices.Clone(s.Grants), slices.Clone(s.Epochs)
	return &c
}

// resize makes room for the shards; a kind's number is written once, before all else of it.
func (s *State) resize(n uint32) error {
	if err := shard.CheckCount(n); err != nil {
		return err
	}
	s.Shards = n
	s.Targets, s.Grants, s.Epochs = make([]string, n), make([]Grant, n), make([]Epoch, n)
	return nil
}

// apply takes one key's new value; v is nil when the key is gone.
func (s *State) apply(f family, name string, v *kv) error {
	switch f {
	case familyShards:
		var r shardsRecord
		if v == nil {
			// Without its number of shards a kind has no targets, grants or epochs.
			*s = *newState()
			return nil
		}
		if err := decode(v, &r); err != nil {
			return err
		}
		return s.resize(r.Shards)
	case familySessions:
		return s.applySession(name, v)
	case familyTargets:
		// Revision 0 is what a comparison expects of an absent key, so the first assignment is written the same
		// way.
		s.targetsRev = 0
		s.Targets = make([]string, s.Shards)
		if v == nil {
			return nil
		}
		var r targetsRecord
		if err := decode(v, &r); err != nil {
			return err
		}
		t, err := r.unpack(s.Shards)
		if err != nil {
			return err
		}
		s.Targets, s.targetsRev = t, v.ModRevision
	case familyMoves:
		s.Moves = nil
		if v != nil {
			var r movesRecord
			if err := decode(v, &r); err != nil {
				return err
			}
			s.Moves = r.Moves
		}
	case familyGrants, familyEpochs:
		return s.applyShard(f, name, v)
	default:
		return fmt.Errorf("unknown family %q", f)
	}
	return nil
}

func (s *State) applySession(name string, v *kv) error {
	id, err := parseSession(name)
	if err != nil {
		return err
	}
	if v == nil {
		delete(s.Sessions, id)
		return nil
	}
	var r sessionRecord
	if err := decode(v, &r); err != nil {
		return err
	}
	// The order in which sessions began is etcd's, whatever the clocks of coordinators say.
	s.Sessions[id] = Session{
		Worker:  ownership.Worker{ID: r.Worker, Session: id, Draining: r.Draining, Since: v.CreateRevision},
		Address: r.Address, record: r, rev: v.ModRevision,
	}
	return nil
}

func (s *State) applyShard(f family, name string, v *kv) error {
	n, err := shard.Parse(name)
	if err != nil {
		return err
	}
	if uint32(n) >= s.Shards {
		return fmt.Errorf("shard %s; there are %d", name, s.Shards)
	}
	if f == familyEpochs {
		s.Epochs[n] = Epoch{}
		if v == nil {
			return nil
		}
		var r epochRecord
		if err := decode(v, &r); err != nil {
			return err
		}
		s.Epochs[n] = Epoch{Epoch: r.Epoch, Worker: r.Worker, AtNS: r.AtNS, rev: v.ModRevision}
		return nil
	}
	s.Grants[n] = Grant{}
	if v == nil {
		return nil
	}
	var r grantRecord
	if err := decode(v, &r); err != nil {
		return err
	}
	s.Grants[n] = Grant{
		Grant: ownership.Grant{Worker: r.Worker, Session: r.Session, Epoch: r.Epoch},
		Fence: fence(r.Term, v.ModRevision),
	}
	return nil
}

// RegisteredNS is when the session began, by the clock of the coordinator that began it.
func (s Session) RegisteredNS() int64 { return s.record.SinceNS }
