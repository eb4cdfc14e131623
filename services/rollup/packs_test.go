package rollup

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// packed is a world whose hour ended a minute ago, with batches of two agents of each shard, and a worker that has them all in snapshots and
// not yet in blocks. Requests of the worker are counted and may be refused.
type packed struct {
	*world
	worker running
	faults *fault.Store
	asked  *storetest.Counter
	cfg    Config
}

func newPacked(t *testing.T, change func(*Config)) *packed {
	t.Helper()
	p := &packed{world: newWorld(t, newMem()), cfg: testConfig()}
	p.clock.Store(hour0.End().Add(time.Minute).UnixNano())
	p.cfg.Snapshot.Interval, p.cfg.Schedule.FirstAfter = 2*time.Millisecond, 30*time.Minute
	if change != nil {
		change(&p.cfg)
	}
	for id := range shard.ID(testShards) {
		p.some(agentOf(id, 0), hour0, 200, 50, 0)
		p.some(agentOf(id, 1), hour0, 200, 50, 0)
	}
	p.faults = fault.New(p.store, 1)
	p.asked = storetest.Count(p.faults)
	p.start(t, 1)
	eventually(t, "everything is in snapshots", func() bool {
		p.advance(100 * time.Millisecond) // messages wait by this clock
		return len(p.inSnapshots()) == len(p.accepted)
	})
	return p
}

// start starts the worker, as the owner with a fence.
func (p *packed) start(t *testing.T, fence uint64) {
	t.Helper()
	p.worker = p.run(t, Deps{
		Store: p.asked, Telemetry: telemetry.Discard(), Queue: p.pending, Table: p.pending, Refs: p.refs, Now: p.now, Policy: testPolicy,
		Ownership: ownership.Static{Fence: fence},
	}, p.cfg)
}

// rollUp lets the time of the hour come.
func (p *packed) rollUp(t *testing.T, by time.Duration) {
	t.Helper()
	p.advance(by)
	eventually(t, "the hour is rolled up", func() bool { return len(p.left(0))+len(p.left(1)) == 0 })
	p.worker.stop()
	p.check(hour0, 0, 1)
	p.check(hour0, 1, 1)
}

// blobs counts the GETs of frames, each on its own.
func (p *packed) blobs() int { return p.asked.Of("get", layout.RawBlobsPrefix) }

// packs gives the keys of the packs.
func (p *packed) packs() (keys []string) {
	p.t.Helper()
	must(p.t, storetest.Each(p.t.Context(), p.store, layout.LivePacksPrefix, func(o objstore.Info) error {
		keys = append(keys, o.Key)
		return nil
	}))
	return keys
}

// What the snapshots have is not asked for again: a frame costs one GET, where two came without packs.
func TestHoursAreMadeOfPacks(t *testing.T) {
	p := newPacked(t, nil)
	if got := p.blobs(); got != len(p.accepted) {
		t.Fatalf("snapshots of %d batches took %d GETs", len(p.accepted), got)
	}
	packs := len(p.packs())
	before := p.asked.Of("get", layout.LivePacksPrefix)
	p.rollUp(t, 30*time.Minute)
	// A pack of one batch is not worth a request.
	if got := p.blobs(); got > len(p.accepted)+packs {
		t.Errorf("%d GETs of frames for %d batches in %d packs, want one of each batch", got, len(p.accepted), packs)
	}
	if got := p.asked.Of("get", layout.LivePacksPrefix) - before; got == 0 || got > packs {
		t.Errorf("%d GETs of %d packs", got, packs)
	}
}

// Packs are copies. Whatever becomes of them, the hour is what was accepted, and costs requests at most.
func TestHoursAreWholeWithoutPacks(t *testing.T) {
	spoil := func(p *packed, fn func([]byte) []byte) {
		for _, key := range p.packs() {
			b, _, err := p.store.Get(p.t.Context(), key, objstore.GetOptions{})
			must(p.t, err)
			_, err = p.store.Put(p.t.Context(), key, fn(slices.Clone(b)), objstore.PutOptions{})
			must(p.t, err)
		}
	}
	for name, c := range map[string]struct {
		harm func(p *packed)
		all  bool // no frame of a pack is used
	}{
		"a frame is damaged":    {harm: func(p *packed) { spoil(p, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }) }},
		"the header is damaged": {all: true, harm: func(p *packed) { spoil(p, func(b []byte) []byte { b[20] ^= 1; return b }) }},
		"the pack is cut short": {all: true, harm: func(p *packed) { spoil(p, func(b []byte) []byte { return b[:len(b)-1] }) }},
		"the pack is empty":     {all: true, harm: func(p *packed) { spoil(p, func([]byte) []byte { return nil }) }},
		"the pack is gone": {all: true, harm: func(p *packed) {
			for _, key := range p.packs() {
				must(p.t, p.store.Delete(p.t.Context(), key))
			}
		}},
		"the pack can't be read": {all: true, harm: func(p *packed) {
			p.faults.Add(fault.Refused("get", layout.LivePacksPrefix, objstore.ErrUnavailable))
		}},
		// Such a pack is whole by its own header; only the journal's entry tells.
		"the pack has valid frames that were not accepted": {all: true, harm: func(p *packed) {
			spoil(p, func(b []byte) []byte {
				old, err := snapshot.DecodePack(b)
				must(p.t, err)
				var batches []snapshot.Batch
				for _, e := range old.Entries {
					raw := bytes.Clone(p.frames[e.Identity])
					raw[len(raw)-1] ^= 1
					e.FrameSHA256 = identity.Sum(raw)
					e.RawBlobKey = layout.Blob(e.FrameSHA256, 0)
					batches = append(batches, snapshot.Batch{Batch: e, Raw: raw})
				}
				b, err = snapshot.EncodePack(old.Shard, old.Shards, batches)
				must(p.t, err)
				return b
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPacked(t, nil)
			packs := len(p.packs())
			c.harm(p)
			p.rollUp(t, 30*time.Minute)
			again := p.blobs() - len(p.accepted)
			if c.all && again != len(p.accepted) || !c.all && (again == 0 || again > 2*packs) {
				t.Errorf("%d frames of %d batches in %d packs were read from blobs", again, len(p.accepted), packs)
			}
			if n := testutil.ToFloat64(p.worker.m.PackFailures); n == 0 || n > float64(packs) {
				t.Errorf("%v failures of %d packs are counted", n, packs)
			}
		})
	}
}

// A frame that is in a pack is not missing.
func TestAFrameThatIsLostIsReadFromItsPack(t *testing.T) {
	p := newPacked(t, nil)
	must(t, p.store.Delete(t.Context(), p.accepted[3].RawBlobKey))
	p.rollUp(t, 30*time.Minute)
}

// A worker that is started again, or is another one, takes over the snapshots of the owner before it, and their packs.
func TestPacksOfTheOwnerBefore(t *testing.T) {
	p := newPacked(t, nil)
	p.worker.stop()
	packs, before := len(p.packs()), p.blobs()
	p.start(t, 2)
	eventually(t, "the snapshots are taken over", func() bool {
		for id := range shard.ID(testShards) {
			if testutil.ToFloat64(p.worker.m.SnapshotNumber.WithLabelValues(id.String())) == 0 {
				return false
			}
		}
		return true
	})
	p.rollUp(t, 30*time.Minute)
	if got := p.blobs() - before; got > packs {
		t.Errorf("%d GETs of frames for %d batches in %d packs", got, len(p.accepted), packs)
	}
	if n := testutil.ToFloat64(p.worker.m.PackFailures); n != 0 {
		t.Errorf("%v failures", n)
	}
}

// Retention may have removed the frames of an hour that ended long ago, so packs do not bring them back, however far back snapshots hold frames.
func TestPacksOfOldHoursAreNotRead(t *testing.T) {
	p := newPacked(t, func(c *Config) {
		c.Snapshot.Window, c.Retention.RawFrames, c.Schedule.FirstAfter = 96*time.Hour, 24*time.Hour, 12*time.Hour+10*time.Minute
	})
	before := p.asked.Of("get", layout.LivePacksPrefix)
	p.rollUp(t, 13*time.Hour)
	if got := p.blobs(); got != 2*len(p.accepted) {
		t.Errorf("%d GETs of frames for %d batches", got, len(p.accepted))
	}
	if got := p.asked.Of("get", layout.LivePacksPrefix) - before; got != 0 {
		t.Errorf("%d GETs of packs", got)
	}
}

// TestPacksAtAStop: a worker that is shut down packs what waits for the next snapshot, so that the next one need not read it
// frame by frame.
func TestPacksAtAStop(t *testing.T) {
	p := newPacked(t, nil)
	p.worker.stop()
	p.cfg.Snapshot.Interval = time.Hour
	p.start(t, 2)
	before := len(p.accepted)
	for id := range shard.ID(testShards) {
		p.some(agentOf(id, 2), hour0, 200, 50, 0)
	}
	eventually(t, "what came since is known", func() bool { return testutil.ToFloat64(p.worker.m.Arrived) >= float64(len(p.accepted)) })
	if got := len(p.inSnapshots()); got != before {
		t.Fatalf("%d batches are in snapshots before their time, want %d", got, before)
	}
	p.worker.stop()
	if got := len(p.inSnapshots()); got != len(p.accepted) {
		t.Errorf("%d of %d batches are in snapshots after the stop", got, len(p.accepted))
	}
	blobs := p.blobs()
	p.start(t, 3)
	p.rollUp(t, 30*time.Minute)
	if again := p.blobs() - blobs; again > len(p.packs()) {
		t.Errorf("%d frames were read one by one after the stop", again)
	}
}

// TestWhatWasPublishedIsNotReadAgain: the worker knows what its own job has published.
func TestWhatWasPublishedIsNotReadAgain(t *testing.T) {
	p := newPacked(t, nil)
	p.asked.Reset()
	p.advance(30 * time.Minute)
	eventually(t, "the hour is rolled up", func() bool { return len(p.left(0))+len(p.left(1)) == 0 })
	if n := p.asked.Of("get", layout.ManifestsPrefix); n != 0 {
		t.Errorf("%d GETs of manifests", n)
	}
}
