package blocks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// world is a store, a keeper and a live store that one seed drives.
type world struct {
	t       *testing.T
	rnd     *rand.Rand
	clock   time.Time
	store   *mem.Store
	failing string // "list", or what keys begin with whose reads fail
	keeper  *Keeper
	live    *live.Store
	publish publishedtest.Publisher

	accepted []publishedtest.Batch
	rolled   map[timegrid.Hour]int // batches of the log that the hour's last generation checked
	gen      map[timegrid.Hour]uint64
	seq      map[string]uint64
	lost     bool // an insert came back as expired

	raw    map[identity.Batch][]byte
	deltas []*delta.Delta // that are in the store
	again  int            // queries that were read a second time
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), clock: time.Date(2026, 11, 21, 5, 50, 0, 0, time.UTC),
		rolled: map[timegrid.Hour]int{}, gen: map[timegrid.Hour]uint64{}, seq: map[string]uint64{}, raw: map[identity.Batch][]byte{}}
	w.store = mem.New(func() time.Time { return w.clock })
	if err := shards.Ensure(t.Context(), w.store, 2); err != nil {
		t.Fatal(err)
	}
	w.put(layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "test"}.Marshal())
	w.publish = publishedtest.Publisher{Store: w.store, Authority: "test", Shards: 2}
	w.restart()
	if err := w.keeper.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// restart is a node that knows nothing.
func (w *world) restart() {
	t := w.t
	var err error
	w.live, err = live.New(live.Config{History: 20 * time.Minute, MaxBytes: 1 << 30, MaxSeries: 1000})
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.TTL = time.Minute
	w.keeper, err = New(cfg, Deps{Store: w, Window: 20 * time.Minute, Log: telemetry.Discard().Log, Registry: prometheus.NewRegistry(),
		Now: func() time.Time { return w.clock }})
	if err != nil {
		t.Fatal(err)
	}
	w.live.SetCover(func(id identity.Batch, hours []timegrid.Hour) live.Held {
		switch held, known := w.keeper.Held(id, hours); {
		case !known:
			return live.Unknown
		case held:
			return live.Published
		}
		return live.OnlyHere
	})
}

func (w *world) down(op, key string) error {
	if w.failing != "" && (op == w.failing || op+" "+key == w.failing || op == "get" && strings.HasPrefix(key, w.failing)) {
		return &objstore.Error{Op: op, Key: key, Err: objstore.ErrUnavailable}
	}
	return nil
}

func (w *world) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if err := w.down("get", key); err != nil {
		return nil, objstore.Info{}, err
	}
	return w.store.Get(ctx, key, o)
}

func (w *world) Head(ctx context.Context, key string) (objstore.Info, error) {
	return w.store.Head(ctx, key)
}

func (w *world) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := w.down("list", o.Prefix); err != nil {
		return objstore.Page{}, err
	}
	return w.store.List(ctx, o)
}

func (w *world) put(key string, body []byte) {
	if _, err := w.store.Put(context.Background(), key, body, objstore.PutOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// step does one thing at random.
func (w *world) step() {
	switch w.rnd.IntN(12) {
	case 0, 1, 2:
		w.accept()
	case 3:
		w.clock = w.clock.Add(time.Duration(w.rnd.IntN(12)) * time.Minute)
	case 4, 5:
		w.roll()
	case 6:
		if err := w.keeper.Poll(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	case 7:
		w.live.Expire(w.clock)
	case 8, 9:
		w.writeDelta()
	case 10:
		w.deleteDeltas()
	case 11:
		if err := w.keeper.RefreshDeltas(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}
}

// writeDelta writes some accepted batches of a shard as a delta, whatever blocks and other deltas have of them.
func (w *world) writeDelta() {
	var of []delta.Batch
	id := shard.ID(w.rnd.IntN(2))
	for _, b := range w.accepted {
		if shard.Of(b.Frame.Identity.Agent, 2) == id && w.rnd.IntN(3) == 0 {
			of = append(of, w.entry(b))
		}
	}
	if len(of) > 0 {
		w.putDelta(id, of)
	}
}

func (w *world) putDelta(id shard.ID, of []delta.Batch) {
	d, err := delta.New("test", id, 2, of)
	if err != nil {
		w.t.Fatal(err)
	}
	var frames [][]byte
	for _, b := range d.Batches {
		frames = append(frames, w.raw[b.Identity])
	}
	body, err := d.Marshal(frames)
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(d.Key(), body)
	w.deltas = append(w.deltas, d)
}

func (w *world) entry(b publishedtest.Batch) delta.Batch {
	raw, id := w.raw[b.Frame.Identity], b.Frame.Identity
	lo, hi := frame.TimeRange(b.Frame)
	sum := identity.Sum(raw)
	return delta.Batch{Batch: accepted.Batch{Identity: id, FrameSHA256: sum, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(sum, 0), AcceptedAt: b.AcceptedAt, MinTime: lo, MaxTime: hi},
		Hours: publishedtest.Hours([]publishedtest.Batch{b})}
}

// deleteDeltas deletes those that the newest blocks have, and sometimes those that were written together in one.
func (w *world) deleteDeltas() {
	covered := map[identity.Batch]bool{}
	for i, b := range w.accepted {
		covered[b.Frame.Identity] = true
		for _, h := range publishedtest.Hours([]publishedtest.Batch{b}) {
			if i >= w.rolled[h] {
				covered[b.Frame.Identity] = false
			}
		}
	}
	kept := w.deltas[:0:0]
	rest := map[shard.ID][]delta.Batch{}
	together := w.rnd.IntN(2) == 0
	for _, d := range w.deltas {
		open := false
		for _, b := range d.Batches {
			open = open || !covered[b.Identity]
		}
		if open && !together {
			kept = append(kept, d)
			continue
		}
		if open {
			rest[d.Shard] = append(rest[d.Shard], d.Batches...)
		}
	}
	old := w.deltas
	w.deltas = kept
	for id, of := range rest {
		w.putDelta(id, of)
	}
	there := map[string]bool{}
	for _, d := range w.deltas {
		there[d.Key()] = true
	}
	for _, d := range old {
		if there[d.Key()] {
			continue
		}
		if err := w.store.Delete(w.t.Context(), d.Key()); err != nil {
			w.t.Fatal(err)
		}
	}
}

// accept makes a batch of one series accepted and visible: recent, late, or both sides of a stroke.
func (w *world) accept() {
	agent := fmt.Sprintf("a%d", w.rnd.IntN(4))
	at := w.clock.Add(-time.Duration(w.rnd.IntN(30)) * time.Minute)
	if w.rnd.IntN(4) == 0 {
		at = w.clock.Add(-time.Duration(w.rnd.IntN(180)) * time.Minute)
	}
	// A nanosecond apart for each batch, so that every record is reported from every other.
	ns := []int64{at.UnixNano() + int64(len(w.accepted)+1)*1e6}
	for range w.rnd.IntN(4) {
		ns = append(ns, ns[len(ns)-1]+w.rnd.Int64N(20)*60e9/4+1e9)
	}
	w.acceptAt(agent, ns...)
}

// acceptAt makes a batch of samples at these times accepted and visible.
func (w *world) acceptAt(agent string, ns ...int64) publishedtest.Batch {
	b := frame.NewBuilder()
	id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "m"}, {Name: "agent", Value: agent}}, series.Gauge, "", 0)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, at := range ns {
		if err := b.Append(id, at, float64(len(w.accepted))); err != nil {
			w.t.Fatal(err)
		}
	}
	f, err := b.Build(identity.Boot{Agent: agent, Boot: "b"}, w.seq[agent])
	if err != nil {
		w.t.Fatal(err)
	}
	w.seq[agent] = f.Identity.SeqEnd + 1
	raw, err := frame.Encode(nil, f)
	if err != nil {
		w.t.Fatal(err)
	}
	w.raw[f.Identity] = raw
	own := &frame.Batch{}
	if err := frame.Decode(raw, own, frame.Limits{}); err != nil {
		w.t.Fatal(err)
	}
	a := publishedtest.Batch{Frame: own, AcceptedAt: w.clock.UnixNano()}
	out, err := w.live.Insert(accepted.Batch{Identity: own.Identity, AcceptedAt: a.AcceptedAt}, own, w.clock)
	if err != nil {
		w.t.Fatal(err)
	}
	w.lost = w.lost || out == live.Expired
	w.accepted = append(w.accepted, a)
	return a
}

// roll publishes the next generation of an hour that has something new.
func (w *world) roll() {
	for _, h := range publishedtest.Hours(w.accepted) {
		n := w.rolled[h]
		if w.rnd.IntN(3) == 0 || len(publishedtest.Hours(w.accepted[n:])) == 0 {
			continue
		}
		upTo := n + 1 + w.rnd.IntN(len(w.accepted)-n)
		fresh := false
		for _, x := range publishedtest.Hours(w.accepted[n:upTo]) {
			fresh = fresh || x == h
		}
		if w.rolled[h] = upTo; !fresh {
			continue
		}
		w.gen[h]++
		var of []publishedtest.Batch
		shards := map[string]bool{}
		for _, b := range w.accepted[:upTo] {
			shards[b.Frame.Identity.Agent] = true
			of = append(of, b)
		}
		if _, err := w.publish.Publish(w.t.Context(), h, w.gen[h], of, timegrid.Raw); err != nil {
			w.t.Fatal(err)
		}
	}
}

type sample struct {
	agent string
	ms    int64
	value float64
}

// read counts every record that the blocks and the snapshot give together.
func (w *world) read(q *published.Query, snap *live.Snapshot) map[sample]int {
	const mint, maxt = 0, 4e12
	got := map[sample]int{}
	m := labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")
	ps, err := q.Select(w.t.Context(), mint, maxt, m)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range ps {
		for r := ps[i].Runs(mint, maxt); ; {
			run, ok := r.Next()
			if !ok {
				break
			}
			for k, ts := range run.T {
				got[sample{ps[i].Labels.Get("agent"), ts, run.V[k]}]++
			}
		}
	}
	ls, err := snap.Select(w.t.Context(), mint, maxt, m)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range ls {
		r := ls[i].Runs(mint, maxt)
		for {
			run, ok := r.Next()
			if !ok {
				break
			}
			for k, ts := range run.T {
				got[sample{ls[i].Labels.Get("agent"), ts, run.V[k]}]++
			}
		}
	}
	if from, to, gone := q.GoneHours(); gone {
		// As a session of the service does: the blocks are listed again, and everything is read once more.
		w.again++
		if err := w.keeper.Refresh(w.t.Context(), from, to); err != nil {
			w.t.Fatal(err)
		}
		snap := w.live.Snapshot(w.clock)
		defer snap.Close()
		q := w.keeper.Query(published.Limits{})
		snap.Hide(q)
		return w.read(q, snap)
	}
	if ps, _ := q.Problems(); len(ps) > 0 {
		w.t.Errorf("problem: %+v", ps[0])
	}
	return got
}

func recordsOf(b publishedtest.Batch) (out []sample) {
	for _, g := range b.Frame.Groups {
		for i, ts := range g.Timestamps {
			out = append(out, sample{b.Frame.Identity.Agent, timegrid.Millisecond(ts), g.Values[i]})
		}
	}
	return out
}

// TestEachRecordOnce: whatever is accepted, rolled up, put into deltas, polled, expired and deleted between the
// steps of a query, it reads every record that was accepted before it exactly once.
func TestEachRecordOnce(t *testing.T) {
	again := 0
	for seed := range uint64(20) {
		w := newWorld(t, seed)
		for range 30 {
			for range w.rnd.IntN(6) {
				w.step()
			}
			before := len(w.accepted)
			snap := w.live.Snapshot(w.clock)
			for range w.rnd.IntN(6) {
				w.step()
			}
			q := w.keeper.Query(published.Limits{})
			snap.Hide(q)
			for range w.rnd.IntN(3) {
				w.step()
			}
			got := w.read(q, snap)
			snap.Close()
			for i, b := range w.accepted {
				for _, r := range recordsOf(b) {
					n := got[r]
					if n > 1 || n == 0 && i < before {
						t.Fatalf("seed %d: record %+v of batch %d of %d is read %d times", seed, r, i, before, n)
					}
					delete(got, r)
				}
			}
			if len(got) > 0 {
				t.Fatalf("seed %d: %d records that nobody sent", seed, len(got))
			}
		}
		if w.lost {
			t.Fatalf("seed %d: a batch that no block holds was refused", seed)
		}
		again += w.again
	}
	if again == 0 {
		t.Error("no delta was deleted under a query")
	}
}
