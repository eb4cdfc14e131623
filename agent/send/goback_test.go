package send_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// Addresses of collectors: documentation addresses, so that a dial that left the bubble would reach nobody.
const (
	home1 = "192.0.2.1:4750"
	home2 = "192.0.2.2:4750"
	away1 = "198.51.100.1:4750"
	away2 = "198.51.100.2:4750"
)

// TestPreferredAreUsed: while the own region answers, nothing is sent to another one, and none is asked.
func TestPreferredAreUsed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		home, away := w.region(home1), w.region(away1)
		w.cfg.Collectors, w.cfg.Fallback = []string{home1}, []string{away1}
		w.run()
		w.feed(time.Hour, 10*time.Second)
		w.checkAll()
		if len(away.Hellos()) != 0 || len(home.Hellos()) != 1 || w.list() != send.Preferred {
			t.Errorf("%d streams to the fallback, %d to the preferred collector", len(away.Hellos()), len(home.Hellos()))
		}
	})
}

// TestARestartIsNoReasonToLeave: a collector that is back within fallback_after keeps its agents.
func TestARestartIsNoReasonToLeave(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.region(home1)
		away := w.region(away1)
		w.cfg.Collectors, w.cfg.Fallback = []string{home1}, []string{away1}
		w.run()
		for range 20 {
			w.feed(time.Minute, time.Second)
			w.net.set(down, home1)
			w.feed(8*time.Second, time.Second)
			w.net.set(up, home1)
		}
		w.checkAll()
		if n := len(away.got()); n != 0 {
			t.Errorf("%d batches were sent to the fallback", n)
		}
	})
}

// TestTheOtherPreferredIsFirst: the fallback is for when each preferred collector was tried in vain.
func TestTheOtherPreferredIsFirst(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		homes := []*region{w.region(home1), w.region(home2)}
		away := w.region(away1)
		w.cfg.Collectors, w.cfg.Fallback = []string{home1, home2}, []string{away1}
		w.run()
		w.feed(time.Minute, time.Second)
		in := slices.IndexFunc(homes, func(r *region) bool { return len(r.got()) > 0 })
		w.net.set(cut, homes[in].address)
		w.feed(5*time.Minute, time.Second)
		w.checkAll()
		if len(away.got()) != 0 || len(homes[1-in].got()) == 0 {
			t.Errorf("%d batches went to the fallback, %d to the other preferred collector", len(away.got()), len(homes[1-in].got()))
		}
	})
}

// TestReturns: the own region goes away in each way that there is, and comes back. The agent uses the fallback meanwhile, and
// returns by itself after the time that the settings say.
func TestReturns(t *testing.T) {
	for name, c := range map[string]struct {
		gone, back func(w *world, home *region)
		within     time.Duration // until the fallback is used
	}{
		"dead": {
			func(w *world, home *region) { w.net.set(down, home1) }, func(w *world, home *region) { w.net.set(up, home1) }, 20 * time.Second},
		// The batch in flight is waited for, then a connection.
		"cut off": {
			func(w *world, home *region) { w.net.set(cut, home1) }, func(w *world, home *region) { w.net.set(up, home1) }, 75 * time.Second},
		"only RETRY": {
			func(w *world, home *region) { home.answers(retries) }, func(w *world, home *region) { home.answers(nil) }, 30 * time.Second},
		"no answers": {
			func(w *world, home *region) {
				home.answers(func([]byte) *ingestv1.BatchResult { return never })
			}, func(w *world, home *region) { home.answers(nil) }, 75 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				home, away := w.region(home1), w.region(away1)
				w.cfg.Collectors, w.cfg.Fallback = []string{home1}, []string{away1}
				w.run()
				w.feed(time.Minute, time.Second)
				c.gone(w, home)
				stop := w.feedUntilStopped(time.Second)
				left := w.waitList(send.Fallback, c.within)
				if left < w.cfg.FallbackAfter {
					t.Errorf("left after %s", left)
				}
				time.Sleep(10 * time.Minute)
				if n := w.queue.Stats().Pending; n > 32 {
					t.Errorf("%d batches wait on the fallback", n)
				}
				streams := len(away.Hellos())
				c.back(w, home)
				longest := 2*w.cfg.ReturnAfter + 2*w.cfg.ReturnInterval
				if name == "only RETRY" || name == "no answers" { // it welcomes all the time, so it was tried too early
					longest = 2*w.cfg.ReturnMax + 2*w.cfg.ReturnInterval
				}
				took := w.waitList(send.Preferred, longest)
				if name != "only RETRY" && name != "no answers" && took < w.cfg.ReturnAfter {
					t.Errorf("returned after %s", took)
				}
				stop()
				w.checkAll()
				if n := len(away.Hellos()); n != streams {
					t.Errorf("%d streams to the fallback were broken by the probes", n-streams)
				}
				st := w.sender.Status()
				if st.Return != nil || st.ListSince.IsZero() || w.gauge("lightmetrics_agent_fallback_seconds") != 0 {
					t.Errorf("status after the return: %+v", st)
				}
				t.Logf("left after %s, returned after %s", left, took)
			})
		})
	}
}

// TestSlowFailures: where each attempt at a preferred collector takes longer than its back-off, one is always due; the fallback is used
// all the same.
func TestSlowFailures(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.region(home1)
		w.region(home2)
		w.region(away1)
		w.cfg.Collectors, w.cfg.Fallback = []string{home1, home2}, []string{away1}
		w.cfg.BackoffMax, w.cfg.ConnectTimeout, w.cfg.AnswerTimeout, w.cfg.FallbackAfter = time.Second, 3*time.Second, 6*time.Second, time.Second
		w.run()
		stop := w.feedUntilStopped(time.Second)
		time.Sleep(time.Minute)
		w.net.set(cut, home1, home2)
		w.waitList(send.Fallback, 15*time.Second)
		// The fallback breaks off, and is back: the preferred ones are not waited for.
		for range 10 {
			time.Sleep(20 * time.Second)
			w.net.set(down, away1)
			time.Sleep(100 * time.Millisecond)
			w.net.set(up, away1)
			time.Sleep(5 * time.Second)
			if n := w.queue.Stats().Pending; n > 1 {
				t.Errorf("%d batches wait", n)
			}
		}
		w.net.set(up, home1, home2)
		w.waitList(send.Preferred, 2*w.cfg.ReturnMax)
		stop()
		w.checkAll()
	})
}

// TestTheFallbackStreamGoesOn: while the agent asks for its own region, each batch is answered as soon as ever; only the one of a trial
// is late if that is refused. A region that welcomes and accepts nothing is tried ever more seldom.
func TestTheFallbackStreamGoesOn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		home, away := w.region(home1), w.region(away1)
		w.cfg.Collectors, w.cfg.Fallback = []string{home1}, []string{away1}
		home.answers(func(b []byte) *ingestv1.BatchResult { time.Sleep(8 * time.Second); return retries(b) })
		stop := w.feedUntilStopped(time.Second)
		w.run()
		w.waitList(send.Fallback, 2*time.Minute)
		streams, at := len(away.Hellos()), time.Since(w.began)
		before := len(home.got())
		time.Sleep(6 * time.Hour)
		trials := home.got()[before:]
		// 2 to 4 minutes at first, then twice as long each time, up to 15 to 30 minutes.
		if n := len(trials); n < 6*60/32 || n > 6*60/15+5 {
			t.Errorf("%d trials in 6 hours", n)
		}
		for i := 4; i < len(trials); i++ {
			if d := trials[i].at - trials[i-1].at; d < w.cfg.ReturnMax {
				t.Errorf("trial %d is %s after the one before", i, d)
			}
		}
		stop()
		w.checkAll()
		if n := len(away.Hellos()) - streams; n != 0 {
			t.Errorf("%d streams to the fallback were broken", n)
		}
		tried := map[identity.Batch]bool{}
		for _, f := range trials {
			tried[f.id] = true
		}
		late := 0
		for i, f := range away.got() {
			if queued := time.Duration(f.id.SeqStart/2) * time.Second; f.at > at && f.at-queued > 2*time.Second && !tried[f.id] {
				late++
				t.Logf("frame %d came %s late", i, f.at-queued)
			}
		}
		if late > 0 {
			t.Errorf("%d batches were late", late)
		}
		if w.metric("lightmetrics_agent_return_probes_total", "refused") != float64(len(trials)) || w.list() != send.Fallback {
			t.Errorf("%v refused probes", w.metric("lightmetrics_agent_return_probes_total", "refused"))
		}
	})
}

// TestARegionThatFlaps: one that is up for a few minutes at a time is left alone, more and more; when it stays the agent returns.
func TestARegionThatFlaps(t *testing.T) {
	for name, c := range map[string]struct {
		up, down time.Duration
		most     float64 // returns in 6 hours
	}{
		"up for a minute":     {time.Minute, time.Minute, 0},
		"up for five minutes": {5 * time.Minute, time.Minute, 3},
		"up for 20 minutes":   {20 * time.Minute, 2 * time.Minute, 17},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.region(home1)
				w.region(away1)
				w.cfg.Collectors, w.cfg.Fallback = []string{home1}, []string{away1}
				w.run()
				stop := w.feedUntilStopped(5 * time.Second)
				for end := time.Now().Add(6 * time.Hour); time.Now().Before(end); {
					w.net.set(down, home1)
					time.Sleep(c.down)
					w.net.set(up, home1)
					time.Sleep(c.up)
				}
				returns := w.metric("lightmetrics_agent_list_changes_total", "preferred")
				if returns > c.most {
					t.Errorf("returned %v times, want %v at most", returns, c.most)
				}
				took := w.waitList(send.Preferred, 2*w.cfg.ReturnMax+2*w.cfg.ReturnInterval)
				stop()
				w.checkAll()
				t.Logf("%v returns; the last one after %s", returns, took)
			})
		})
	}
}

// TestBothAway: nothing is lost while no collector of either list answers, and the first one that is back is used, whichever it is.
func TestBothAway(t *testing.T) {
	for name, first := range map[string]send.List{"the preferred one is back first": send.Preferred, "the fallback is back first": send.Fallback} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.region(home1)
				w.region(away1)
				w.region(away2)
				w.cfg.Collectors, w.cfg.Fallback = []string{home1}, []string{away1, away2}
				w.run()
				w.feed(time.Minute, time.Second)
				w.net.set(down, home1)
				stop := w.feedUntilStopped(time.Second)
				w.waitList(send.Fallback, 20*time.Second)
				w.net.set(down, away1, away2)
				time.Sleep(30 * time.Minute)
				if w.sender.Status().DisconnectedSince == nil {
					t.Error("a collector is connected")
				}
				back := []string{home1}
				if first == send.Fallback {
					back = []string{away1, away2}
				}
				w.net.set(up, back...)
				// The longest back-off, with its jitter.
				began := time.Now()
				for w.queue.Stats().Pending > 1 {
					if time.Since(began) > 50*time.Second {
						t.Fatalf("still pending: %d, %+v", w.queue.Stats().Pending, w.sender.Status())
					}
					time.Sleep(100 * time.Millisecond)
				}
				if w.list() != first {
					t.Errorf("on %s", w.list())
				}
				w.net.set(up, home1)
				w.waitList(send.Preferred, 2*w.cfg.ReturnMax+2*w.cfg.ReturnInterval)
				stop()
				w.checkAll()
			})
		})
	}
}

// TestAQuarantineIsAnAnswer: an operator of the own region has decided about this agent, and other regions need not know of it.
func TestAQuarantineIsAnAnswer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		home, away := w.region(home1), w.region(away1)
		var released atomic.Bool
		home.OnHello = func(*ingestv1.Hello) (*ingestv1.Welcome, error) {
			if released.Load() {
				return &ingestv1.Welcome{}, nil
			}
			return nil, rpc.Failure{Code: codes.FailedPrecondition, Reason: "SENDER_QUARANTINED", Message: "x", RetryAfter: 25 * time.Second}.Err()
		}
		w.cfg.Collectors, w.cfg.Fallback = []string{home1}, []string{away1}
		w.run()
		w.feed(10*time.Minute, time.Second)
		if n := len(away.Hellos()); n != 0 {
			t.Errorf("%d streams to another region", n)
		}
		if n := len(home.Hellos()); n > 25 {
			t.Errorf("asked %d times in 10 minutes, the collector said every 25 s", n)
		}
		released.Store(true)
		w.checkAll()
	})
}

// TestAWelcomeIsNoReturn: while the own region welcomes and accepts nothing, and the fallback breaks off now and then, the agent is on
// the fallback all the time, as the status and the metrics say.
func TestAWelcomeIsNoReturn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		home := w.region(home1)
		w.region(away1)
		w.cfg.Collectors, w.cfg.Fallback = []string{home1}, []string{away1}
		home.answers(retries)
		w.run()
		stop := w.feedUntilStopped(time.Second)
		w.waitList(send.Fallback, time.Minute)
		since := w.sender.Status().ListSince
		for range 30 {
			time.Sleep(time.Minute)
			w.net.set(down, away1)
			time.Sleep(20 * time.Second)
			w.net.set(up, away1)
		}
		time.Sleep(time.Minute)
		if st := w.sender.Status(); st.List != send.Fallback || !st.ListSince.Equal(since) || w.metric("lightmetrics_agent_list_changes_total", "fallback") != 1 {
			t.Errorf("%+v", st)
		}
		if w.queue.Stats().Pending > 2 {
			t.Errorf("%d batches wait", w.queue.Stats().Pending)
		}
		home.answers(nil)
		w.waitList(send.Preferred, 2*w.cfg.ReturnMax+2*w.cfg.ReturnInterval)
		stop()
		w.checkAll()
	})
}

// TestOnlyTheFallbackAnswers: an agent that never reached its own region.
func TestOnlyTheFallbackAnswers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		away := w.region(away1)
		w.cfg.Collectors, w.cfg.Fallback = []string{home1, home2}, []string{away1}
		w.run()
		w.feed(time.Hour, time.Second)
		w.checkAll()
		st := w.sender.Status()
		if len(away.Hellos()) != 1 || st.List != send.Fallback || st.Return == nil || st.Return.SteadySince != nil {
			t.Errorf("%d streams, %+v", len(away.Hellos()), st)
		}
		if s := w.gauge("lightmetrics_agent_fallback_seconds"); s < 3500 || s > 3600 {
			t.Errorf("on the fallback for %v s", s)
		}
		for _, c := range st.Collectors {
			if want := map[string]send.State{home1: send.Failing, home2: send.Failing, away1: send.Connected}[c.Address]; c.State != want || (c.Address == away1) != (c.List == send.Fallback) {
				t.Errorf("%+v", c)
			}
		}
	})
}

// TestGoingBackWithBatchesInFlight: the agent returns while a whole window waits for its answers at the fallback, which come late, or
// never, or the fallback dies. Each batch is accepted with its bytes; where answers come none is sent twice.
func TestGoingBackWithBatchesInFlight(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w *world) func([]byte) *ingestv1.BatchResult
		during func(w *world)
		twice  bool
	}{
		"late answers": {answer: func(w *world) func([]byte) *ingestv1.BatchResult {
			return func([]byte) *ingestv1.BatchResult { time.Sleep(20 * time.Second); return nil }
		}},
		"accepted and never answered": {answer: func(w *world) func([]byte) *ingestv1.BatchResult {
			return func(b []byte) *ingestv1.BatchResult { w.store.Accept(b); return never }
		}, twice: true},
		"never": {answer: func(*world) func([]byte) *ingestv1.BatchResult {
			return func([]byte) *ingestv1.BatchResult { return never }
		}, twice: true},
		"the fallback dies": {answer: func(w *world) func([]byte) *ingestv1.BatchResult {
			return func([]byte) *ingestv1.BatchResult { time.Sleep(20 * time.Second); return nil }
		}, during: func(w *world) { time.Sleep(time.Second); w.net.set(down, away1) }, twice: true},
		"the preferred one dies": {answer: func(w *world) func([]byte) *ingestv1.BatchResult {
			return func([]byte) *ingestv1.BatchResult { time.Sleep(20 * time.Second); return nil }
		}, during: func(w *world) { time.Sleep(time.Second); w.net.set(down, home1) }},
		"both die": {answer: func(w *world) func([]byte) *ingestv1.BatchResult {
			return func([]byte) *ingestv1.BatchResult { time.Sleep(20 * time.Second); return nil }
		}, during: func(w *world) {
			time.Sleep(time.Second)
			w.net.set(down, home1, away1)
			time.Sleep(time.Minute)
			w.net.set(up, home1, away1)
		}, twice: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				home, away := w.region(home1), w.region(away1)
				w.cfg.Collectors, w.cfg.Fallback = []string{home1}, []string{away1}
				w.net.set(down, home1)
				w.run()
				w.feed(time.Minute, time.Second)
				if w.list() != send.Fallback {
					t.Fatal(w.sender.Status())
				}
				w.net.set(up, home1)
				time.Sleep(w.cfg.ReturnAfter) // probes, and nothing to try
				// The trial takes the first batch; from then on nothing new goes to the fallback.
				inTrial, window := make(chan struct{}), 0
				home.answers(func([]byte) *ingestv1.BatchResult {
					close(inTrial)
					home.answers(nil)
					time.Sleep(2 * time.Second) // a whole window is on its way to the fallback by then
					return nil
				})
				away.answers(c.answer(w))
				time.Sleep(2 * w.cfg.ReturnAfter)
				before := len(away.got())
				w.append(40)
				<-inTrial
				time.Sleep(2500 * time.Millisecond)
				window = w.sender.Status().InFlight
				if window != w.cfg.MaxInFlightBatches {
					t.Fatalf("%d batches are in flight: %+v", window, w.sender.Status())
				}
				if c.during != nil {
					c.during(w)
				}
				if name == "the preferred one dies" {
					w.checkAll() // over the fallback, whose answers come late
				} else {
					stop := w.feedUntilStopped(10 * time.Second)
					w.waitList(send.Preferred, 2*w.cfg.ReturnMax)
					stop()
					w.checkAll()
				}
				if n := len(away.got()) - before; name == "late answers" && n != window {
					t.Errorf("%d batches went to the fallback, %d of them before the return", n, window)
				}
				if n := len(repeated(home, away)); (n > 0) != c.twice {
					t.Errorf("%d batches were sent twice", n)
				}
			})
		})
	}
}

// TestDrainUsesTheFallback: an agent that stops does not wait for fallback_after.
func TestDrainUsesTheFallback(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.region(away1)
		w.cfg.Collectors, w.cfg.Fallback, w.cfg.FallbackAfter = []string{home1}, []string{away1}, time.Hour
		w.append(5)
		w.run()
		time.Sleep(time.Second)
		began := time.Now()
		if err := w.sender.Drain(w.ctx); err != nil || time.Since(began) > time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		w.checkAll()
	})
}

// feedUntilStopped queues batches until the function that it gives is called.
func (w *world) feedUntilStopped(interval time.Duration) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	w.t.Cleanup(func() {
		select {
		case <-done:
		default:
			close(done)
		}
		<-ended
	})
	go func() {
		defer close(ended)
		for {
			w.append(1)
			select {
			case <-done:
				return
			case <-time.After(interval):
			}
		}
	}()
	return func() { close(done); <-ended }
}

// gauge is a metric without labels.
func (w *world) gauge(name string) float64 {
	list, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, mf := range list {
		if mf.GetName() == name {
			return mf.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}
