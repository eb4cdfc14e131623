package rollup

import (
	"context"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/requests"
)

// afterwards does something once, after an object was created.
type afterwards struct {
	objstore.Store
	key  string
	do   func()
	done bool
}

func (a *afterwards) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	info, err := a.Store.Create(ctx, key, body, o)
	if key == a.key && !a.done {
		a.done = true
		a.do()
	}
	return info, err
}

// rotting is a store that gives other bytes of some objects than it took, with the
// checksum that it remembers.
type rotting struct {
	objstore.Store
	rotten map[string]bool
}

func (r *rotting) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	b, info, err := r.Store.Get(ctx, key, o)
	if r.rotten[key] && len(b) > 0 {
		b[len(b)/2] ^= 1
	}
	return b, info, err
}

func (w *world) rot(key string) { w.store.(*rotting).rotten[key] = true }

// damagedHour is one with an index that rotted; a late batch, if there is one, changes
// another chunk.
func damagedHour(t *testing.T, late bool) (*world, *driven, *Service, *aborting) {
	w := newWorld(t, &rotting{newMem(), map[string]bool{}})
	cfg := testConfig()
	cfg.Chunks.MetricSamples = 2 // a chunk for each metric
	seq := w.some(agentOf(0, 0), hour0, 0, 40, 0)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	if late {
		w.accept(agentOf(0, 0), seq, point{"other", series.Gauge, at(hour0, 50*time.Minute), 1}, point{"other", series.Gauge, at(hour0, 51*time.Minute), 1})
	}
	w.manifests()
	hook := &aborting{Store: w.store}
	svc := w.worker(cfg, hook)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 2})
	must(t, err)
	_, err = o.Round(t.Context()) // it has listed requests
	must(t, err)
	w.rot(w.set(hour0, 0, timegrid.OneHour).Objects[0].IndexKey)
	w.verify(repair.ObjectDamaged)
	return w, o, svc, hook
}

// request makes a repair request of the damaged hour through s.
func (w *world) request(s objstore.Store) {
	w.t.Helper()
	r := w.repairerOver(s)
	_, err := r.Request(w.t.Context(), hour0, 0, "damaged", false)
	must(w.t, err)
}

// An owner that does not know of a request, and makes the generation that it asks for
// while it is being made, does not have it for done.
func TestARequestThatIsBeingMade(t *testing.T) {
	for _, first := range []string{"request", "plan of the request", "plan of the owner"} {
		t.Run(first, func(t *testing.T) {
			w, o, svc, hook := damagedHour(t, true)
			w.advance(svc.cfg.Schedule.LateAfter - requests.ListEvery/2)
			plan := layout.RollupPlan(hour0, 0, 2)
			late := func() { must(t, rounds(t.Context(), o)) }
			switch first {
			case "request":
				w.request(&afterwards{Store: w.store, key: layout.RepairRequest(hour0, 0), do: late})
			case "plan of the request":
				w.request(&afterwards{Store: w.store, key: plan, do: late})
			default:
				// It asked for a request before there was one, and makes its plan.
				hook.before, hook.do = plan, func() { w.request(w.store) }
				late()
			}
			must(t, w.turns(o))
			if n := w.there(layout.RepairRequestsPrefix); n != 0 {
				t.Fatal("the request is still there")
			}
			w.verify()
		})
	}
}

// A request that is made again while the former one is taken for done is not lost.
func TestARequestThatIsMadeAgain(t *testing.T) {
	w, o, _, _ := damagedHour(t, false)
	w.request(w.store)
	w.advance(requests.ListEvery)
	for range 20 { // until it is made, and not yet deleted
		if w.generation(hour0, 0) == 2 {
			break
		}
		_, err := o.Round(t.Context())
		must(t, err)
	}
	w.rot(w.set(hour0, 0, timegrid.OneHour).Objects[0].IndexKey)
	if w.there(layout.RepairRequestsPrefix) != 1 {
		t.Fatal("the request is gone already")
	}
	w.request(w.store)
	must(t, rounds(t.Context(), o))
	must(t, w.turns(o))
	if n := w.there(layout.RepairRequestsPrefix); n != 0 {
		t.Fatal("the request is still there")
	}
	w.verify()
}

// A clock that goes back does not keep requests waiting.
func TestRequestsWhenTheClockGoesBack(t *testing.T) {
	w, o, svc, _ := damagedHour(t, true)
	w.advance(365 * 24 * time.Hour)
	must(t, rounds(t.Context(), o))
	w.advance(-365 * 24 * time.Hour)
	w.request(w.store)
	w.advance(svc.cfg.Schedule.LateAfter)
	must(t, w.turns(o))
	if n := w.there(layout.RepairRequestsPrefix); n != 0 {
		t.Fatal("the request is still there")
	}
	w.verify()
}

// A worker that dies while it aborts a generation, resolution by resolution, leaves no hour that
// waits for its frame.
func TestAnAbortThatWasCutShort(t *testing.T) {
	for n := range len(timegrid.Resolutions()) {
		w := newWorld(t, newMem())
		cfg := testConfig()
		seq := w.some(agentOf(0, 0), hour0, 0, 3, 0)
		bad := w.accept(agentOf(0, 0), seq, one(hour0, 10*time.Minute))
		body, _, err := w.store.Get(t.Context(), bad.RawBlobKey, objstore.GetOptions{})
		must(t, err)
		must(t, w.store.Delete(t.Context(), bad.RawBlobKey))
		dying := fault.New(w.store, 1, fault.Rule{Op: "create", Prefix: layout.BlockManifestsHour(hour0), Skip: n, Kind: fault.Before})
		o, err := w.owner(w.worker(cfg, dying), ownership.Grant{Shard: 0, Fence: 1})
		must(t, err)
		_ = rounds(t.Context(), o)
		o, err = w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 2})
		must(t, err)
		_ = w.turns(o)
		if s := w.set(hour0, 0, timegrid.Raw); s == nil || s.Inputs.Batches() != 3 {
			t.Fatalf("%d windows were aborted: %+v", n, s)
		}
		must(t, func() error {
			_, err := w.store.Create(t.Context(), bad.RawBlobKey, body, objstore.PutOptions{SHA256: bad.FrameSHA256})
			return err
		}())
		w.advance(24 * time.Hour)
		_ = w.turns(o)
		must(t, w.turns(o))
		w.check(hour0, 0, w.generation(hour0, 0))
	}
}

// A request meets a generation in work with a late batch whose frame is lost: that
// generation is aborted, and the request is done without the batch.
func TestARequestMeetsALostFrame(t *testing.T) {
	w, o, svc, _ := damagedHour(t, false)
	e := w.accept(agentOf(0, 0), 1000, one(hour0, 50*time.Minute))
	w.manifests()
	must(t, w.store.Delete(t.Context(), e.RawBlobKey))
	w.begun(svc, e)
	w.request(w.store)
	_ = w.turns(o) // its error names the frame
	if n := w.there(layout.RepairRequestsPrefix); n != 0 {
		t.Fatal("the request is still there")
	}
	w.verify()
	if s := w.set(hour0, 0, timegrid.Raw); s.Inputs.Covers(e.Identity) || s.Inputs.Batches() != 40 {
		t.Fatalf("%+v", s.Inputs)
	}
}
