package follow

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/goleak"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an acceptance authority, whose store fails as it is reported, and a follower.
type world struct {
	t     testing.TB
	rnd   *rand.Rand
	store *mem.Store
	cfg   Config

	mu      sync.Mutex
	clock   time.Time // zero: the machine's
	failing string    // "list", or what keys begin with whose reads fail
	onList  func()    // called once, in the middle of the next listing

	follow  *Follower
	live    *live.Store
	batches []*batch
	next    map[identity.Boot]uint64
	records int64
}

// batch is an accepted batch; its samples are one a millisecond, and no other's.
type batch struct {
	manifest accept.Manifest
	frame    []byte
	ms       []int64
	at       time.Time // when it was accepted, by the store
	old      bool      // its samples lie before the window
}

const history = 2 * time.Hour

func newWorld(t testing.TB, seed uint64, clock time.Time) *world {
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 17)), clock: clock, next: map[identity.Boot]uint64{}, cfg: DefaultConfig()}
	w.store = mem.New(w.now)
	// Gaps are never closed, and a frontier audit looks a little back: identities come in any order.
	w.cfg.GapGrace, w.cfg.Back, w.cfg.Listers, w.cfg.Fetchers = 1000*time.Hour, 2, 1, 1
	w.restart()
	return w
}

func (w *world) must(err error) {
	if err != nil {
		w.t.Helper()
		w.t.Fatal(err)
	}
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.clock.IsZero() {
		return time.Now()
	}
	return w.clock
}

func (w *world) tick(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.clock.IsZero() {
		w.clock = w.clock.Add(d)
	}
}

// restart is a node that knows nothing.
func (w *world) restart() {
	var err error
	w.live, err = live.New(live.Config{History: history, MaxBytes: 1 << 30, MaxSeries: 1000})
	w.must(err)
	w.follow, err = New(w.cfg, Deps{Store: w, Live: w.live, History: history, Log: telemetry.Discard().Log, Registry: prometheus.NewRegistry(), Now: w.now})
	w.must(err)
}

func (w *world) fail(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = what
}

func (w *world) down(op, key string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failing != "" && (op == w.failing || op == "get" && strings.HasPrefix(key, w.failing)) {
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
	page, err := w.store.List(ctx, o)
	w.mu.Lock()
	fn := w.onList
	w.onList = nil
	w.mu.Unlock()
	if fn != nil {
		fn()
	}
	if derr := w.down("list", o.Prefix); derr != nil {
		return objstore.Page{}, derr
	}
	return page, err
}

func (w *world) put(key string, body []byte) {
	_, err := w.store.Put(context.Background(), key, body, objstore.PutOptions{})
	w.must(err)
}

// accept makes a batch accepted: the next of its boot, or one that leaves a gap, which a
// later one may fill.
func (w *world) accept(old bool) *batch {
	boot := identity.Boot{Agent: fmt.Sprintf("a%d", w.rnd.IntN(3)), Boot: "b"}
	n := 1 + w.rnd.IntN(4)
	seq := w.next[boot]
	if gap := uint64(w.rnd.IntN(3) * 4); w.rnd.IntN(3) == 0 {
		seq += gap
	}
	for slices.ContainsFunc(w.batches, func(b *batch) bool {
		id := b.manifest.Identity
		return id.BootOf() == boot && id.SeqStart < seq+uint64(n) && id.SeqEnd >= seq
	}) {
		seq++
	}
	if w.rnd.IntN(4) > 0 {
		w.next[boot] = seq + uint64(n)
	} else if seq >= 8 {
		w.next[boot] = seq - uint64(w.rnd.IntN(8)) // the gap is filled later
	}
	w.tick(time.Millisecond)
	base := w.now().Add(-time.Minute)
	if old {
		base = w.now().Add(-history - time.Hour)
	}
	ms := make([]int64, n)
	for i := range ms {
		w.records++
		ms[i] = base.UnixMilli()/1_000_000*1_000_000 + w.records
	}
	b := w.acceptAt(boot, seq, ms...)
	b.old = old
	return b
}

// acceptAt makes a batch of these samples accepted now.
func (w *world) acceptAt(boot identity.Boot, seq uint64, ms ...int64) *batch {
	b := &batch{ms: ms}
	fb := frame.NewBuilder()
	id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "m"}, {Name: "agent", Value: boot.Agent}}, series.Gauge, "", 0)
	w.must(err)
	for _, at := range ms {
		w.must(fb.Append(id, at*1e6, float64(at)))
	}
	f, err := fb.Build(boot, seq)
	w.must(err)
	b.frame, err = frame.Encode(nil, f)
	w.must(err)
	sum := identity.Sum(b.frame)
	b.manifest = accept.Manifest{
		AuthorityID: "test", Identity: f.Identity, FrameSHA256: sum, FrameBytes: uint64(len(b.frame)), RawBlobKey: layout.Blob(sum, 0),
		AcceptedAt: w.now().UnixNano(), CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
		RecordCount: f.Identity.Count(), MinTime: ms[0] * 1e6, MaxTime: ms[len(ms)-1] * 1e6,
	}
	w.put(layout.Boot(boot), []byte("{}"))
	w.put(b.manifest.RawBlobKey, b.frame)
	w.put(b.key(), b.manifest.Marshal())
	b.at = w.now()
	w.batches = append(w.batches, b)
	return b
}

func (b *batch) key() string { return layout.Accepted(b.manifest.Identity) }

// shown counts how often each record is visible.
func (w *world) shown() map[int64]int {
	snap := w.live.Snapshot(w.now())
	defer snap.Close()
	list, err := snap.Select(context.Background(), math.MinInt64/4, math.MaxInt64/4, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
	w.must(err)
	out := map[int64]int{}
	for i := range list {
		runs := list[i].Runs(math.MinInt64/4, math.MaxInt64/4)
		for run, ok := runs.Next(); ok; run, ok = runs.Next() {
			for _, ms := range run.T {
				out[ms]++
			}
		}
	}
	return out
}

// visible reports that all records of the batch are shown, each once. Some of them, or one
// of them twice, is an error.
func (w *world) visible(b *batch, shown map[int64]int) bool {
	w.t.Helper()
	n := 0
	for _, ms := range b.ms {
		if shown[ms] > 1 {
			w.t.Errorf("%s: a record is shown %d times", b.manifest.Identity, shown[ms])
		}
		n += min(shown[ms], 1)
	}
	if n != 0 && n != len(b.ms) {
		w.t.Errorf("%s: %d of %d records are shown", b.manifest.Identity, n, len(b.ms))
	}
	return n == len(b.ms)
}

// told reports that the batch is known to be unreadable in its range.
func (w *world) told(b *batch) bool {
	list, _ := w.follow.Status().Unreadable(b.ms[0], b.ms[len(b.ms)-1])
	return slices.ContainsFunc(list, func(u Unread) bool { return u.Identity == b.manifest.Identity })
}

// check is invariant I12: what was accepted before complete_through is shown, or told, or
// before the window. Nothing is shown that was not accepted.
func (w *world) check(what string) {
	w.t.Helper()
	shown, through := w.shown(), w.follow.Status().CompleteThrough
	records := 0
	for _, b := range w.batches {
		visible := w.visible(b, shown)
		if visible {
			records += len(b.ms)
		}
		if b.at.Before(through) && !visible && !b.old && !w.told(b) {
			w.t.Errorf("%s: %s was accepted at %s, complete through %s, and is missing without a word", what, b.manifest.Identity, b.at, through)
		}
	}
	if records != len(shown) {
		w.t.Errorf("%s: %d records are shown, of batches that are visible %d", what, len(shown), records)
	}
}
