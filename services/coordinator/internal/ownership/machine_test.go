package ownership

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/shard"
)

var rebalance = RebalanceDelay{QuietPeriod: 2 * time.Second, MaxDelay: 10 * time.Second}

func at(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }

func view(k int, ws ...Worker) View {
	return View{Workers: ws, Targets: make([]string, k), Grants: make([]Grant, k)}
}

func TestShardsMoveAfterTheQuietPeriod(t *testing.T) {
	m := NewMachine(rebalance)
	v := view(8, Worker{ID: "a", Session: 1})
	d := m.Step(at(0), v)
	if d.Change != nil || !d.Wake.Equal(at(2*time.Second)) {
		t.Fatalf("at once: %+v", d)
	}
	v.Workers = append(v.Workers, Worker{ID: "b", Session: 2})
	if d = m.Step(at(time.Second), v); d.Change != nil || !d.Wake.Equal(at(3*time.Second)) {
		t.Fatalf("another came: %+v", d)
	}
	d = m.Step(at(3*time.Second), v)
	if d.Change == nil || len(d.Grants) != 8 || !slices.Equal(d.Change.Joined, []string{"a", "b"}) || len(d.Change.Moved) != 0 {
		t.Fatalf("after the quiet period: %+v", d)
	}
	v.Targets = d.Change.Targets
	for _, g := range d.Grants {
		v.Grants[g.Shard] = Grant{Worker: g.Worker, Session: g.Session, Epoch: 1}
	}
	if d = m.Step(at(4*time.Second), v); d.Change != nil || len(d.Grants) != 0 || !d.Wake.IsZero() {
		t.Fatalf("at rest: %+v", d)
	}

	// b goes and comes back within the quiet period, with a new session: its shards stay
	// its own, and wait for the old session's end.
	gone := v
	gone.Workers = v.Workers[:1]
	if d = m.Step(at(5*time.Second), gone); d.Change != nil {
		t.Fatalf("b has gone: %+v", d)
	}
	v.Workers = []Worker{{ID: "a", Session: 1}, {ID: "b", Session: 2}, {ID: "b", Session: 3, Since: 1}}
	if d = m.Step(at(6*time.Second), v); d.Change != nil || len(d.Grants) != 0 || !d.Wake.IsZero() {
		t.Fatalf("b is back: %+v", d)
	}
	if r := Revoked(v, 2); len(r) != 4 {
		t.Errorf("the replaced session should give back its 4 shards, not %v", r)
	}
	for i, g := range v.Grants {
		if g.Session == 2 {
			v.Grants[i] = Grant{}
		}
	}
	d = m.Step(at(7*time.Second), v)
	if d.Change != nil || len(d.Grants) != 4 {
		t.Fatalf("the old session has ended: %+v", d)
	}
	for _, g := range d.Grants {
		if g.Session != 3 {
			t.Errorf("granted to session %d", g.Session)
		}
	}
}

func TestDrainDoesNotWait(t *testing.T) {
	m := NewMachine(rebalance)
	v := view(4, Worker{ID: "a", Session: 1}, Worker{ID: "b", Session: 2})
	m.Step(at(0), v)
	v.Targets = m.Step(at(2*time.Second), v).Change.Targets
	v.Workers[1].Draining = true
	d := m.Step(at(10*time.Second), v)
	if d.Change == nil || !slices.Equal(d.Change.Left, []string{"b"}) || len(d.Change.Moved) != 2 {
		t.Fatalf("b drains: %+v", d)
	}
	v.Targets = d.Change.Targets
	v.Workers[1].Draining = false // undone: it is as a worker that came
	if d = m.Step(at(11*time.Second), v); d.Change != nil {
		t.Fatalf("undone: %+v", d)
	}
	if d = m.Step(at(13*time.Second), v); d.Change == nil || !slices.Equal(d.Change.Joined, []string{"b"}) {
		t.Fatalf("undone, after the quiet period: %+v", d)
	}
	// The last worker drains: nobody is there to take over, and it gives everything back.
	v = view(4, Worker{ID: "a", Session: 1, Draining: true})
	for i := range v.Targets {
		v.Targets[i], v.Grants[i] = "a", Grant{Worker: "a", Session: 1, Epoch: 1}
	}
	if d = NewMachine(rebalance).Step(at(0), v); d.Change != nil || len(Revoked(v, 1)) != 4 {
		t.Errorf("the last one drains: %+v, revoked %v", d, Revoked(v, 1))
	}
}

// TestFlappingIsBounded: workers that keep coming and going do not put a change off for ever.
func TestFlappingIsBounded(t *testing.T) {
	m := NewMachine(rebalance)
	v := view(4, Worker{ID: "a", Session: 1})
	now, session := time.Duration(0), Session(2)
	for ; now < time.Minute; now += time.Second {
		v.Workers = v.Workers[:1:1]
		if now/time.Second%2 == 1 {
			v.Workers = append(v.Workers, Worker{ID: fmt.Sprint("f", session), Session: session})
			session++
		}
		if m.Step(at(now), v).Change != nil {
			break
		}
	}
	if now != rebalance.MaxDelay {
		t.Errorf("assigned after %s, want %s", now, rebalance.MaxDelay)
	}
}

// world is everything around the machine: workers with leases, and the leader that is
// replaced by a new one now and then, which knows nothing.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	now     time.Duration
	v       View
	epochs  []Epoch
	session Session
	m       *Machine
	paused  map[Session]bool // does not answer a revocation
}

func (w *world) step() {
	switch r := w.rng.IntN(100); {
	case r < 8 && len(w.v.Workers) < 9: // one comes, perhaps under a known name
		w.session++
		w.v.Workers = append(slices.Clone(w.v.Workers), Worker{ID: fmt.Sprint("w", w.rng.IntN(8)), Session: w.session, Since: int64(w.session)})
	case r < 14 && len(w.v.Workers) > 0: // a lease ends, and all of its grants
		i := w.rng.IntN(len(w.v.Workers))
		for n, g := range w.v.Grants {
			if g.Session == w.v.Workers[i].Session {
				w.v.Grants[n] = Grant{}
			}
		}
		w.v.Workers = slices.Delete(slices.Clone(w.v.Workers), i, i+1)
	case r < 18 && len(w.v.Workers) > 0:
		w.v.Workers = slices.Clone(w.v.Workers)
		i := w.rng.IntN(len(w.v.Workers))
		w.v.Workers[i].Draining = !w.v.Workers[i].Draining
	case r < 22 && len(w.v.Workers) > 0:
		s := w.v.Workers[w.rng.IntN(len(w.v.Workers))].Session
		w.paused[s] = !w.paused[s]
	case r < 24:
		w.m = NewMachine(rebalance)
	}
	for _, wk := range w.v.Workers {
		if !w.paused[wk.Session] {
			for _, n := range Revoked(w.v, wk.Session) {
				w.v.Grants[n] = Grant{}
			}
		}
	}
	w.now += time.Duration(w.rng.IntN(3000)) * time.Millisecond
	w.decide()
}

func (w *world) decide() {
	before := slices.Clone(w.v.Targets)
	d := w.m.Step(at(w.now), w.v)
	if !slices.Equal(before, w.v.Targets) {
		w.t.Fatal("Step wrote to its view")
	}
	if c := d.Change; c != nil {
		checkBalance(w.t, c.Targets, Eligible(w.v.Workers))
		k, n := len(before), c.Workers+len(c.Left)
		if most := (len(c.Joined) + len(c.Left)) * ceil(k, max(1, min(n, c.Workers))); len(c.Moved) > most {
			w.t.Fatalf("%d of %d moved when %v came and %v went, of %d workers", len(c.Moved), k, c.Joined, c.Left, c.Workers)
		}
		w.v.Targets = c.Targets
	}
	w.v.Grants = slices.Clone(w.v.Grants)
	for _, g := range d.Grants {
		old := w.v.Grants[g.Shard]
		if old.Held() {
			w.t.Fatalf("shard %s is granted to %s while %s holds it", g.Shard, g.Worker, old.Worker)
		}
		if w.v.Targets[g.Shard] != g.Worker {
			w.t.Fatalf("shard %s is granted to %s; its target is %s", g.Shard, g.Worker, w.v.Targets[g.Shard])
		}
		w.epochs[g.Shard]++
		w.v.Grants[g.Shard] = Grant{Worker: g.Worker, Session: g.Session, Epoch: w.epochs[g.Shard]}
	}
}

// TestAnyHistoryKeepsThePromises: joins, ends of leases, drains, pauses and new leaders.
func TestAnyHistoryKeepsThePromises(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for run := range 60 {
		rng := rand.New(rand.NewPCG(seed, uint64(run)))
		k := 1 + rng.IntN(40)
		w := &world{t: t, rng: rng, v: view(k), epochs: make([]Epoch, k), m: NewMachine(rebalance), paused: map[Session]bool{}}
		for range 400 {
			w.step()
		}
		// Nothing happens any more: nothing waits, and every shard is held where it should be.
		w.paused = map[Session]bool{}
		for range 20 {
			for _, wk := range w.v.Workers {
				for _, n := range Revoked(w.v, wk.Session) {
					w.v.Grants[n] = Grant{}
				}
			}
			w.now += time.Second
			w.decide()
		}
		for i, g := range w.v.Grants {
			if len(Eligible(w.v.Workers)) > 0 && (!g.Held() || g.Worker != w.v.Targets[i]) {
				t.Errorf("run %d: shard %s is held by %q, not %q", run, shard.ID(i), g.Worker, w.v.Targets[i])
			}
		}
	}
}

func TestNames(t *testing.T) {
	for _, id := range []string{"a", "host-1.example_X"} {
		if err := CheckWorkerID(id); err != nil {
			t.Error(err)
		}
	}
	for _, id := range []string{"", "a/b", "a b", "ä", string(make([]byte, 200))} {
		if CheckWorkerID(id) == nil {
			t.Errorf("%q is taken", id)
		}
	}
	if _, err := ParseKind("query"); err == nil {
		t.Error("query is taken for a kind")
	}
}
