package send_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/agent/send"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// TestReloadOfCollectors: other collectors are taken while batches are in flight: these get their answers first.
func TestReloadOfCollectors(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		home, away, other := w.region(home1), w.region(away1), w.region(home2)
		late := func([]byte) *ingestv1.BatchResult { time.Sleep(5 * time.Second); return nil }
		home.answers(late)
		w.cfg.Collectors = []string{home1}
		w.run()
		stop := w.feedUntilStopped(100 * time.Millisecond)
		time.Sleep(time.Minute)
		reload := func(change func(*send.Config)) {
			t.Helper()
			next := w.cfg
			change(&next)
			if err := w.sender.Reload(next); err != nil {
				t.Fatal(err)
			}
			w.cfg = next
		}
		// The same collectors, and a fallback beside them: one stream more to the same one.
		reload(func(c *send.Config) { c.Fallback = []string{away1} })
		time.Sleep(time.Minute)
		if len(home.Hellos()) != 2 || len(away.Hellos()) != 0 || len(w.sender.Status().Collectors) != 2 {
			t.Errorf("%d streams to the first, %d to its fallback", len(home.Hellos()), len(away.Hellos()))
		}
		// Settings that are refused, and such that say the same, change nothing.
		bad := w.cfg
		bad.Fallback = []string{home1}
		if err := w.sender.Reload(bad); err == nil {
			t.Error("a collector in both lists is taken")
		}
		reload(func(*send.Config) {})
		time.Sleep(time.Minute)
		if len(home.Hellos()) != 2 {
			t.Errorf("%d streams", len(home.Hellos()))
		}
		// Another preferred collector; the one that was used becomes the fallback.
		reload(func(c *send.Config) { c.Collectors, c.Fallback = []string{home2}, []string{home1} })
		time.Sleep(time.Minute)
		n := len(home.got())
		time.Sleep(time.Minute)
		if len(home.got()) != n || len(other.got()) == 0 || w.list() != send.Preferred {
			t.Errorf("the collector before is still used: %+v", w.sender.Status())
		}
		// On the fallback, which the settings have no more afterwards.
		w.net.set(down, home2)
		w.waitList(send.Fallback, time.Minute)
		w.net.set(cut, home2)
		reload(func(c *send.Config) { c.Collectors, c.Fallback = []string{away1}, []string{home2} })
		time.Sleep(10 * time.Second)
		if w.list() != send.Preferred || len(away.got()) == 0 {
			t.Errorf("%+v", w.sender.Status())
		}
		// Everything is away, and the longest back-offs are waited for.
		home.answers(nil)
		w.net.set(down, away1)
		time.Sleep(10 * time.Minute)
		reload(func(c *send.Config) { c.Collectors, c.Fallback = []string{home1}, nil })
		time.Sleep(5 * time.Second) // what keeps gRPC from connecting may be looked for at that moment
		if w.queue.Stats().Pending > 2 || w.sender.Status().DisconnectedSince != nil {
			t.Errorf("a reload waits for a back-off: %+v", w.sender.Status())
		}
		stop()
		w.checkAll()
		if n := w.metric("lightmetrics_agent_streams_total", home2); n != -1 {
			t.Errorf("a collector that the settings have no more has metrics: %v", n)
		}
		if twice := len(repeated(home, away, other)); twice > 40 { // those that were in flight when a collector died
			t.Errorf("%d batches were sent twice", twice)
		}
	})
}

// TestReloadWhileNobodyAnswers: neither an attempt at a collector that does not answer nor a back-off holds other collectors up.
func TestReloadWhileNobodyAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		state linkState
		after time.Duration // the start
	}{"silent": {cut, time.Second}, "in back-off": {down, 10 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.region(home1)
				w.region(home2)
				w.net.set(c.state, home1)
				w.cfg.Collectors, w.cfg.BackoffInitial, w.cfg.BackoffMax = []string{home1}, time.Hour, time.Hour
				w.append(1)
				w.run()
				time.Sleep(c.after)
				next := w.cfg
				next.Collectors = []string{home2}
				if err := w.sender.Reload(next); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				if n := w.queue.Stats().Pending; n != 0 {
					t.Errorf("%d batches wait, %+v", n, w.sender.Status())
				}
				w.checkAll()
			})
		})
	}
}

// TestReloadOfTimesWhileAway: times that are shortened hold at once, also of what was waited for by the longer ones.
func TestReloadOfTimesWhileAway(t *testing.T) {
	for name, after := range map[string]time.Duration{"before the first probe": time.Minute, "while probes succeed": 20 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.region(home1)
				w.region(away1)
				w.cfg.Collectors, w.cfg.Fallback = []string{home1}, []string{away1}
				short := w.cfg
				w.cfg.ReturnAfter, w.cfg.ReturnInterval, w.cfg.ReturnMax = 100*time.Hour, 10*time.Hour, 100*time.Hour
				w.net.set(down, home1)
				w.run()
				stop := w.feedUntilStopped(time.Minute)
				w.waitList(send.Fallback, time.Hour)
				w.net.set(up, home1)
				time.Sleep(after)
				if err := w.sender.Reload(short); err != nil {
					t.Fatal(err)
				}
				w.waitList(send.Preferred, 3*short.ReturnAfter)
				stop()
				w.checkAll()
			})
		})
	}
}

// TestRegionsAtRandom: links and answers of both regions change at random, settings are loaded again, and the agent restarts; in the end everything is
// accepted once, with its bytes, and the agent is back in its own region.
func TestRegionsAtRandom(t *testing.T) {
	for range 6 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				rng := rand.New(rand.NewPCG(seed, 1))
				regions := []*region{w.region(home1), w.region(home2), w.region(away1), w.region(away2)}
				w.cfg.Collectors, w.cfg.Fallback = []string{home1, home2}, []string{away1, away2}
				end := w.run()
				stop := w.feedUntilStopped(time.Second)
				for range 100 {
					r := regions[rng.IntN(len(regions))]
					switch rng.IntN(9) {
					case 0:
						w.net.set(down, r.address)
					case 1:
						w.net.set(cut, r.address)
					case 2:
						r.answers(retries)
					case 3:
						r.answers(func(b []byte) *ingestv1.BatchResult { w.store.Accept(b); return never })
					case 4:
						r.answers(func([]byte) *ingestv1.BatchResult { time.Sleep(20 * time.Second); return nil })
					case 5:
						next := w.cfg
						next.Collectors = []string{home1, home2}[rng.IntN(2):]
						next.Fallback = []string{away1, away2}[rng.IntN(3):]
						if err := w.sender.Reload(next); err != nil {
							t.Error(err)
						}
					case 6: // as a restart: what is in flight has no answer
						end()
						w.reg = prometheus.NewRegistry()
						end = w.run()
					default:
						w.net.set(up, r.address)
						r.answers(nil)
					}
					time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Minute))))
				}
				for _, r := range regions {
					w.net.set(up, r.address)
					r.answers(nil)
				}
				if err := w.sender.Reload(w.cfg); err != nil {
					t.Error(err)
				}
				w.waitList(send.Preferred, 2*w.cfg.ReturnMax+10*time.Minute)
				stop()
				w.checkAll()
			})
		})
	}
}
