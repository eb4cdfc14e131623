package rollup

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/job"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/maintain"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/requests"
)

// manifests writes the identity manifests of what was accepted.
func (w *world) manifests() (all []accept.Manifest) {
	w.t.Helper()
	for _, e := range w.accepted {
		m := accept.Manifest{AuthorityID: testAuthority, Identity: e.Identity, FrameSHA256: e.FrameSHA256, FrameBytes: e.FrameBytes, RawBlobKey: e.RawBlobKey,
			AcceptedAt: e.AcceptedAt, CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
			RecordCount: e.Identity.Count(), MinTime: e.MinTime, MaxTime: e.MaxTime}
		w.spoil(layout.Accepted(e.Identity), string(m.Marshal()))
		all = append(all, m)
	}
	return all
}

// spoil puts other bytes under a key.
func (w *world) spoil(key, body string) {
	w.t.Helper()
	_, err := w.store.Put(w.t.Context(), key, []byte(body), objstore.PutOptions{})
	must(w.t, err)
}

func (w *world) repairer() *repair.Repairer { return w.repairerOver(w.store) }

func (w *world) repairerOver(s objstore.Store) *repair.Repairer {
	w.t.Helper()
	r, err := repair.New(repair.Config{Store: s, AuthorityID: testAuthority, Shards: testShards, By: "test", Now: w.now, Counted: history.Reader{Store: s, Authority: testAuthority}.Counted,
		Scan: func(_ context.Context, _ timegrid.Hour, _ shard.ID, fn func(accepted.Batch) error) error {
			for _, m := range w.manifests() {
				if err := fn(m.Batch()); err != nil {
					return err
				}
			}
			return nil
		}})
	must(w.t, err)
	return r
}

// verify checks everything, and wants these problems.
func (w *world) verify(want ...repair.Problem) []repair.Finding {
	w.t.Helper()
	rep, err := w.repairer().Verify(w.t.Context(), repair.Options{From: hour0 - 5, To: hour0 + 5})
	must(w.t, err)
	got := map[repair.Problem]bool{}
	for _, f := range rep.Findings {
		got[f.Problem] = true
	}
	for _, p := range want {
		if !got[p] {
			w.t.Fatalf("not found: %s; found %v", p, rep.Findings)
		}
	}
	if len(got) != len(want) {
		w.t.Fatalf("found %v, want %v", rep.Findings, want)
	}
	return rep.Findings
}

// turns lets the owner do some rounds, minutes apart.
func (w *world) turns(o *driven) (failed error) {
	w.t.Helper()
	for range 8 {
		w.advance(4 * time.Minute)
		if _, err := o.Round(w.t.Context()); err != nil {
			failed = err
		}
	}
	return failed
}

// Whatever is damaged of a published hour: the hour waits, the hours beside it go on, and
// a request rebuilds it. Generations only grow and the damaged record stays.
func TestADamagedHourIsRebuilt(t *testing.T) {
	type damage struct {
		name   string
		spoil  func(w *world)
		finds  []repair.Problem
		source string
		held   bool // the hour takes no late batch before it is repaired
	}
	record := func(res timegrid.Resolution) string { return layout.BlockManifest(hour0, 0, res, 1) }
	for _, d := range []damage{
		{"raw record", func(w *world) { w.spoil(record(timegrid.Raw), "{") }, []repair.Problem{repair.RecordUnreadable}, "plans", true},
		{"1m record", func(w *world) { w.spoil(record(timegrid.OneMinute), "") }, []repair.Problem{repair.RecordUnreadable}, "plans", true},
		{"plan", func(w *world) { w.spoil(layout.RollupPlan(hour0, 0, 1), "x") }, []repair.Problem{repair.PlanUnreadable}, "manifests", true},
		{"plan gone", func(w *world) { must(t, w.store.Delete(t.Context(), layout.RollupPlan(hour0, 0, 1))) }, []repair.Problem{repair.PlanMissing}, "manifests", true},
		{"all", func(w *world) {
			for _, res := range timegrid.Resolutions() {
				w.spoil(record(res), "x")
			}
			w.spoil(layout.RollupPlan(hour0, 0, 1), "x")
		}, []repair.Problem{repair.RecordUnreadable}, "scan", true},
		{"raw chunk", func(w *world) { w.spoil(w.set(hour0, 0, timegrid.Raw).Objects[0].ChunkKey, "rotten") }, []repair.Problem{repair.ObjectDamaged}, "plans", false},
		{"5m index gone", func(w *world) {
			must(t, w.store.Delete(t.Context(), w.set(hour0, 0, timegrid.OneHour).Objects[0].IndexKey))
		}, []repair.Problem{repair.ObjectMissing}, "plans", false},
	} {
		t.Run(d.name, func(t *testing.T) {
			w := newWorld(t, newMem())
			cfg := testConfig()
			a := agentOf(0, 0)
			seq := w.some(a, hour0-1, 340, 5, 0)
			seq = w.some(a, hour0, 0, 20, seq)
			seq = w.some(a, hour0+1, 0, 5, seq)
			w.clock.Store((hour0 + 1).End().Add(time.Hour).UnixNano())
			w.drive(cfg, ownership.Grant{Shard: 0, Fence: 3})
			w.manifests()
			w.verify()
			d.spoil(w)
			w.verify(d.finds...)

			// Late batches of the hours beside are rolled up whatever became of this one.
			seq = w.some(a, hour0-1, 350, 1, seq)
			seq = w.some(a, hour0+1, 350, 1, seq)
			if d.held {
				w.some(a, hour0, 350, 1, seq)
			}
			svc := w.worker(cfg, w.store)
			o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 4})
			must(t, err)
			if err := w.turns(o); (err != nil) != d.held {
				t.Fatalf("held up %v: %v", d.held, err)
			}
			w.check(hour0-1, 0, 2)
			w.check(hour0+1, 0, 2)
			if d.held && testutil.ToFloat64(svc.m.Damaged.WithLabelValues("record"))+testutil.ToFloat64(svc.m.Damaged.WithLabelValues("plan")) == 0 &&
				d.name != "plan gone" {
				t.Error("the damage is not counted")
			}

			w.manifests()
			dry, err := w.repairer().Request(t.Context(), hour0, 0, "damaged", true)
			must(t, err)
			if n := w.there(layout.RepairRequestsPrefix); n != 0 {
				t.Fatalf("a dry run requested %d", n)
			}
			got, err := w.repairer().Request(t.Context(), hour0, 0, "damaged", false)
			must(t, err)
			if got.Generation != 2 || got.Source != d.source || dry.Batches != got.Batches || got.Batches < 20 {
				t.Fatalf("%+v, %+v", got, dry)
			}
			if got, err = w.repairer().Request(t.Context(), hour0, 0, "damaged", false); err != nil || !got.Pending || got.Source != "plan" {
				t.Fatalf("again: %+v, %v", got, err)
			}
			must(t, w.turns(o))
			if n := w.there(layout.RepairRequestsPrefix); n != 0 {
				t.Fatal("the request is still there")
			}
			w.verify()
			gen := uint64(2)
			if d.held && d.source != "scan" { // what came late is the next generation; a scan had it
				gen = 3
			}
			w.check(hour0, 0, gen)
			if block := w.set(hour0, 0, timegrid.Raw); block.Fence != 4 {
				t.Errorf("fence %d", block.Fence)
			}
			if testutil.ToFloat64(svc.m.Requests.WithLabelValues("done")) != 1 {
				t.Error("not counted")
			}
		})
	}
}

// A plan that was damaged before its generation was made is aborted by the request; the next
// one is made of what was accepted.
func TestADamagedPlanOfAGenerationInWork(t *testing.T) {
	for _, published := range []bool{false, true} {
		w := newWorld(t, newMem())
		cfg := testConfig()
		a := agentOf(0, 0)
		seq := w.some(a, hour0, 0, 20, 0)
		gen := uint64(1)
		if published {
			w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
			w.some(a, hour0, 20, 2, seq)
			gen = 2
		}
		o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 2})
		must(t, err)
		w.spoil(layout.RollupPlan(hour0, 0, gen), "x") // after the epoch, which aborts what is not decided
		if err := w.turns(o); err == nil {
			t.Fatalf("published %v: a generation was made without its plan", published)
		}
		w.manifests()
		if f := w.verify(repair.PlanUnreadable); !strings.Contains(f[0].Key, "plans") {
			t.Error(f)
		}
		got, err := w.repairer().Request(t.Context(), hour0, 0, "damaged", false)
		must(t, err)
		if len(got.Aborted) != 1 || got.Aborted[0] != gen || got.Generation != gen+1 {
			t.Fatalf("%+v", got)
		}
		must(t, w.turns(o))
		w.verify()
		if block := w.set(hour0, 0, timegrid.Raw); block == nil || block.Inputs.Batches() != uint64(len(w.accepted)) {
			t.Fatalf("%+v", block)
		}
		w.check(hour0, 0, w.set(hour0, 0, timegrid.Raw).Name.Generation)
	}
}

// A plan that somebody deleted while its generation was published at some resolutions only: nobody
// can finish that generation, so the request aborts it at the others, and the next one is made.
func TestADeletedPlanOfAGenerationInWork(t *testing.T) {
	for done := 1; done < len(timegrid.Resolutions()); done++ {
		w := newWorld(t, newMem())
		cfg := testConfig()
		seq := w.some(agentOf(0, 0), hour0, 0, 20, 0)
		w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
		w.some(agentOf(0, 0), hour0, 20, 2, seq)
		dying := fault.New(w.store, 1, fault.Rule{Op: "create", Prefix: layout.BlockManifestsHour(hour0), Skip: done, Kind: fault.Before})
		o, err := w.owner(w.worker(cfg, dying), ownership.Grant{Shard: 0, Fence: 2})
		must(t, err)
		if err := w.turns(o); err == nil || w.generation(hour0, 0) != 2 {
			t.Fatalf("generation %d, %v", w.generation(hour0, 0), err)
		}
		o, err = w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 3})
		must(t, err)
		must(t, w.store.Delete(t.Context(), layout.RollupPlan(hour0, 0, 2)))
		if err := w.turns(o); err == nil {
			t.Fatal("a generation was finished without its plan")
		}
		w.manifests()
		w.verify(repair.PlanMissing)
		got, err := w.repairer().Request(t.Context(), hour0, 0, "damaged", false)
		must(t, err)
		if len(got.Aborted) != 1 || got.Aborted[0] != 2 || got.Generation != 3 {
			t.Fatalf("%d resolutions were published: %+v", done, got)
		}
		must(t, w.turns(o))
		w.verify()
		w.check(hour0, 0, 3)
	}
}

// A compaction that is damaged is a finding of every hour in it; they are rebuilt from
// frames, and merged again.
func TestADamagedCompaction(t *testing.T) {
	for _, what := range []string{"record", "chunk", "record and the next plan"} {
		w := newWorld(t, newMem())
		cfg := testConfig()
		cfg.Compact.Group, cfg.Compact.After, cfg.Compact.Back, cfg.Compact.Raw, cfg.Compact.Minute = testShards, time.Hour, 10, []string{"2h"}, nil
		cfg.Compact.Five, cfg.Compact.Hour = nil, nil
		h := hour0 - hour0%2
		w.clock.Store((h + 4).End().UnixNano())
		seq := w.some(agentOf(0, 0), h, 0, 20, 0)
		w.some(agentOf(0, 0), h+1, 0, 20, seq)
		w.drive(cfg, ownership.Grant{Shard: 0, Fence: 5})
		m := w.compactor(cfg)
		must(t, m.compaction.Compact(t.Context()))
		w.collected(m)
		w.checkCompacted(h, 0)
		w.manifests()
		c := w.set(h, 0, timegrid.Raw).Redirect.Block
		problem := repair.CompactionUnreadable
		if what == "chunk" {
			problem = repair.ObjectDamaged
			w.spoil(c.Objects[0].ChunkKey, "rotten")
		} else {
			w.spoil(c.Name.Key(), "x")
		}
		if n := len(w.verify(problem)); n != 2 {
			t.Fatalf("%s: %d findings", what, n)
		}
		for k := range timegrid.Hour(2) {
			got, err := w.repairer().Request(t.Context(), h+k, 0, "damaged", false)
			must(t, err)
			if got.Generation != 2 {
				t.Fatalf("%+v", got)
			}
		}
		o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 10})
		must(t, err)
		must(t, w.turns(o))
		w.verify()
		w.check(h, 0, 2)
		w.check(h+1, 0, 2)
		if what == "record and the next plan" {
			n := c.Name
			n.Generation++
			w.spoil(layout.BlockPlan(n), "x")
		}
		for range 3 {
			w.advance(3 * time.Hour)
			must(t, m.compaction.Compact(t.Context()))
		}
		w.checkCompacted(h, 0)
		w.checkCompacted(h+1, 0)
		w.verify()
		if block := w.set(h, 0, timegrid.Raw); block.Redirect.Name.Generation == c.Name.Generation {
			t.Errorf("%s: it points at the damaged one", what)
		}
	}
}

// Overlapping batches are found among what was accepted when the block beside can't be read.
func TestOverlapsOfADamagedHour(t *testing.T) {
	for _, what := range []string{"record", "plan"} {
		w := newWorld(t, newMem())
		cfg := testConfig()
		a := agentOf(0, 0)
		w.clock.Store((hour0 + 1).End().Add(time.Hour).UnixNano())
		first := w.accept(a, 10, point{"load", series.Gauge, at(hour0, 59*time.Minute), 1}, point{"requests_total", series.Counter, at(hour0, 59*time.Minute), 1})
		w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
		overlap := w.accept(a, 11, point{"load", series.Gauge, at(hour0+1, time.Minute), 2}, point{"requests_total", series.Counter, at(hour0+1, time.Minute), 2})
		w.manifests()
		if what == "record" {
			w.spoil(layout.BlockManifest(hour0, 0, timegrid.Raw, 1), "x")
		} else {
			w.spoil(layout.RollupPlan(hour0, 0, 1), "x")
		}
		o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 2})
		must(t, err)
		w.advance(cfg.Schedule.LateAfter)
		_, _ = o.Round(t.Context()) // the damaged hour fails
		block := w.set(hour0+1, 0, timegrid.Raw)
		if block == nil || !block.Inputs.Covers(first.Identity) || !block.Inputs.Covers(overlap.Identity) || block.Counts.Published != 1 || block.Counts.Overlapped != 1 {
			t.Fatalf("%s: %+v", what, block)
		}
		w.check(hour0+1, 0, 1)
	}
}

// An owner that is gone from its n-th store call on, for every n of a request, and the next
// one: the hour is rebuilt once, over the damaged record, and the request goes.
func TestCrashAtEveryStoreCallOfARequest(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for n := 1; ; n++ {
			w := newWorld(t, newMem())
			cfg := testConfig()
			w.some(agentOf(0, 0), hour0, 0, 4, 0)
			w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
			w.spoil(w.set(hour0, 0, timegrid.OneHour).Objects[0].IndexKey, "rotten")
			w.spoil(layout.BlockManifest(hour0, 0, timegrid.Raw, 1), "x")
			_, err := w.repairer().Request(t.Context(), hour0, 0, "damaged", false)
			must(t, err)
			rules := []fault.Rule{{Skip: n - 1, Kind: fault.Before}}
			if lost {
				rules = append([]fault.Rule{{Skip: n - 1, Times: 1, Kind: fault.After}}, rules...)
			}
			dying := fault.New(w.store, 1, rules...)
			o, err := w.owner(w.worker(cfg, dying), ownership.Grant{Shard: 0, Fence: 2})
			if err == nil {
				err = w.turns(o)
			}
			finished := err == nil && dying.Count("", "") < n
			o, oerr := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 3})
			must(t, oerr)
			must(t, w.turns(o))
			w.check(hour0, 0, 2)
			w.verify()
			if n := w.there(layout.RepairRequestsPrefix); n != 0 {
				t.Fatal("the request is still there")
			}
			if finished {
				t.Logf("%d calls, answers lost: %v", n-1, lost)
				break
			}
			if n > 500 {
				t.Fatal("does not come to an end")
			}
		}
	}
}

// Frames that retention removed are no longer there to make an hour of: its raw rows are,
// when they are whole; else the request is refused.
func TestARequestWithoutFrames(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	w.some(agentOf(0, 0), hour0, 0, 20, 0)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	w.manifests()
	w.clock.Store((hour0 + 48).End().UnixNano())
	f, err := compact.NewFrameRemover(compact.FrameConfig{Store: w.store, AuthorityID: testAuthority, By: "test", Now: w.now})
	must(t, err)
	if rep, err := f.Run(t.Context(), hour0.End(), false); err != nil || rep.Batches != 20 {
		t.Fatalf("%+v, %v", rep, err)
	}
	w.spoil(layout.BlockManifest(hour0, 0, timegrid.OneHour, 1), "x")
	got, err := w.repairer().Request(t.Context(), hour0, 0, "damaged", false)
	if err != nil || got.Removed != 20 {
		t.Fatalf("%+v, %v", got, err)
	}
	o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 2})
	must(t, err)
	must(t, rounds(t.Context(), o))
	w.verify()
	w.check(hour0, 0, 2)
	w.spoil(w.set(hour0, 0, timegrid.Raw).Objects[0].ChunkKey, "x")
	if _, err := w.repairer().Request(t.Context(), hour0, 0, "damaged", false); !errors.Is(err, repair.ErrLost) {
		t.Fatal(err)
	}
}

// A request that comes while a generation is in work, or just before one is begun, is not
// done by a generation that takes over what is damaged.
func TestARequestMeetsAGenerationInWork(t *testing.T) {
	for _, begun := range []bool{false, true} {
		w := newWorld(t, newMem())
		cfg := testConfig()
		seq := w.some(agentOf(0, 0), hour0, 0, 20, 0)
		w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
		// Of five minutes' rows: the late batch changes no other chunk.
		e := w.accept(agentOf(0, 0), seq, point{"other", series.Gauge, at(hour0, 50*time.Minute), 1})
		w.manifests()
		svc := w.worker(cfg, w.store)
		o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 2})
		must(t, err)
		_, err = o.Round(t.Context()) // it has listed requests
		must(t, err)
		if begun {
			w.begun(svc, e)
		}
		w.spoil(w.set(hour0, 0, timegrid.Raw).Objects[0].ChunkKey, "rotten")
		got, err := w.repairer().Request(t.Context(), hour0, 0, "damaged", false)
		must(t, err)
		if again, err := w.repairer().Request(t.Context(), hour0, 0, "damaged", false); err != nil || !again.Pending {
			t.Fatalf("%+v, %v", again, err)
		}
		want := uint64(3) // the requested one, then the late batch; or the begun one, then the requested one
		if got.Generation != 2 {
			t.Fatalf("%+v", got)
		}
		if begun { // by somebody who does not know of the request
			ord, _, err := w.store.Get(t.Context(), layout.RepairRequest(hour0, 0), objstore.GetOptions{})
			must(t, err)
			must(t, w.store.Delete(t.Context(), layout.RepairRequest(hour0, 0)))
			w.drive(cfg, ownership.Grant{Shard: 0, Fence: 2})
			w.spoil(layout.RepairRequest(hour0, 0), string(ord))
		}
		w.advance(cfg.Schedule.LateAfter - requests.ListEvery/2)
		for range 3 {
			_, err = o.Round(t.Context())
			must(t, err)
		}
		must(t, w.turns(o))
		if n := w.there(layout.RepairRequestsPrefix); n != 0 {
			t.Fatal("the request is still there")
		}
		w.verify()
		w.check(hour0, 0, want)
	}
}

// Requests that can't be read, or are another authority's, hold nothing up; a shard has many.
func TestBadRequests(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	w.some(agentOf(0, 0), hour0, 0, 3, 0)
	w.spoil(layout.RepairRequest(hour0-3, 0), "x")
	foreign := catalog.RepairRequest{AuthorityID: "other", Shard: 0, Hour: hour0 - 2, Above: 1, Reason: "r", By: "b"}
	w.spoil(foreign.Key(), string(foreign.Marshal()))
	empty := foreign
	empty.AuthorityID, empty.Hour = testAuthority, hour0-1
	w.spoil(empty.Key(), string(empty.Marshal()))
	o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	for range 3 {
		if _, err := o.Round(t.Context()); err != nil && !errors.Is(err, job.ErrNoInputs) {
			t.Fatal(err)
		}
	}
	w.check(hour0, 0, 1)
	if _, err := w.repairer().Request(t.Context(), hour0+4, 0, "r", false); !errors.Is(err, repair.ErrNothing) {
		t.Error(err)
	}
}

// Records that somebody deleted are found by what is left of their generation, or by what
// they superseded, and made again; a generation in work is no finding.
func TestDeletedRecords(t *testing.T) {
	for _, resolutions := range [][]timegrid.Resolution{{timegrid.Raw}, {timegrid.OneHour, timegrid.OneMinute}, timegrid.Resolutions()} {
		w := newWorld(t, newMem())
		cfg := testConfig()
		seq := w.some(agentOf(0, 0), hour0, 0, 20, 0)
		w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
		w.some(agentOf(0, 0), hour0, 30, 1, seq)
		w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
		w.manifests()
		svc := w.worker(cfg, w.store)
		o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 2})
		must(t, err)
		for range 5 { // what is superseded is removed
			w.advance(time.Hour)
			_, err := w.workers[svc].collection.Step(t.Context(), maintain.SweepStart)
			must(t, err)
		}
		w.verify()
		w.check(hour0, 0, 2)
		for _, res := range resolutions {
			must(t, w.store.Delete(t.Context(), layout.BlockManifest(hour0, 0, res, 2)))
		}
		w.verify(repair.RecordMissing)
		_, err = w.repairer().Request(t.Context(), hour0, 0, "damaged", false)
		must(t, err)
		_ = w.turns(o)
		must(t, w.turns(o))
		if n := w.there(layout.RepairRequestsPrefix); n != 0 {
			t.Fatal("the request is still there")
		}
		w.verify()
		w.check(hour0, 0, 3)
	}
	// Resolutions of a generation that is in work differ.
	w := newWorld(t, newMem())
	w.some(agentOf(0, 0), hour0, 0, 3, 0)
	w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 1})
	must(t, w.store.Delete(t.Context(), layout.BlockManifest(hour0, 0, timegrid.OneHour, 1)))
	w.verify()
	w.advance(time.Hour)
	w.verify(repair.RecordMissing)
}
