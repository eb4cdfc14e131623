package gc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// inventory is what somebody lists of the bucket now, in files whose keys are in no order and come twice now and then.
func (g *garden) inventory(key string) gc.Inventory {
	files := make([][]string, 3)
	for i, k := range g.keys("") {
		files[i%3] = append(files[i%3], k)
		if i%5 == 0 {
			files[(i+1)%3] = append(files[(i+1)%3], k)
		}
	}
	for _, f := range files {
		slices.Reverse(f)
	}
	return gc.Inventory{Key: key, At: g.now, Files: len(files), Read: func(_ context.Context, i int, each func(string) error) error {
		for _, k := range files[i] {
			if err := each(k); err != nil {
				return err
			}
		}
		return nil
	}}
}

// sweeper is a runner whose sweeps take their keys from what open gives.
func (g *garden) sweeper(name string, l gc.Limits, s gc.RunnerStore, open func(key string) (gc.Inventory, error)) (r *gc.Runner, refused *[]error) {
	if s == nil {
		s = g.Store
	}
	refused = new([]error)
	r, err := gc.NewRunner(gc.RunnerConfig{Store: s, AuthorityID: "authority-1", By: name, Claim: "claim of " + name, Clock: &clock{}, Limits: l,
		Inventory: gc.InventoryOptions{Open: func(_ context.Context, key string) (gc.Inventory, error) { return open(key) }, Refused: func(err error) { *refused = append(*refused, err) }}})
	g.must(err)
	return r, refused
}

// listings is a store that counts the listings of blobs.
type listings struct {
	gc.RunnerStore
	n *int
}

func (l listings) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if strings.HasPrefix(o.Prefix, layout.RawBlobsPrefix) {
		*l.n++
	}
	return l.RunnerStore.List(ctx, o)
}

// A sweep by an inventory deletes what one by listings does, in whatever parts, and whoever goes on with it. What came after the
// inventory, is young, or is gone meanwhile makes no difference.
func TestASweepByAnInventory(t *testing.T) {
	for _, l := range []gc.Limits{{}, {MaxListed: 7}, {MaxNames: 9}, {MaxNames: 5, MaxListed: 3, Step: 1}} {
		g := newGarden(t)
		kept, lost := g.accepted(60), g.orphans(25)
		put(t, g.Store, layout.RawBlobsPrefix+"notes.txt", nil)
		put(t, g.Store, layout.RawBlobsPrefix+"sha256/7f/notes", nil)
		l.MinAge, l.Delay, l.Interval, l.Lease = 24*time.Hour, 5*time.Minute, 7*24*time.Hour, 10*time.Minute
		n, opened := 0, 0
		var inv gc.Inventory
		open := func(key string) (gc.Inventory, error) {
			opened++
			if key != "" && key != inv.Key {
				t.Errorf("opens %q", key)
			}
			return inv, nil
		}
		a, refusedA := g.sweeper("a", l, listings{g.Store, &n}, open)
		b, refusedB := g.sweeper("b", l, listings{g.Store, &n}, open)
		runners := []*gc.Runner{a, b}
		g.run(a)
		g.now = g.now.Add(24 * time.Hour)
		young := g.orphans(5)
		inv = g.inventory("lists/1/manifest.json")
		later := g.orphans(2)
		g.now = g.now.Add(20 * time.Hour)
		g.must(g.Delete(t.Context(), layout.Blob(lost[0].SHA256, 0)))
		for i := 0; g.state().Last.BeganAt == 0; i++ {
			if i > 1000 {
				t.Fatalf("%+v: the sweep does not end: %+v", l, g.state())
			}
			_, err := runners[i%2].Step(t.Context())
			g.must(err)
			if st := g.state(); st.Sweep.BeganAt > 0 && st.Sweep.Inventory != inv.Key {
				t.Fatalf("%+v", st.Sweep)
			}
			if i%4 < 2 {
				g.must(runners[i%2].Release(t.Context()))
			} else {
				g.now = g.now.Add(11 * time.Minute)
			}
			inv.At = g.now.Add(-30 * 24 * time.Hour) // it was young enough when the sweep began
		}
		g.check(true, kept...)
		g.check(true, young...)
		g.check(true, later...)
		g.check(false, lost...)
		if w := g.state().Last; w.Deleted != 24 || w.Candidates != 24 || w.Young != 5 || w.Foreign != 2 || w.Inventory != inv.Key || l.MaxListed == 0 && (w.Listed < 92 || w.Named < 60) {
			t.Errorf("%+v: %+v", l, w)
		}
		if n > 0 || len(*refusedA)+len(*refusedB) > 0 || opened == 0 {
			t.Errorf("%d listings of blobs, refused %v, %v", n, *refusedA, *refusedB)
		}
	}
}

// What is no good as an inventory of the blobs is refused, and the sweep lists the bucket, or what is left of it.
func TestInventoriesThatAreRefused(t *testing.T) {
	missing := func(inv *gc.Inventory, from int) {
		read := inv.Read
		inv.Read = func(ctx context.Context, i int, each func(string) error) error {
			if i >= from {
				return &objstore.Error{Op: "get", Key: "lists/data/2", Err: objstore.ErrNotFound}
			}
			return read(ctx, i, each)
		}
	}
	for name, c := range map[string]struct {
		change func(*gc.Inventory)
		err    error
		asked  bool // by an operator, for what is there now
	}{
		"too old":         {change: func(inv *gc.Inventory) { inv.At = inv.At.Add(-gc.DefaultInventoryAge - time.Hour) }},
		"of the future":   {change: func(inv *gc.Inventory) { inv.At = inv.At.Add(48 * time.Hour) }},
		"without files":   {change: func(inv *gc.Inventory) { inv.Files = 0 }},
		"a missing file":  {change: func(inv *gc.Inventory) { missing(inv, 2) }},
		"all are missing": {change: func(inv *gc.Inventory) { missing(inv, 0) }},
		"of other keys": {change: func(inv *gc.Inventory) {
			read := inv.Read
			inv.Read = func(ctx context.Context, i int, each func(string) error) error {
				return read(ctx, i, func(key string) error {
					if strings.HasPrefix(key, layout.RawBlobsPrefix) {
						return nil
					}
					return each(key)
				})
			}
		}},
		"none":            {err: errors.New("no inventory")},
		"may not be read": {err: &objstore.Error{Op: "get", Key: "lists/", Err: objstore.ErrDenied}},
		"asked for now":   {asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGarden(t)
			kept, lost := g.accepted(60), g.orphans(6)
			n := 0
			var inv gc.Inventory
			r, refused := g.sweeper("r", limits(), listings{g.Store, &n}, func(string) (gc.Inventory, error) { return inv, c.err })
			g.run(r)
			g.now = g.now.Add(24 * time.Hour)
			inv = g.inventory("lists/1/manifest.json")
			if c.change != nil {
				c.change(&inv)
			}
			if c.asked {
				_, err := gc.RequestSweep(t.Context(), g.Store, "authority-1")
				g.must(err)
			}
			st := g.run(r)
			g.check(true, kept...)
			g.check(false, lost...)
			if st.Last.EndedAt == 0 || st.Last.Inventory != "" || n == 0 || len(*refused) == 0 != c.asked {
				t.Errorf("%+v, %d listings, refused %v", st.Last, n, *refused)
			}
		})
	}
}

// A store of inventories that is away for a while is waited for.
func TestAnInventoryThatIsAway(t *testing.T) {
	g := newGarden(t)
	g.accepted(60)
	lost := g.orphans(6)
	n, away := 0, ""
	var inv gc.Inventory
	err := &objstore.Error{Op: "get", Key: "lists/", Err: fmt.Errorf("%w: status 503", objstore.ErrUnavailable)}
	r, refused := g.sweeper("r", limits(), listings{g.Store, &n}, func(string) (gc.Inventory, error) {
		if away == "open" {
			return inv, err
		}
		i := inv
		i.Read = func(ctx context.Context, at int, each func(string) error) error {
			if away == "read" {
				return err
			}
			return inv.Read(ctx, at, each)
		}
		return i, nil
	})
	g.run(r)
	g.now = g.now.Add(24 * time.Hour)
	inv = g.inventory("lists/1/manifest.json")
	for _, away = range []string{"open", "read"} {
		if _, got := r.Step(t.Context()); !errors.Is(got, objstore.ErrUnavailable) {
			t.Fatal(got)
		}
	}
	away = ""
	g.run(r)
	g.check(false, lost...)
	if n > 0 || len(*refused) > 0 {
		t.Errorf("%d listings, refused %v", n, *refused)
	}
}
