package rollup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// views are those of a node that has just begun.
type views struct{ v *catalog.View }

func (v views) View(context.Context, timegrid.Hour, timegrid.Hour) (*catalog.View, error) {
	return v.v, nil
}

// sample is a record as a query shows it.
type sample struct {
	agent, name string
	ms          int64
	value       float64
}

// shown reads every sample of the hours that blocks and deltas have, and how often each comes.
func (w *world) shown(from, to timegrid.Hour) map[sample]int {
	w.t.Helper()
	c, err := catalog.New(catalog.Config{Reader: w.store, AuthorityID: testAuthority})
	must(w.t, err)
	_, err = c.RefreshDeltas(w.t.Context())
	must(w.t, err)
	v, err := c.Refresh(w.t.Context(), from, to)
	must(w.t, err)
	r, err := published.New(published.Config{Store: w.store})
	must(w.t, err)
	q := r.Query(views{v}, testShards, published.Span{Oldest: from, Newest: to}, published.Limits{})
	out := map[sample]int{}
	ss, err := q.Select(w.t.Context(), from.StartMS()+1, to.EndMS(), labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".+"))
	must(w.t, err)
	for i := range ss {
		runs := ss[i].Runs(from.StartMS()+1, to.EndMS())
		for run, ok := runs.Next(); ok; run, ok = runs.Next() {
			for k, t := range run.T {
				out[sample{ss[i].Labels.Get("host"), ss[i].Labels.Get("__name__"), t, run.V[k]}]++
			}
		}
	}
	if ps, _ := q.Problems(); len(ps) > 0 {
		w.t.Errorf("a query can't read %+v", ps[0])
	}
	return out
}

// waiting are the batches of the shard that no block and no delta may have, by the record of its progress.
func (w *world) waiting(id shard.ID) map[identity.Batch]bool {
	w.t.Helper()
	p, _, err := progress.Read(w.t.Context(), w.store, testAuthority, id, testShards)
	if errors.Is(err, objstore.ErrNotFound) {
		p, err = progress.Progress{AuthorityID: testAuthority, Shard: id, Shards: testShards}, nil
	}
	must(w.t, err)
	out := map[identity.Batch]bool{}
	must(w.t, p.Open(w.t.Context(), w.store, func(e accepted.Batch) { out[e.Identity] = true }))
	return out
}

// samplesOf are the records of a batch.
func (w *world) samplesOf(e accepted.Batch) (out []sample) {
	w.t.Helper()
	var f frame.Batch
	must(w.t, frame.Decode(w.frames[e.Identity], &f, frame.Limits{}))
	for i := range f.Groups {
		g := &f.Groups[i]
		for k := range g.Series {
			for n, t := range g.Timestamps {
				out = append(out, sample{e.Agent, f.Name(&g.Series[k]), timegrid.Millisecond(t), g.Values[k*len(g.Timestamps)+n]})
			}
		}
	}
	return out
}

// onceOrWaiting wants every record that was entered to be shown once, if its batch does not wait any
// more, and no record twice.
func (w *world) onceOrWaiting(entered []accepted.Batch, from, to timegrid.Hour) {
	w.t.Helper()
	// The progress is read before the blocks, as query nodes do: what leaves it in between is shown.
	waiting := w.waiting(0)
	shown := w.shown(from, to)
	for _, e := range entered {
		for _, s := range w.samplesOf(e) {
			if n := shown[s]; n > 1 || n == 0 && !waiting[e.Identity] {
				w.t.Fatalf("%+v of %s is shown %d times, waiting %v", s, e.Identity, n, waiting[e.Identity])
			}
			delete(shown, s)
		}
	}
	for s := range shown {
		w.t.Fatalf("%+v was never entered", s)
	}
}

// TestDeltasMovesAndFaults: late batches of one hour and of many, two owners at once that come and go, faults, frames
// that are lost, clocks that jump; numbers that overlap, in every second seed. What does not wait any
// more is shown, and nothing twice, by a query node that begins at any moment. At the end every hour has one whole
// generation that is the recomputation, and no delta is left.
func TestDeltasMovesAndFaults(t *testing.T) {
	most := 0
	for seed := range uint64(2 * seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 18))
			w := newWorld(t, newMem())
			cfg := deltaConfig()
			cfg.Schedule.FoldAfter = time.Duration(30+rnd.IntN(300)) * time.Minute
			faulty := fault.New(w.store, seed,
				fault.Rule{Op: "write", Kind: fault.After, Chance: 0.02}, fault.Rule{Op: "write", Kind: fault.Before, Chance: 0.02},
				fault.Rule{Op: "read", Kind: fault.Before, Chance: 0.02})
			const past = 6
			from, to := hour0-past, hour0
			overlaps := seed%2 == 1
			var entered, held, gone []accepted.Batch
			next, shared := map[string]uint64{}, map[string]bool{}
			owners := make([]*driven, 2)
			fence, deltas := uint64(0), 0
			claims := claims{w: w, lost: map[identity.Batch]bool{}, seen: map[string]bool{}}
			for step := range 80 {
				for range rnd.IntN(4) {
					agent := agentOf(0, rnd.IntN(3))
					var ps []point
					seq, first := next[agent], from+timegrid.Hour(rnd.IntN(past+1))
					if overlaps && rnd.IntN(5) == 0 && seq > 0 && !shared[agent] {
						seq, shared[agent] = seq-1, true // it has the last number of the one before, in whatever hour that is
					} else {
						shared[agent] = false
					}
					for h := first; h <= to; h++ {
						// No two records have the same millisecond.
						n := len(w.accepted)
						ps = append(ps, point{"m", series.Gauge, at(h, time.Duration(1+rnd.IntN(3000))*time.Second+time.Duration(n+1)*time.Millisecond), float64(n)})
						if rnd.IntN(3) == 0 || shared[agent] {
							break
						}
					}
					if _, taken := w.frames[identity.Batch{Agent: agent, Boot: "b", SeqStart: seq, SeqEnd: seq + uint64(len(ps)) - 1}]; taken {
						continue
					}
					e := w.acceptSilently(agent, seq, ps...)
					next[agent] = e.SeqEnd + 1
					if rnd.IntN(8) == 0 {
						w.lose([]accepted.Batch{e})
						gone = append(gone, e)
						claims.lost[e.Identity] = true
					}
					held = append(held, e)
				}
				if rnd.IntN(2) == 0 && len(held) > 0 {
					w.enter(held...)
					entered = append(entered, held...)
					held = nil
				}
				for i := range owners {
					if owners[i] == nil || rnd.IntN(15) == 0 {
						fence++
						if o, err := w.owner(w.worker(cfg, faulty), ownership.Grant{Shard: 0, Fence: fence}); err == nil {
							owners[i] = o
						}
					}
					if owners[i] != nil && rnd.IntN(2) == 0 {
						_, _ = owners[i].Round(t.Context())
						claims.check()
					}
				}
				if rnd.IntN(4) == 0 && len(gone) > 0 {
					w.restore(gone[:1])
					gone = gone[1:]
				}
				w.advance(time.Duration(rnd.IntN(int(6 * time.Minute))))
				switch rnd.IntN(40) {
				case 0:
					w.advance(6 * time.Hour)
				case 1:
					w.advance(-6 * time.Hour)
				}
				deltas = max(deltas, len(w.deltas(0)))
				if step%5 == 0 && !overlaps {
					w.onceOrWaiting(entered, from, to)
				}
			}
			w.enter(held...)
			entered = append(entered, held...)
			faulty.Clear()
			w.restore(gone)
			o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: fence + 1})
			must(t, err)
			for range 24 * 12 {
				_ = rounds(t.Context(), o)
				claims.check()
				w.advance(5 * time.Minute)
				if o.Shard.Backlog.Len() == 0 && len(w.left(0)) == 0 && len(w.deltas(0)) == 0 {
					break
				}
			}
			if left := w.left(0); len(left) > 0 || len(w.deltas(0)) > 0 {
				t.Fatalf("left %d segments, %d batches, deltas %v", len(left), o.Shard.Backlog.Len(), w.deltas(0))
			}
			if !overlaps {
				w.onceOrWaiting(entered, from, to)
			}
			hours := map[timegrid.Hour]bool{}
			for _, e := range w.accepted {
				hs, _, err := o.Shard.Frames.Hours(t.Context(), e)
				must(t, err)
				for _, h := range hs {
					hours[h] = true
				}
			}
			for h := range hours {
				w.check(h, 0, w.generation(h, 0))
			}
			must(t, o.Arrivals.End(t.Context()))
			rep, err := w.repairer().Verify(t.Context(), repair.Options{From: from, To: to})
			must(t, err)
			if rep.Found > 0 || overlaps != (rep.Overlaps > 0) {
				t.Errorf("%+v", rep)
			}
			most = max(most, deltas)
			if claims.claimed == 0 || claims.batches == 0 {
				t.Errorf("%+v", claims)
			}
			t.Logf("%d batches of %d hours, up to %d deltas at once, %d requests; %d of %d plans say through which positions, with %d batches", len(w.accepted), len(hours), deltas, faulty.Count("", ""),
				claims.claimed, len(claims.seen), claims.batches)
		})
	}
	if most < 8 {
		t.Errorf("%d deltas at once", most)
	}
}

// TestCrashAtEveryStoreCallOfADelta: a worker whose store is gone from its n-th call on, for every n of a deferral and
// of a fold; the n-th write takes effect or not, and nobody hears of it. A query node that begins then shows every
// record that does not wait once; a second worker finishes.
func TestCrashAtEveryStoreCallOfADelta(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for n := 1; ; n++ {
			w, cfg := newWorld(t, newMem()), deltaConfig()
			agent := agentOf(0, 0)
			var entered []accepted.Batch
			note := func(e accepted.Batch) uint64 {
				entered = append(entered, e)
				return e.SeqEnd + 1
			}
			seq := uint64(0)
			for h := hour0 - 1; h <= hour0; h++ {
				seq = note(w.accept(agent, seq, point{"m", series.Gauge, at(h, time.Minute), float64(h)}))
			}
			w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
			late := func() {
				seq = note(w.accept(agent, seq, point{"m", series.Gauge, at(hour0-1, time.Duration(seq)*time.Minute), float64(seq)},
					point{"m", series.Gauge, at(hour0, time.Duration(seq)*time.Minute), float64(seq)}))
			}
			late()
			rules := []fault.Rule{{Skip: n - 1, Kind: fault.Before}}
			if lost {
				rules = append([]fault.Rule{{Skip: n - 1, Times: 1, Kind: fault.After}}, rules...)
			}
			dying := fault.New(w.store, 1, rules...)
			o, err := w.owner(w.worker(cfg, dying), ownership.Grant{Shard: 0, Fence: 2})
			for i := range 4 { // a delta, the fold of it, another one, and its deletion
				for range 2 {
					if err == nil {
						err = rounds(t.Context(), o)
					}
					w.advance(cfg.Schedule.LateAfter)
				}
				if i == 1 {
					late()
				}
				if i != 0 {
					w.advance(cfg.Schedule.FoldAfter)
				}
			}
			finished := err == nil && dying.Count("", "") < n
			w.onceOrWaiting(entered, hour0-1, hour0)
			w.drive(cfg, ownership.Grant{Shard: 0, Fence: 3})
			w.onceOrWaiting(entered, hour0-1, hour0)
			w.advance(cfg.Schedule.FoldAfter)
			w.drive(cfg, ownership.Grant{Shard: 0, Fence: 3})
			w.drive(cfg, ownership.Grant{Shard: 0, Fence: 3})
			o, err = w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 4})
			must(t, err)
			must(t, rounds(t.Context(), o))
			w.advance(testPolicy.Grace)
			must(t, rounds(t.Context(), o))
			for h := hour0 - 1; h <= hour0; h++ {
				w.check(h, 0, w.generation(h, 0))
			}
			if left := append(w.left(0), w.deltas(0)...); len(left) > 0 {
				t.Fatalf("call %d, lost %v: left: %v", n, lost, left)
			}
			if finished {
				t.Logf("%d calls, answers lost: %v", n-1, lost)
				break
			}
			if n > 900 {
				t.Fatal("does not come to an end")
			}
		}
	}
}
