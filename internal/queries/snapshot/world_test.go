package snapshot

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	workmem "lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var bg = context.Background()

const (
	shards = 4
	mine   = shard.ID(2)
)

// agents of the shard under test.
var agents = func() []string {
	var out []string
	for i := 0; len(out) < 3; i++ {
		if a := fmt.Sprintf("agent-%d", i); shard.Of(a, shards) == mine {
			out = append(out, a)
		}
	}
	return out
}()

// world is a store with accepted batches, and the pending work of a deployment.
type world struct {
	t       testing.TB
	store   *mem.Store
	work    *workmem.Store
	now     time.Time
	entries []accepted.Batch
	frames  map[identity.Digest][]byte
	bad     map[identity.Batch]bool // their frames can't be read
	lives   int
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, now: time.Unix(1_800_000_000, 0), frames: map[identity.Digest][]byte{}, bad: map[identity.Batch]bool{}}
	w.store = mem.New(func() time.Time { return w.now })
	w.work = workmem.New(func() time.Time { return w.now }, workmem.Options{})
	return w
}

// accept makes n more batches, a second apart, the last of them now.
func (w *world) accept(n int) []accepted.Batch {
	var out []accepted.Batch
	for i := range n {
		k := len(w.entries)
		at := w.now.Add(time.Duration(i-n+1) * time.Second).UnixNano()
		raw := fmt.Appendf(nil, "the frame of batch %d", k)
		d := identity.Sum(raw)
		e := accepted.Batch{
			Identity:    identity.Batch{Agent: agents[k%len(agents)], Boot: "b", SeqStart: uint64(k / len(agents) * 10), SeqEnd: uint64(k/len(agents)*10 + 9)},
			FrameSHA256: d, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(d, 0), AcceptedAt: at, MinTime: at - 1e9, MaxTime: at,
		}
		w.frames[d] = raw
		w.entries = append(w.entries, e)
		out = append(out, e)
	}
	return out
}

// chain is a process that owns the shard from now on.
func (w *world) chain(change func(*Config)) *Chain {
	w.t.Helper()
	w.lives++
	c := Config{
		Store: w.store, Table: w.work, AuthorityID: "test", Shard: mine, Shards: shards, Fence: uint64(w.lives),
		Owner: fmt.Sprintf("life-%d", w.lives), Now: func() time.Time { return w.now }, Frames: w.read, Window: time.Hour,
	}
	if change != nil {
		change(&c)
	}
	ch, err := NewChain(c)
	w.must(err)
	return ch
}

func (w *world) read(_ context.Context, entries []accepted.Batch) ([][]byte, error) {
	out := make([][]byte, len(entries))
	for i, e := range entries {
		if !w.bad[e.Identity] {
			out[i] = w.frames[e.FrameSHA256]
		}
	}
	return out, nil
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// minWait is the time between two steps.
const minWait = time.Second

// step lets the chain do steps until it has done a job, or for work.Idle sees that none is due.
func (w *world) step(c *Chain, want work.Outcome) {
	w.t.Helper()
	for range 60 {
		o, err := c.Step(bg)
		switch {
		case err != nil:
			w.t.Fatalf("step: %s, %v; want %s", o, err, want)
		case o == want:
			return
		case o == work.Idle:
			w.now = w.now.Add(minWait)
		default:
			w.t.Fatalf("step: %s; want %s", o, want)
		}
	}
	w.t.Fatalf("never %s", want)
}

// newest reads what a query node would start from: every frame of the newest snapshot, verified.
func (w *world) newest() (*Snapshot, map[identity.Batch]accepted.Batch) {
	w.t.Helper()
	all, err := All(bg, w.store)
	w.must(err)
	if len(all[mine]) == 0 {
		w.t.Fatal("no snapshot")
	}
	s, err := Read(bg, w.store, mine, all[mine][0])
	w.must(err)
	got := map[identity.Batch]accepted.Batch{}
	for _, r := range s.Packs {
		p, err := ReadPack(bg, w.store, s, r)
		w.must(err)
		for i, e := range p.Entries {
			raw, err := p.Frame(i)
			w.must(err)
			if string(raw) != string(w.frames[e.FrameSHA256]) {
				w.t.Errorf("%s has the frame %q", e.Identity, raw)
			}
			if _, twice := got[e.Identity]; twice {
				w.t.Errorf("%s stands in two packs", e.Identity)
			}
			if !r.Inputs.Covers(e.Identity) {
				w.t.Errorf("%s is in a pack, and not in its inputs", e.Identity)
			}
			got[e.Identity] = e
		}
	}
	return s, got
}

// holds checks that the newest snapshot has exactly these batches.
func (w *world) holds(want []accepted.Batch) *Snapshot {
	w.t.Helper()
	s, got := w.newest()
	for _, e := range want {
		if got[e.Identity] != e {
			w.t.Errorf("%s: %+v, want %+v", e.Identity, got[e.Identity], e)
		}
	}
	if len(got) != len(want) {
		w.t.Errorf("%d batches, want %d", len(got), len(want))
	}
	return s
}

func (w *world) keys(prefix string) []string {
	w.t.Helper()
	var out []string
	w.must(storetest.Each(bg, w.store, prefix, func(o objstore.Info) error { out = append(out, o.Key); return nil }))
	return out
}

// tidy checks that the last three snapshots are there, every pack that they name, and nothing else.
func (w *world) tidy() {
	w.t.Helper()
	numbers, err := Numbers(bg, w.store, mine)
	w.must(err)
	if len(numbers) > keep {
		w.t.Errorf("snapshots %v", numbers)
	}
	named := map[string]bool{}
	for _, n := range numbers {
		s, err := Read(bg, w.store, mine, n)
		w.must(err)
		for _, r := range s.Packs {
			named[r.Key(mine)] = true
		}
	}
	have := w.keys(layout.LivePacks(mine))
	for _, k := range have {
		if !named[k] {
			w.t.Errorf("%s is named by no snapshot", k)
		}
		delete(named, k)
	}
	for k := range named {
		w.t.Errorf("%s is named, and not there", k)
	}
	if !slices.IsSorted(have) {
		w.t.Error("keys are not listed in order")
	}
}
