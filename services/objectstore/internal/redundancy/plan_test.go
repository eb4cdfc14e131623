package redundancy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// plans calls fn with every view of a body that has up to one copy and three shards, each absent or in any state, at places of their
// own, at one place, at one that is away, or at one that is gone.
func plans(fn func(View)) int {
	policy := twoOne
	policy.Version = 3
	places := []Place{{ID: "a", Name: "a", Up: true}, {ID: "b", Name: "b", Up: true}, {ID: "c", Name: "c", Up: true}, {ID: "d", Name: "d", Since: t0.Add(-time.Minute)}}
	where := [][]string{{"a", "b", "c"}, {"a", "a", "b"}, {"a", "b", "d"}, {"a", "gone", "b"}, {"d", "gone", "a"}}
	states := append([]ledger.State{0}, ledger.States()...)
	n := 0
	for _, at := range where {
		for _, copyAt := range []string{"c", "d", "gone"} {
			places := slices.Clone(places)
			places[2].Full = copyAt == "d" // no place is left that could take a file
			places[1].Leaving = copyAt == "gone"
			for i := range 8 * 8 * 8 * 8 {
				v := View{Body: anID(1), Naming: Named, Policy: policy, Places: places, Now: t0, HealAfter: time.Hour, Rebalance: i%2 == 0}
				add := func(s ledger.State, k ledger.Key, place string) {
					if s != 0 {
						v.Rows = append(v.Rows, ledger.Row{Key: k, K: 2, M: 1, Place: place, State: s, Size: large, Version: 1, Created: t0.UnixNano()})
					}
				}
				add(states[i%8], ledger.Key{Body: anID(1), Kind: ledger.Copy}, copyAt)
				for j := range 3 {
					add(states[i>>(3*(j+1))%8], policy.shard(anID(1), j), at[j])
				}
				n++
				fn(v)
			}
		}
	}
	return n
}

// wantedComplete says it in other words than the plan does.
func wantedComplete(v View) bool {
	at := map[string]bool{}
	n := 0
	for _, r := range v.Rows {
		up := slices.ContainsFunc(v.Places, func(p Place) bool { return p.ID == r.Place && p.Up })
		if r.Policy == v.Policy.Version && r.State == ledger.Durable && up {
			at[r.Place] = true
			n++
		}
	}
	return n == 3 && len(at) == 3
}

// TestEveryPlan: what may never be planned is not, in any state of a body; and a body without a plan and without a reason
// to wait has all that it should.
func TestEveryPlan(t *testing.T) {
	seen := map[Do]int{}
	n := plans(func(v View) {
		p := Next(v)
		bad := func(why string, args ...any) {
			if !t.Failed() {
				t.Errorf("%s\nrows %+v\nplan %+v", fmt.Sprintf(why, args...), v.Rows, p)
			}
		}
		for _, s := range p.Steps {
			seen[s.Do]++
			gone := !slices.ContainsFunc(v.Places, func(p Place) bool { return p.ID == s.Row.Place })
			if (s.Do == Stage || s.Do == Assign || s.Do == Shift || s.Do == Lose) && slices.ContainsFunc(v.Places, func(p Place) bool {
				return (p.Full || p.Leaving) && (p.ID == s.Place || s.Do == Stage && p.ID == s.Row.Place)
			}) {
				bad("a file is to go to a place that takes none")
			}
			switch s.Do {
			case Drop:
				if !wantedComplete(v) || len(s.Relies) != 3 || s.Row.Policy == v.Policy.Version {
					bad("a file is dropped that may be needed")
				}
				for _, r := range s.Relies {
					if r.Policy != v.Policy.Version || r.State != ledger.Durable {
						bad("%s is relied on", r.Key)
					}
				}
			case Remove:
				if s.Row.State != ledger.Removing {
					bad("a file is removed that was not dropped")
				}
			case Forget:
				if !gone {
					bad("a file of a place that is there is forgotten")
				}
			case Make:
				for _, r := range s.Rows {
					if r.State != ledger.Staged || r.Policy != v.Policy.Version {
						bad("%s is made", r.Key)
					}
				}
			case Read:
				if s.Row.State != ledger.Uploaded || gone {
					bad("%s is read", s.Row.Key)
				}
			case Lose:
				if !gone || !s.Row.State.Readable() {
					bad("%s is lost", s.Row.Key)
				}
			case Shift:
				if s.Row.State != ledger.Durable || gone || s.Place == s.Row.Place {
					bad("%s is moved", s.Row.Key)
				}
			case Stage, Assign, Revive:
			}
		}
		if len(p.Steps) > 0 || p.Wait != "" {
			return
		}
		leaving := slices.ContainsFunc(v.Rows, func(r ledger.Row) bool {
			return slices.ContainsFunc(v.Places, func(p Place) bool { return p.ID == r.Place && p.Leaving })
		})
		if !wantedComplete(v) || len(v.Rows) != 3 || leaving {
			bad("nothing is planned, and nothing waits")
		}
	})
	t.Logf("%d views, steps %v", n, seen)
	for _, d := range []Do{Stage, Assign, Lose, Revive, Make, Read, Shift, Drop, Remove, Forget} {
		if seen[d] == 0 {
			t.Errorf("step %d was never planned", d)
		}
	}
}

// TestEveryUnnamedPlan: of a body that nobody names everything goes, whatever the clock says, and of one that somebody has only what
// was given up before.
func TestEveryUnnamedPlan(t *testing.T) {
	plans(func(v View) {
		for _, by := range []time.Duration{0, -1000 * time.Hour, 1000 * time.Hour} {
			v.Now = t0.Add(by)
			v.Naming = Awaited
			for _, s := range Next(v).Steps {
				if s.Do != Remove && s.Do != Forget || s.Row.State != ledger.Removing {
					t.Fatalf("step %d for a body that somebody has: %+v", s.Do, v.Rows)
				}
			}
			v.Naming = Unnamed
			live := 0
			for _, r := range v.Rows {
				if r.State != ledger.Removing {
					live++
				}
			}
			p := Next(v)
			drops := 0
			for _, s := range p.Steps {
				if s.Do != Drop && s.Do != Remove && s.Do != Forget {
					t.Fatalf("step %d for what nobody names", s.Do)
				}
				if s.Do == Drop {
					drops++
				}
			}
			if drops != live && len(p.Steps) == drops {
				t.Fatalf("%d of %d are dropped: %+v", drops, live, v.Rows)
			}
		}
	})
}

// TestAwaitedIsLookedAtSoon: the record of a body mostly follows at once, so a body that was written is looked at again soon,
// and seldom when no record comes, or when the clock was set.
func TestAwaitedIsLookedAtSoon(t *testing.T) {
	for age, want := range map[time.Duration]time.Duration{-time.Hour: firstUnnamed, 0: firstUnnamed, 3 * time.Second: 3 * time.Second, 10 * time.Minute: retryUnnamed} {
		v := View{Naming: Awaited, Now: t0.Add(age), Places: []Place{{ID: "p", Name: "p", Up: true}},
			Rows: []ledger.Row{{Key: ledger.Key{Body: "b", Kind: ledger.Copy}, Place: "p", State: ledger.Uploaded, Created: t0.UnixNano()}}}
		if p := Next(v); len(p.Steps) > 0 || p.Wait == "" || !p.Until.Equal(v.Now.Add(want)) {
			t.Errorf("at the age of %s: %+v", age, p)
		}
	}
}

// TestPlacesAreShared: each body has an order of its own, so all places get their share, and a place that comes takes only what
// is its own.
func TestPlacesAreShared(t *testing.T) {
	of := func(n int, names ...string) []string {
		p := &planner{View: View{Body: anID(n)}}
		for _, name := range names {
			p.Places = append(p.Places, Place{ID: name, Name: name, Up: true})
		}
		return p.targets(2, nil)
	}
	share := map[string]int{}
	for n := range 3000 {
		before, after := of(n, "a", "b", "c"), of(n, "a", "b", "c", "new")
		for _, id := range before {
			share[id]++
		}
		for _, id := range after {
			if id != "new" && !slices.Contains(before, id) {
				t.Fatalf("%s gets a file because another place came", id)
			}
		}
	}
	for id, n := range share {
		if n < 1900 || n > 2100 {
			t.Errorf("%s has %d of 6000", id, n)
		}
	}
}
