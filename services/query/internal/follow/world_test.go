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
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
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
	blocks  blocks
	writers [2]*journal.Writer
	folder  *journal.Folder
	folds   *journal.Follower
	batches []*batch
	next    map[identity.Boot]uint64
	records int64
}

// batch is an accepted batch; its samples are one a millisecond, and no other's.
type batch struct {
	manifest accept.Manifest
	frame    []byte
	ms       []int64
	at       time.Time // when it was answered, by the store
	token    journal.Position
	old      bool // its samples lie before the window
}

// blocks is what a node knows of blocks.
type blocks struct {
	shards   uint32
	oldest   time.Time
	served   bool
	renewed  int
	renewing error
	// missing says which batches blocks lack; nil is none.
	missing func(id identity.Batch) (bool, error)
}

func (b *blocks) FirstPollDone() <-chan struct{} { c := make(chan struct{}); close(c); return c }
func (b *blocks) Shards() uint32                 { return b.shards }
func (b *blocks) Oldest() time.Time              { return b.oldest }
func (b *blocks) Renew(context.Context) error    { b.renewed++; return b.renewing }
func (b *blocks) Serve()                         { b.served = true }
func (b *blocks) Missing(_ context.Context, id identity.Batch, _, _ int64) (bool, error) {
	if b.missing == nil {
		return false, nil
	}
	return b.missing(id)
}

const history = 2 * time.Hour

func (w *world) writer(id string) *journal.Writer {
	out, err := journal.NewWriter(journal.WriterConfig{
		Store: w.store, Rand: rand.NewChaCha8([32]byte{byte(w.rnd.IntN(256)), byte(w.rnd.IntN(256)), byte(len(w.batches))}), Clock: func() int64 { return 0 },
		Opening: journal.Opening{Writer: id, Role: journal.RoleCollector, Authority: "test"},
	})
	w.must(err)
	return out
}

// fold follows the journal as a reconciler, folds it and deletes what was folded.
func (w *world) fold() {
	ctx := context.Background()
	if w.folds == nil {
		from, err := w.folder.Load(ctx)
		w.must(err)
		w.folds, err = journal.NewFollower(journal.FollowerConfig{
			Store: w.store, Authority: "test", From: from,
			Segment: func(_ context.Context, s *journal.Segment) error { return w.folder.Add(s) },
			Folded:  func(context.Context, []journal.Entry) error { return nil },
		})
		w.must(err)
	}
	_, err := w.folds.Poll(ctx)
	w.must(err)
	_, err = w.folder.Fold(ctx, w.now().UnixNano())
	w.must(err)
}

func newWorld(t testing.TB, seed uint64, clock time.Time) *world {
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 17)), clock: clock, next: map[identity.Boot]uint64{}, cfg: DefaultConfig()}
	w.store = mem.New(w.now)
	w.cfg.Readers, w.cfg.Fetchers, w.cfg.Snapshots = 1, 1, false
	w.put(layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "test"}.Marshal())
	w.must(journaltest.Complete(context.Background(), w.store, "test"))
	w.writers[0], w.writers[1] = w.writer("c0"), w.writer("c1")
	var err error
	w.folder, err = journal.NewFolder(journal.FolderConfig{Store: w.store, Rand: rand.NewChaCha8([32]byte{byte(seed), 7}), Retention: int64(time.Minute)})
	w.must(err)
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
	w.restartOver()
}

// restartOver makes a follower over the live store that is there.
func (w *world) restartOver() {
	var err error
	w.follow, err = New(w.cfg, Deps{Store: w, Live: w.live, History: history, Blocks: &w.blocks, Log: telemetry.Discard().Log, Registry: prometheus.NewRegistry(), Now: w.now})
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
	w.put(b.manifest.RawBlobKey, b.frame)
	w.batches = append(w.batches, b)
	w.journal(b, journal.Accepted)
	return b
}

// journal writes the batch into a segment of some collector, and answers it.
func (w *world) journal(b *batch, o journal.Outcome) {
	wr := w.writers[w.rnd.IntN(len(w.writers))]
	_, err := wr.Add(b.manifest.Entry(o))
	w.must(err)
	at, _, err := wr.Flush(context.Background())
	w.must(err)
	if b.at.IsZero() {
		b.at, b.token = w.now(), at
	}
}

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
	u := w.follow.Status().Unreadable(b.ms[0], b.ms[len(b.ms)-1], 1<<20)
	return slices.ContainsFunc(u.Named, func(u Unread) bool { return u.Identity == b.manifest.Identity })
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
