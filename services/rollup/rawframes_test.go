package rollup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/owner"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/storeclock"
)

// there are the raw frames in the store.
func (w *world) there(prefix string) (n int) {
	w.t.Helper()
	must(w.t, storetest.Each(w.t.Context(), w.store, prefix, func(objstore.Info) error { n++; return nil }))
	return n
}

// Only frames whose every hour is covered go, when all their hours are before the time,
// and no late batch waits beside them; what went is written down first.
func TestRawFramesAreRemovedWhenCovered(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	a := agentOf(0, 0)
	w.clock.Store((hour0 + 3).End().UnixNano())
	seq := w.some(a, hour0, 0, 10, 0)
	both := w.accept(a, seq, point{"load", series.Gauge, at(hour0, 59*time.Minute), 1}, point{"load", series.Gauge, at(hour0+1, time.Minute), 2})
	seq = w.some(a, hour0+1, 10, 5, both.SeqEnd+1)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	remover := func() *compact.FrameRemover {
		f, err := compact.NewFrameRemover(compact.FrameConfig{Store: w.store, AuthorityID: testAuthority, By: "test", Now: w.now})
		must(t, err)
		return f
	}
	all := w.there(layout.RawBlobsPrefix)
	run := func(before time.Time, dry bool, batches int, kept string) {
		t.Helper()
		rep, err := remover().Run(t.Context(), before, dry)
		must(t, err)
		if rep.Batches != batches || rep.Frames != batches || fmt.Sprint(rep.Kept) != kept {
			t.Fatalf("%+v, want %d batches and %s", rep, batches, kept)
		}
		if !dry {
			all -= batches
		}
		if n := w.there(layout.RawBlobsPrefix); n != all {
			t.Fatalf("%d frames, want %d", n, all)
		}
	}
	run(hour0.End(), true, 10, "map[]")
	if n := w.there(layout.LogPrefix); n != 0 {
		t.Errorf("a dry run wrote %d logs", n)
	}
	run(hour0.End().Add(-time.Millisecond), false, 0, "map[]")
	run(hour0.End(), false, 10, "map[]") // both reaches into the next hour
	run(hour0.End(), false, 0, "map[]")
	late := w.accept(a, seq, point{"load", series.Gauge, at(hour0, 58*time.Minute), 3})
	wide := w.accept(a, late.SeqEnd+1, point{"load", series.Gauge, at(hour0-5, time.Minute), 1}, point{"load", series.Gauge, at(hour0, 30*time.Minute), 2})
	all += 2
	run((hour0 + 1).End(), false, 0, fmt.Sprintf("map[%s:17]", compact.KeptPending))
	if n := w.there(layout.LogPrefix); n != 1 {
		t.Errorf("%d logs", n)
	}
	// Rolled up by its rows, without the frames: the late ones are covered, and may go.
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 2})
	block := w.set(hour0, 0, timegrid.Raw)
	if block.Name.Generation != 2 || !block.Inputs.Covers(late.Identity) || !block.Inputs.Covers(wide.Identity) {
		t.Fatalf("%+v", block)
	}
	run((hour0 + 1).End(), false, 7, fmt.Sprintf("map[%s:1]", compact.KeptWide))
	must(t, storetest.Each(t.Context(), w.store, layout.LogPrefix, func(i objstore.Info) error {
		b, _, err := w.store.Get(t.Context(), i.Key, objstore.GetOptions{})
		if err == nil && (!strings.HasPrefix(i.Key, layout.LogPrefix+"frames/") || !strings.Contains(string(b), framelog.Kind.Schema)) {
			t.Errorf("%s: %s", i.Key, b)
		}
		return err
	}))
}

// A worker rolls up frames that manifests carry beside those of blobs, its plans say where each is, and retention leaves
// the manifests alone and says that it did.
func TestFramesThatManifestsCarry(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	a := agentOf(0, 0)
	w.clock.Store((hour0 + 3).End().UnixNano())
	seq := w.some(a, hour0, 0, 4, 0)
	w.inline = true
	seq = w.some(a, hour0, 4, 6, seq)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	block := w.set(hour0, 0, timegrid.Raw)
	for _, e := range w.accepted {
		if !block.Inputs.Covers(e.Identity) {
			t.Errorf("%s is not rolled up", e.Identity)
		}
	}
	b, _, err := w.store.Get(t.Context(), layout.BlockPlan(block.Name), objstore.GetOptions{})
	must(t, err)
	plan, err := rollup.ParsePlan(b)
	must(t, err)
	inline := 0
	for _, e := range plan.Inputs {
		if layout.InManifest(e.RawBlobKey) {
			inline++
		}
		if _, err := accept.ReadFrame(t.Context(), w.store, e.RawBlobKey, e.FrameSHA256, e.FrameBytes); err != nil {
			t.Error(err)
		}
	}
	if inline != 6 || len(plan.Inputs) != 10 {
		t.Errorf("%d of %d inputs are carried", inline, len(plan.Inputs))
	}
	f, err := compact.NewFrameRemover(compact.FrameConfig{Store: w.store, AuthorityID: testAuthority, By: "test", Now: w.now})
	must(t, err)
	manifests := w.there(layout.AcceptedPrefix)
	rep, err := f.Run(t.Context(), hour0.End(), false)
	must(t, err)
	if want := fmt.Sprintf("map[%s:6]", compact.KeptInline); rep.Batches != 4 || fmt.Sprint(rep.Kept) != want {
		t.Errorf("%+v, want 4 batches removed and %s", rep, want)
	}
	if w.there(layout.RawBlobsPrefix) != 0 || w.there(layout.AcceptedPrefix) != manifests {
		t.Errorf("%d blobs and %d manifests are left", w.there(layout.RawBlobsPrefix), w.there(layout.AcceptedPrefix))
	}
	// A late batch that a manifest carries goes the way of deltas and folds.
	late := w.accept(a, seq, point{"load", series.Gauge, at(hour0, 58*time.Minute), 3})
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 2})
	if block := w.set(hour0, 0, timegrid.Raw); !block.Inputs.Covers(late.Identity) {
		t.Error("the late batch is not rolled up")
	}
}

// frameWorld has an authority whose store has the world's clock, one hour of ten batches,
// published, and a setting that removes frames after two days.
func frameWorld(t *testing.T) (w *world, cfg Config, agent string, seq uint64) {
	t.Helper()
	w = newWorld(t, mem.New(func() time.Time {
		if w == nil {
			return hour0.End()
		}
		return w.storeNow()
	}))
	cfg = testConfig()
	cfg.Retention.RawFrames = 48 * time.Hour
	agent = agentOf(0, 0)
	seq = w.some(agent, hour0, 0, 10, 0)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	return w, cfg, agent, seq
}

// removing drives a new owner of shard 0 some rounds, and gives how many frames are left.
func (w *world) removing(cfg Config, s objstore.Store, fence uint64) (int, error) {
	w.t.Helper()
	o, err := w.owner(w.worker(cfg, s), ownership.Grant{Shard: 0, Fence: fence})
	must(w.t, err)
	for range 4 {
		if _, rerr := o.Round(w.t.Context()); rerr != nil {
			err = rerr
		}
		w.advance(2 * owner.FrameRetry)
	}
	return w.there(layout.RawBlobsPrefix), err
}

func (w *world) removesNothing(cfg Config, want int, why string) {
	w.t.Helper()
	if n, err := w.removing(cfg, w.store, 5); n != want || err != nil {
		w.t.Errorf("%s: %d frames are left, want %d; %v", why, n, want, err)
	}
}

// logged are the batches that logs of removed frames name.
func (w *world) logged() (n int) {
	w.t.Helper()
	x := framelog.NewIndex(w.store, testAuthority)
	must(w.t, x.Scan(w.t.Context()))
	for _, e := range w.accepted {
		if x.Names(e.Identity) {
			n++
		}
	}
	return n
}

// The setting removes frames when they are old by the store's clock, since the hour ended
// and since it was published; off by default; a clock a year off removes nothing.
func TestRawFramesExpireByTheStoresClock(t *testing.T) {
	w, cfg, agent, seq := frameWorld(t)
	published := w.now()
	w.clock.Store(published.Add(48*time.Hour - time.Minute - 5*2*owner.FrameRetry).UnixNano())
	w.removesNothing(cfg, 10, "published too short a time ago")
	w.clock.Store(published.Add(49 * time.Hour).UnixNano())
	off := cfg
	off.Retention.RawFrames = 0
	w.removesNothing(off, 10, "off")
	w.clock.Store(published.Add(24 * time.Hour).UnixNano())
	for _, wrong := range []time.Duration{365 * 24 * time.Hour, -365 * 24 * time.Hour} {
		w.wrong = wrong
		w.clock.Store(published.Add(24*time.Hour + wrong).UnixNano())
		n, err := w.removing(cfg, w.store, 5)
		var clock *storeclock.AheadError
		if n != 10 || errors.As(err, &clock) != (wrong > 0) {
			t.Errorf("a worker's clock that is %v wrong: %d frames, %v", wrong, n, err)
		}
	}
	w.wrong = 0
	w.clock.Store(published.Add(49 * time.Hour).UnixNano())
	if n, err := w.removing(cfg, w.store, 5); n != 0 || err != nil || w.logged() != 10 {
		t.Fatalf("%d frames are left, %d logged, %v", n, w.logged(), err)
	}
	// A late batch afterwards is rolled up from the published rows, and has its own time.
	w.some(agent, hour0, 30, 1, seq)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 6})
	w.check(hour0, 0, 2)
	w.removesNothing(cfg, 1, "the late batch's own time")
	w.advance(owner.FramesFullEvery + 49*time.Hour)
	if n, err := w.removing(cfg, w.store, 7); n != 0 || err != nil || w.logged() != 11 {
		t.Errorf("the late batch: %d frames are left, %d logged, %v", n, w.logged(), err)
	}
}

// Frames stay while something may read them again, and go when it is gone.
func TestRawFramesThatAreNeededStay(t *testing.T) {
	request := catalog.RepairRequest{AuthorityID: testAuthority, Shard: 0, Hour: hour0 + 1, Above: 9, Reason: "r", By: "b"}
	aside := catalog.Aside{AuthorityID: testAuthority, Shard: 0, Hour: hour0, Agent: agentOf(0, 1), Series: 1, Records: 1, Bytes: 1 << 50, Limit: 1 << 50, Reason: "r", By: "b", At: 1}
	for name, x := range map[string]struct {
		key  func(e accepted.Batch) string
		body string
		left int
	}{
		"an agent set aside": {func(accepted.Batch) string { return aside.Key() }, string(aside.Marshal()), 10},
		"a repair record":    {func(e accepted.Batch) string { return layout.Repair(e.Identity) }, "{}", 1},
		"a conflict":         {func(e accepted.Batch) string { return layout.Quarantine(e.Identity, identity.Sum(nil)) }, "{}", 1},
		"a window that is not decided": {func(accepted.Batch) string {
			return layout.BlockManifest(hour0, 0, timegrid.OneHour, 1)
		}, "", 10},
	} {
		t.Run(name, func(t *testing.T) {
			w, cfg, _, _ := frameWorld(t)
			w.advance(50 * time.Hour)
			key := x.key(w.accepted[3])
			if name == "a window that is not decided" {
				was, _, err := w.store.Get(t.Context(), key, objstore.GetOptions{})
				must(t, err)
				must(t, w.store.Delete(t.Context(), key))
				f, err := compact.NewFrameRemover(compact.FrameConfig{Store: w.store, AuthorityID: testAuthority, By: "test", Now: w.now})
				must(t, err)
				rep, err := f.Run(t.Context(), hour0.End(), false)
				if err != nil || rep.Batches != 0 || rep.Kept[compact.KeptUnfinished] == 0 {
					t.Errorf("%+v, %v", rep, err)
				}
				w.spoil(key, string(was))
			} else {
				w.spoil(key, x.body)
				w.removesNothing(cfg, x.left, name)
				must(t, w.store.Delete(t.Context(), key))
			}
			w.advance(50 * time.Hour)
			left := 0
			if name == "a conflict" {
				left = 1 // it stood for good when it was met
			}
			if n, err := w.removing(cfg, w.store, 7); n != left || err != nil {
				t.Errorf("without it: %d frames are left, want %d; %v", n, left, err)
			}
		})
	}
	t.Run("a repair request", func(t *testing.T) {
		w, _, _, _ := frameWorld(t)
		w.spoil(request.Key(), string(request.Marshal()))
		f, err := compact.NewFrameRemover(compact.FrameConfig{Store: w.store, AuthorityID: testAuthority, By: "test", Now: w.now})
		must(t, err)
		rep, err := f.Run(t.Context(), hour0.End(), false)
		if err != nil || rep.Batches != 0 || rep.Kept[compact.KeptRequested] != 10 {
			t.Errorf("%+v, %v", rep, err)
		}
	})
	t.Run("a generation above in one window", func(t *testing.T) {
		w, cfg, _, _ := frameWorld(t)
		above := catalog.Aborted{AuthorityID: testAuthority, Name: layout.BlockName{Hour: hour0, Shard: 0, Resolution: timegrid.Raw, Generation: 2}, Reason: "r", WorkerID: "w"}
		w.spoil(above.Name.Key(), string(catalog.Record{Aborted: &above}.Marshal()))
		w.advance(50 * time.Hour)
		w.removesNothing(cfg, 10, "raw has a generation that the others have not")
	})
	t.Run("the hour before is not published", func(t *testing.T) {
		w, cfg, agent, seq := frameWorld(t)
		w.accept(agent, seq, point{"load", series.Gauge, at(hour0, 59*time.Minute), 1}, point{"load", series.Gauge, at(hour0+1, time.Minute), 2})
		w.clock.Store((hour0 + 2).End().UnixNano())
		w.drive(cfg, ownership.Grant{Shard: 0, Fence: 2})
		for _, res := range timegrid.Resolutions() {
			for gen := range uint64(3) {
				must(t, w.store.Delete(t.Context(), layout.BlockManifest(hour0, 0, res, gen)))
			}
		}
		w.advance(50 * time.Hour)
		w.removesNothing(cfg, 11, "its frames, and the one that lies in both hours")
	})
	t.Run("a late batch that waits", func(t *testing.T) {
		w, cfg, agent, seq := frameWorld(t)
		w.advance(50 * time.Hour)
		cfg.Schedule.LateAfter = time.Hour
		w.accept(agent, seq, point{"load", series.Gauge, at(hour0, 59*time.Minute), 3})
		w.removesNothing(cfg, 11, "a late batch waits")
		w.advance(50 * time.Hour)
		w.drive(cfg, ownership.Grant{Shard: 0, Fence: 6})
		w.check(hour0, 0, 2)
		w.advance(50 * time.Hour)
		if n, err := w.removing(cfg, w.store, 7); n != 0 || err != nil {
			t.Errorf("rolled up: %d frames are left, %v", n, err)
		}
	})
}

// Hours whose raw sets have expired gave up their frames never: what covered them is gone.
// Their plans and removed records prove that they were covered, also when rolled rows, or
// the rows of the hour beside, have expired.
func TestRawFramesOfExpiredHoursGo(t *testing.T) {
	for _, all := range []bool{false, true} {
		w, cfg, agent, seq := frameWorld(t)
		w.accept(agent, seq, point{"load", series.Gauge, at(hour0, 59*time.Minute), 1}, point{"load", series.Gauge, at(hour0+1, time.Minute), 2})
		w.clock.Store((hour0 + 2).End().UnixNano())
		w.drive(cfg, ownership.Grant{Shard: 0, Fence: 2})
		w.clock.Store((hour0 + 1).End().Add(25 * time.Hour).UnixNano())
		expiring := cfg
		expiring.Retention.Raw = 24 * time.Hour
		if all {
			expiring.Retention.Minute, expiring.Retention.Five, expiring.Retention.Hour = expiring.Retention.Raw, expiring.Retention.Raw, expiring.Retention.Raw
		}
		must(t, w.compactor(expiring).retention.Retain(t.Context()))
		if v := w.view(hour0, false); !v.Expired(hour0, timegrid.Raw) || v.Expired(hour0, timegrid.OneHour) != all {
			t.Fatal("not expired as it should be")
		}
		w.removesNothing(expiring, 11, "expired, but not long ago")
		w.advance(50 * time.Hour)
		if n, err := w.removing(expiring, w.store, 7); n != 0 || err != nil || w.logged() != 11 {
			t.Errorf("all windows expired %v: %d frames are left, %d logged, %v", all, n, w.logged(), err)
		}
		// The plan proves it, and nothing else.
		w, cfg, _, _ = frameWorld(t)
		w.clock.Store(hour0.End().Add(25 * time.Hour).UnixNano())
		expiring.Retention.RawFrames = cfg.Retention.RawFrames
		must(t, w.compactor(expiring).retention.Retain(t.Context()))
		w.spoil(layout.RollupPlan(hour0, 0, 1), "{}")
		w.advance(50 * time.Hour)
		w.removesNothing(expiring, 10, "no plan")
	}
}

// A worker is stopped at each of its requests in turn, once unsent and once unheard, and
// another one, or two at once, finish: every frame that is gone is in a log, and nothing
// else is gone.
func TestRawFramesAfterACrash(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for n := 1; ; n++ {
			w, cfg, _, _ := frameWorld(t)
			w.advance(50 * time.Hour)
			rules := []fault.Rule{{Skip: n - 1, Kind: fault.Before}}
			if lost {
				rules = append([]fault.Rule{{Skip: n - 1, Times: 1, Kind: fault.After}}, rules...)
			}
			o, err := w.owner(w.worker(cfg, fault.New(w.store, 1, rules...)), ownership.Grant{Shard: 0, Fence: 5})
			if err == nil {
				for range 3 {
					_, err = o.Round(t.Context())
				}
			}
			left := w.there(layout.RawBlobsPrefix)
			if logged := w.logged(); 10-left > logged {
				t.Fatalf("call %d: %d frames are gone, %d are logged", n, 10-left, logged)
			}
			finished := err == nil && left == 0
			one, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 6})
			must(t, err)
			two, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 7})
			must(t, err)
			for range 3 {
				for _, o := range []*driven{one, two} {
					_, err := o.Round(t.Context())
					must(t, err)
				}
			}
			if left, logged := w.there(layout.RawBlobsPrefix), w.logged(); left != 0 || logged != 10 {
				t.Fatalf("call %d: %d frames are left, %d are logged", n, left, logged)
			}
			w.check(hour0, 0, 1)
			if finished {
				break
			}
			if n > 200 {
				t.Fatal("does not come to an end")
			}
		}
	}
}

// What is done is not done again: a new owner reads a note, and asks for no frame.
func TestRemovedRawFramesAreNotLookedAtAgain(t *testing.T) {
	w, cfg, _, _ := frameWorld(t)
	w.advance(50 * time.Hour)
	if n, err := w.removing(cfg, w.store, 5); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	b, _, err := w.store.Get(t.Context(), layout.RollupFrames(0), objstore.GetOptions{})
	must(t, err)
	p, err := compact.ParseFrameProgress(b)
	must(t, err)
	if p.Through < hour0 || len(p.Again) > 0 || p.Shard != shard.ID(0) {
		t.Errorf("%+v", p)
	}
	again := func(why string, want bool) {
		t.Helper()
		asked := storetest.Count(w.store)
		_, err := w.removing(cfg, asked, 6)
		if n := asked.Of("list", layout.RawBlobsPrefix); err != nil || n > 0 != want {
			t.Errorf("%s: %d listings of frames, %v", why, n, err)
		}
	}
	again("a new owner", false)
	w.advance(owner.FramesFullEvery)
	again("all hours", false)
	w.spoil(layout.RollupFrames(0), "{}")
	again("a damaged note", true)
}

// resend is an agent that sends a batch to a collector, as if it had been offline.
func (w *world) resend(e accepted.Batch) accept.Outcome {
	w.t.Helper()
	p, err := accept.New(accept.Config{Store: w.store, AuthorityID: testAuthority, CollectorID: "c", Clock: run.WallClock{}, Rand: rand.Reader})
	must(w.t, err)
	res, err := p.Accept(w.t.Context(), accept.Submission{
		Frame: w.frames[e.Identity], Identity: e.Identity, SHA256: e.FrameSHA256, Records: e.Identity.Count(), MinTime: e.MinTime, MaxTime: e.MaxTime,
	})
	must(w.t, err)
	return res.Outcome
}

// A duplicate after the removal writes the frame again, in a generation that is not condemned, and
// leaves a note; a later pass removes it, although the hour is long finished, and so does lmctl.
func TestARewrittenFrameIsRemovedAgain(t *testing.T) {
	w, cfg, _, _ := frameWorld(t)
	other := w.accepted[4]
	w.resend(w.accepted[3]) // makes the manifest, which this harness leaves out
	w.advance(50 * time.Hour)
	if n, err := w.removing(cfg, w.store, 5); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	c, _, err := record.Read(t.Context(), w.store, layout.CondemnedHour(hour0), accept.CondemnedHourKind, accept.ParseCondemnedHour)
	if must(t, err); c.Below != 1 || w.there(layout.CondemnedPrefix) != 1 {
		t.Errorf("%+v and %d records of condemned generations of 10 batches", c, w.there(layout.CondemnedPrefix))
	}
	for pass := range 3 {
		if got := w.resend(w.accepted[3]); got != accept.Duplicate {
			t.Fatal(got)
		}
		if n := w.there(layout.RawBlobsPrefix); n != 2 || w.there(layout.RewrittenPrefix) != 1 {
			t.Fatalf("%d frames and %d notes after a duplicate", n, w.there(layout.RewrittenPrefix))
		}
		w.advance(2 * cfg.Retention.Interval)
		if pass < 2 {
			if n, err := w.removing(cfg, w.store, 6); n != 0 || err != nil || w.there(layout.RewrittenPrefix) != 0 {
				t.Fatalf("%d frames and %d notes are left, %v", n, w.there(layout.RewrittenPrefix), err)
			}
			continue
		}
		f, err := compact.NewFrameRemover(compact.FrameConfig{Store: w.store, AuthorityID: testAuthority, By: "lmctl", Now: w.now})
		must(t, err)
		rep, err := f.Run(t.Context(), hour0.End(), false)
		if err != nil || rep.Batches != 1 || rep.Frames != 2 || rep.Rewritten != 1 || w.there(layout.RawBlobsPrefix) != 0 || w.there(layout.RewrittenPrefix) != 0 {
			t.Errorf("lmctl: %+v, %v, %d notes", rep, err, w.there(layout.RewrittenPrefix))
		}
	}
	// A note of a batch that has to stay for now is kept for a later pass.
	w.resend(other)
	must(t, w.store.Delete(t.Context(), layout.Rewritten(hour0, other.Identity, 1)))
	w.resend(other)
	w.spoil(layout.Repair(other.Identity), "{}")
	w.advance(2 * cfg.Retention.Interval)
	if n, err := w.removing(cfg, w.store, 7); n != 2 || err != nil || w.there(layout.RewrittenPrefix) != 1 {
		t.Errorf("a repair record: %d frames, %d notes, %v", n, w.there(layout.RewrittenPrefix), err)
	}
	must(t, w.store.Delete(t.Context(), layout.Repair(other.Identity)))
	w.advance(2 * cfg.Retention.Interval)
	if n, err := w.removing(cfg, w.store, 8); n != 0 || err != nil || w.there(layout.RewrittenPrefix) != 0 {
		t.Errorf("without it: %d frames, %d notes, %v", n, w.there(layout.RewrittenPrefix), err)
	}
}

// What begins to need a frame after it was found removable, and before it is proved to be, keeps it.
func TestWhatComesBeforeTheProofKeepsRawFrames(t *testing.T) {
	request := catalog.RepairRequest{AuthorityID: testAuthority, Shard: 0, Hour: hour0, Above: 9, Reason: "r", By: "b"}
	lost := layout.BlockName{Hour: hour0, Shard: 0, Resolution: timegrid.FiveMinutes, Generation: 1}
	aborted := catalog.Aborted{AuthorityID: testAuthority, Name: lost, Reason: "r", WorkerID: "w"}
	for name, x := range map[string]struct {
		key, body string
		left      int
	}{
		"a repair request":      {request.Key(), string(request.Marshal()), 10},
		"a lost block":          {lost.Key(), string(catalog.Record{Aborted: &aborted}.Marshal()), 10},
		"a damaged block":       {lost.Key(), "{}", 10},
		"a generation above it": {layout.BlockManifest(hour0, 0, timegrid.Raw, 2), "{}", 10},
		"a repair record":       {"", "{}", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, cfg, _, _ := frameWorld(t)
			w.advance(50 * time.Hour)
			if x.key == "" {
				x.key = layout.Repair(w.accepted[3].Identity)
			}
			s := &raising{Store: w.store, then: func() { w.spoil(x.key, x.body) }}
			n, err := w.removing(cfg, s, 5)
			if n != x.left || err != nil || s.then != nil || w.logged() != 10-x.left {
				t.Errorf("%d frames are left, want %d, %d are logged; %v", n, x.left, w.logged(), err)
			}
		})
	}
}

// raising calls then when an hour's condemned generations are raised.
type raising struct {
	objstore.Store
	then func()
}

func (s *raising) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if strings.HasPrefix(key, layout.CondemnedPrefix) && s.then != nil {
		s.then()
		s.then = nil
	}
	return s.Store.Create(ctx, key, b, o)
}
