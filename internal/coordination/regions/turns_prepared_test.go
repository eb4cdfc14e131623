package regions_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// hashOf says whose frame an identity is, of some frames; empty where it is free.
func (w *world) hashOf(k *regions.Keeper, o regions.Opened, id identity.Batch, frames ...string) string {
	for _, l := range w.claimLines() {
		for _, f := range frames {
			if strings.HasPrefix(l, fmt.Sprintf("%s %d-%d ", id.Boot, id.SeqStart, id.SeqEnd)) && strings.HasSuffix(l, fmt.Sprintf(" %.8s", identity.Sum([]byte(f)))) {
				return f
			}
		}
	}
	for _, f := range frames {
		if got := w.asked(k, o.Epoch, id, f); got == "bound" || strings.HasPrefix(got, "DECIDED") {
			return f
		} else if got != "free" && !strings.HasPrefix(got, "CONFLICT") {
			return got
		}
	}
	return ""
}

func (w *world) claimLines() (out []string) {
	for _, e := range wholeEtcd(w.kv, keys.Claims()) {
		boot, start, err := keys.ParseClaim(e.Key)
		c, err2 := claims.ParseClaim(boot, start, e.Value)
		if err != nil || err2 != nil {
			w.t.Fatal(err, err2)
		}
		out = append(out, fmt.Sprintf("%s %d-%d %s %.8s", c.Identity.Boot, c.Identity.SeqStart, c.Identity.SeqEnd, c.Home, c.Hash))
	}
	return out
}

func TestAnAdditionOfAPreparedRegionTakesTurns(t *testing.T) {
	all := []claims.Region{"africa", "asia", "eu", "us"}
	for name, second := range map[string]func(k *regions.Keeper) (regions.Opened, error){
		"open":        func(k *regions.Keeper) (regions.Opened, error) { return k.Open(context.Background(), true) },
		"retire asia": func(k *regions.Keeper) (regions.Opened, error) { return k.Retire(context.Background(), "asia", true) },
		"retire us":   func(k *regions.Keeper) (regions.Opened, error) { return k.Retire(context.Background(), "us", true) },
		"add africa":  func(k *regions.Keeper) (regions.Opened, error) { return k.Add(context.Background(), "africa") },
	} {
		n, opened := 0, 0
		for first := 8; first < 400; first += 3 {
			more := true
			for turn := 2; turn < 60 && more; turn += 7 {
				for third := 1; third < 14; third += 4 {
					w := newWorld(t, all...)
					w.open("asia", "eu")
					es := w.alone("us", "b", 0, 6)
					w.journalled("us", es...)
					w.prepare(w.keeper(all...), "us")
					w.journalled("africa", w.batchAlone("africa", batch("b", 11, 20), "africa", 50), w.batchAlone("africa", batch("b", 71, 80), "africa", 50))
					w.prepare(w.keeper(all...), "africa")
					call := w.turns()
					var added, other regions.Opened
					var err, err2 error
					a := call(func() { added, err = w.keeper(all...).Add(context.Background(), "us") })
					b := call(func() { other, err2 = second(w.keeper(all...)) })
					if more = a(first); !more {
						break
					}
					b(turn)
					a(third)
					b(-1)
					n++
					want := map[identity.Batch]string{}
					before := w.before
					w.before = nil
					k := w.keeper(all...)
					ids := []identity.Batch{batch("b", 71, 80)}
					for _, e := range es {
						ids = append(ids, e.ID)
					}
					frames := func(id identity.Batch) []string {
						return []string{fmt.Sprint("b", id.SeqStart/10), "x", "africa"}
					}
					if err2 == nil {
						opened++
						for _, id := range ids {
							if want[id] = w.hashOf(k, other, id, frames(id)...); want[id] == "" && slices.Contains(other.Epoch.Regions, "eu") {
								w.claim(other, id, "eu", "x", claims.Settled, false)
								w.manifest("eu", id, "x", accepted.Stamp{Epoch: other.Epoch.Number, Fence: 5})
								want[id] = "x"
							}
						}
					}
					w.before = before
					a(-1)
					w.before = nil
					_, _ = added, err // it was overtaken, or not
					// What is in etcd alone hides what folds say.
					w.kv.Restore(kv.New(), 2)
					o, err3 := k.Open(t.Context(), true)
					if err3 != nil {
						t.Fatalf("%s, %d %d %d: %v", name, first, turn, third, err3)
					}
					for id, f := range want {
						if got := w.hashOf(k, o, id, frames(id)...); got != f {
							t.Fatalf("%s, %d %d %d: %s was %q in epoch %d with %v, and is %q in %d with %v", name, first, turn, third, id, f, other.Epoch.Number, other.Epoch.Regions, got, o.Epoch.Number, o.Epoch.Regions)
						}
					}
				}
			}
		}
		t.Logf("%s: %d, opened %d", name, n, opened)
	}
}
