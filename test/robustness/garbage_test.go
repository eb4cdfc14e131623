package robustness

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/epochs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// TestGarbageRounds collects orphan blobs without any minimum age, all the time, in two processes at once, while batches are
// accepted, sent again, abandoned and sent late, collectors and collections stand still, and answers and deletes are lost or
// late. No age protects anything here: a blob that waits between two requests of a collector is as one of an agent that was
// offline for days. Now and then accepted/ is hidden from both collections: the breaker trips, and nothing is condemned until an
// operator releases it. Every frame that was answered is readable in the end, and every orphan is gone.
//
// In three of four seeds there is a log of epochs, which the reconciler begins, and one collector or both go without reading markers.
// Collectors are killed, too: collections wait for their runs until these are fenced, as runs of collectors that only stand still are.
func TestGarbageRounds(t *testing.T) {
	t.Parallel()
	seed, rnd := seeded(t)
	rounds := size(t, 30, 1000)
	sparing := min(int(seed%4), 2) // collectors that read no markers
	p, url := startProxy(t, "", rnd, 0)
	q, urlOfReconciler := startProxy(t, "", mrand.New(mrand.NewPCG(seed, 98)), 0)
	c := newCluster(t, cluster.Options{Collectors: 2, Adjust: func(process string, s map[string]any) {
		if strings.HasPrefix(process, "collector-") || process == "reconciler" {
			s["store"].(map[string]any)["endpoint"] = url
		}
		if process == "reconciler" {
			s["store"].(map[string]any)["endpoint"] = urlOfReconciler
		}
		switch {
		case process == "reconciler":
			s["derived"] = "segments"
			s["gc"] = map[string]any{"delay": "0s", "min_age": "0s", "sweep_interval": "1s", "poll_interval": "100ms", "lease": "1s", "rate": 5000, "requests_per_day": 0, "epochs": sparing > 0}
			s["journal"].(map[string]any)["fence_after"] = "1s" // shorter than some pauses
		case strings.HasPrefix(process, "collector-"):
			s["orphans"] = map[string]any{"report_interval": "300ms"}
			if sparing == 2 || sparing == 1 && process == "collector-1" {
				// Long enough that a collection which did not wait would delete what is being answered from an earlier epoch.
				s["marker_reads"], s["epochs_interval"] = "epochs", "1500ms"
			}
		}
	}})
	p.addr, q.addr = c.Addr.Store, c.Addr.Store
	ctx := within(t, 7*time.Minute+time.Duration(rounds)*3*time.Second)
	must(t, c.StartStore(ctx))
	for i := range c.Collectors {
		must(t, c.StartCollector(ctx, i))
	}
	store, err := c.OpenStore(ctx)
	must(t, err)
	if sparing > 0 {
		// Earlier releases have been kept out for long enough, so that the reconciler begins the log at once.
		_, err := gc.MoveState(ctx, store, cluster.Authority, func(s *gc.State) error {
			s.EpochsAt = time.Now().Add(-2 * time.Hour).Unix()
			return nil
		})
		must(t, err)
	}
	must(t, c.StartReconciler(ctx))

	// The proxies lose answers and delay deletes. They never say "exists" of what is not there, which no collection could survive.
	breaks := func(p *proxy) func(*http.Request) string {
		return func(r *http.Request) string {
			// A collector that starts probes the store, and waits for half a minute if it was not answered.
			if p.rnd.IntN(20) > 0 || strings.Contains(r.URL.Path+r.URL.Query().Get("prefix"), layout.ProbePrefix) {
				return ""
			}
			if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/raw-blobs/") {
				return "late"
			}
			return []string{"409", "500", "503", "lost", "500 after", "reset", "slow"}[p.rnd.IntN(7)]
		}
	}
	p.obey(breaks(p))
	h := &hiding{}
	faults := breaks(q)
	q.obey(func(r *http.Request) string {
		// Answers of a key are hidden, and the first listing of a step is the one without a limit.
		list := r.URL.Query().Get("prefix")
		if h.reconciler.hides(strings.Contains(list, layout.OrphanReportsPrefix) && r.URL.Query().Get("max-keys") != "1", r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/"+layout.AcceptedPrefix) ||
			r.Method == http.MethodHead && strings.Contains(r.URL.Path, "/"+layout.AcceptedPrefix)) {
			return "hidden"
		}
		return faults(r)
	})
	b := &begunLog{t: t, c: c, store: store, sparing: sparing}
	b.wait(ctx)
	second := startSecond(ctx, t, store, seed, &h.second)
	g := &gardeners{store: store, answered: map[identity.Digest]bool{}, frames: map[identity.Digest]identity.Batch{}}
	var wg sync.WaitGroup
	end := make(chan struct{})
	for w := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			g.work(ctx, t, c, w, mrand.New(mrand.NewPCG(seed, uint64(w))), end)
		}()
	}
	for round := range rounds {
		disturb(ctx, t, c, rnd, round, b)
		release(ctx, t, store, h)
		if round%hideEach == hideEach/2 && !t.Failed() {
			h.hide(ctx, t, store)
		}
	}
	close(end)
	wg.Wait()
	counts := p.heal()
	for k, n := range q.heal() {
		counts[k] += n
	}
	p.obey(nil)
	q.obey(nil)
	second()
	if t.Failed() {
		return
	}
	// A sweep that began after everything was quiet has nothing left to do.
	quiet, err := store.List(ctx, objstore.ListOptions{Prefix: layout.OrphanReportsPrefix, Limit: 1})
	must(t, err)
	var st gc.State
	must(t, cluster.Poll(ctx, "a sweep without candidates", func() (bool, error) {
		release(ctx, t, store, h)
		st, _, err = gc.ReadState(ctx, store, cluster.Authority)
		return err == nil && st.Last.BeganAt > quiet.Date.Unix()+lateBy && st.Last.Candidates == 0, fmt.Errorf("%+v, %v", st, err)
	}))
	t.Logf("accepted/ was hidden %d times", h.times)
	b.check(ctx)
	g.check(ctx, t, &st, counts)
}

// lateBy is how late deletes are, in seconds, and somewhat more.
const lateBy = 4

// startSecond is another process that collects: this one, over a store that stands still now and then, and takes the lease from the
// reconciler that was paused.
func startSecond(ctx context.Context, t *testing.T, s objstore.Store, seed uint64, blind *blinded) (stop func()) {
	r, err := gc.NewRunner(gc.RunnerConfig{
		Store: &sleepy{Store: s, rnd: mrand.New(mrand.NewPCG(seed, 99)), blind: blind}, AuthorityID: cluster.Authority, By: "second", Claim: rand.Text(), Clock: run.WallClock{},
		Limits: gc.Limits{Lease: time.Second, Interval: time.Second, Step: 3},
		Wait: func(ctx context.Context, _, looks int) error {
			if looks == 20 {
				return gc.ErrAwaited
			}
			return run.Sleep(ctx, 50*time.Millisecond)
		},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan int)
	go func() {
		fenced := 0
		for ctx.Err() == nil {
			p, err := r.Step(ctx)
			if errors.Is(err, gc.ErrFenced) {
				fenced++
			} else if err != nil && ctx.Err() == nil {
				t.Logf("the second collection: %v", err)
			}
			if err != nil || !p.Worked {
				_ = run.Sleep(ctx, 50*time.Millisecond)
			}
		}
		done <- fenced
	}()
	return func() {
		cancel()
		t.Logf("the second collection was fenced %d times", <-done)
		must(t, r.Release(context.WithoutCancel(ctx)))
	}
}

// sleepy is a store whose caller is stopped before one write in ten, for up to two leases.
type sleepy struct {
	objstore.Store
	rnd   *mrand.Rand // of one caller
	blind *blinded
}

func (s *sleepy) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	s.blind.hides(o.Prefix == layout.OrphanReportsPrefix && o.Limit == 0, false)
	return s.Store.List(ctx, o)
}

func (s *sleepy) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if s.blind.hides(false, strings.HasPrefix(key, layout.AcceptedPrefix)) {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrNotFound}
	}
	return s.Store.Get(ctx, key, o)
}

func (s *sleepy) Head(ctx context.Context, key string) (objstore.Info, error) {
	if s.blind.hides(false, strings.HasPrefix(key, layout.AcceptedPrefix)) {
		return objstore.Info{}, &objstore.Error{Op: "head", Key: key, Err: objstore.ErrNotFound}
	}
	return s.Store.Head(ctx, key)
}

// hideEach is how many rounds pass between two times that accepted/ is hidden.
const hideEach = 30

// hiding hides accepted/ from both collections.
type hiding struct {
	reconciler, second blinded
	times              int
	ended              time.Time // of the last time
}

// blinded hides accepted/ from one process, from the beginning of a step of its Runner on: what is hidden between the question for
// a manifest that must be there and the proofs of the same blobs is found before the next ones.
type blinded struct {
	mu         sync.Mutex
	wanted, on bool
}

func (b *blinded) hides(begins, manifest bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if begins || !b.wanted {
		b.on = b.wanted
	}
	return b.on && manifest
}

func (b *blinded) want(hidden bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wanted = hidden
}

func (b *blinded) hidden() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.on
}

// hide hides what was accepted until the breaker has tripped, sees that nothing is condemned then, and releases it when all can
// be seen again.
func (h *hiding) hide(ctx context.Context, t *testing.T, s objstore.Store) {
	t.Helper()
	h.times++
	h.reconciler.want(true)
	h.second.want(true)
	must(t, cluster.Poll(ctx, "the breaker trips where accepted/ is hidden", func() (bool, error) {
		st, _, err := gc.ReadState(ctx, s, cluster.Authority)
		if err == nil && st.Holds() && st.Breaker.Cause == gc.TooMany { // of before
			_, err = gc.ReleaseBreaker(ctx, s, cluster.Authority, "test")
		}
		return err == nil && st.Holds() && st.Breaker.Cause == gc.Hidden && h.reconciler.hidden() && h.second.hidden(), fmt.Errorf("%+v, %v", st.Breaker, err)
	}))
	markers := func() (n int) {
		for i, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.CondemnedPrefix}) {
			must(t, err)
			// The epoch that names what was condemned before may come later.
			if _, _, err := layout.ParseCondemned(i.Key); err == nil {
				n++
			}
		}
		return n
	}
	// A process that was stopped behind its fence may finish its step; the pauses are shorter than this wait.
	time.Sleep(3 * time.Second) // longer than a pause
	before := markers()
	time.Sleep(500 * time.Millisecond) // some polls
	if after := markers(); after != before {
		t.Errorf("%d markers were written while the breaker held", after-before)
	}
	h.ended = time.Now()
	h.reconciler.want(false)
	h.second.want(false)
	if _, err := gc.ReleaseBreaker(ctx, s, cluster.Authority, "test"); err != nil {
		t.Error(err)
	}
}

func (s *sleepy) nap() {
	if s.rnd.IntN(10) == 0 {
		time.Sleep(time.Duration(s.rnd.IntN(2000)) * time.Millisecond) // a process that stands still
	}
}

func (s *sleepy) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	s.nap()
	return s.Store.Create(ctx, key, b, o)
}

func (s *sleepy) Delete(ctx context.Context, key string) error {
	s.nap()
	return s.Store.Delete(ctx, key)
}

// disturb is one round: a process stands still, or is killed.
func disturb(ctx context.Context, t *testing.T, c *cluster.Cluster, rnd *mrand.Rand, round int, b *begunLog) {
	victims := append(append(c.Collectors[:0:0], c.Collectors...), c.Reconciler)
	v := victims[rnd.IntN(len(victims))]
	if round%10 == 9 {
		cluster.Kill(&c.Reconciler)
		must(t, c.StartReconciler(ctx))
		return
	}
	if round%10 == 4 {
		i := round / 10 % len(c.Collectors)
		b.spared += b.sparedBy(ctx, i)
		cluster.Kill(&c.Collectors[i])
		must(t, c.StartCollector(ctx, i))
		return
	}
	must(t, v.Pause())
	time.Sleep(time.Duration(50+rnd.IntN(250)) * time.Millisecond) // the length of the pause
	if rnd.IntN(5) == 0 {
		time.Sleep(1500 * time.Millisecond) // longer than the lease
	}
	must(t, v.Resume())
}

// begunLog is the log of epochs, and what it spares.
type begunLog struct {
	t       *testing.T
	c       *cluster.Cluster
	store   objstore.Store
	sparing int // collectors
	spared  float64
}

func (b *begunLog) sparedBy(ctx context.Context, collector int) float64 {
	return metricOf(ctx, b.t, b.c.Addr.Collectors[collector].HTTP, "lightmetrics_ingest_markers_spared_total")
}

func (b *begunLog) read(ctx context.Context) (*epochs.Set, error) {
	l := epochs.NewLog(b.store, cluster.Authority)
	err := l.Read(ctx)
	s, _ := l.Held()
	return s, err
}

// wait waits until the reconciler has begun it.
func (b *begunLog) wait(ctx context.Context) {
	if b.sparing == 0 {
		return
	}
	must(b.t, cluster.Poll(ctx, "the log of epochs", func() (bool, error) {
		s, err := b.read(ctx)
		return s != nil, err
	}))
}

// check: markers were spared where they may be, and what was deleted is named. That orphans went after a collector was killed shows
// that its run was fenced, for until then nothing is deleted.
func (b *begunLog) check(ctx context.Context) {
	b.t.Helper()
	s, err := b.read(ctx)
	must(b.t, err)
	for i := range b.c.Collectors {
		b.spared += b.sparedBy(ctx, i)
	}
	b.t.Logf("%d collectors of %d spared %.0f reads of markers", b.sparing, len(b.c.Collectors), b.spared)
	if b.sparing == 0 {
		if s != nil || b.spared > 0 {
			b.t.Errorf("a log of epochs that nobody asked for: %v, %.0f markers spared", s != nil, b.spared)
		}
		return
	}
	if b.spared == 0 {
		b.t.Error("no marker was spared")
	}
	named := 0
	for i, err := range objstore.List(ctx, b.store, objstore.ListOptions{Prefix: layout.CondemnedPrefix}) {
		must(b.t, err)
		d, gen, err := layout.ParseCondemned(i.Key)
		if err != nil {
			continue
		}
		if s.Has(d) {
			named++
			continue
		}
		// Whoever wrote it may have died before it named it, and others have found a reference since: then the blob is there.
		if _, err := b.store.Head(ctx, layout.Blob(d, gen)); err != nil {
			b.t.Errorf("epoch %d does not name %s, and its blob is gone: %v", s.Epoch(), i.Key, err)
		}
	}
	b.t.Logf("epoch %d names %d markers; the reconciler has fenced %.0f runs since it was killed last", s.Epoch(), named,
		metricOf(ctx, b.t, b.c.Addr.ReconcilerHTTP, "lightmetrics_reconciler_journal_fenced_total"))
}

// release does what an operator does who has checked that it is only a small bucket with many orphans.
func release(ctx context.Context, t *testing.T, s objstore.Store, h *hiding) {
	t.Helper()
	st, _, err := gc.ReadState(ctx, s, cluster.Authority)
	must(t, err)
	if !st.Holds() {
		return
	}
	// A process may have asked for a manifest while it was hidden, and say so only now.
	if st.Breaker.Cause != gc.TooMany && time.Since(h.ended) > time.Minute {
		t.Fatalf("the breaker: %+v", st.Breaker)
	}
	if _, err := gc.ReleaseBreaker(ctx, s, cluster.Authority, "test"); err != nil && !errors.Is(err, gc.ErrNotTripped) {
		t.Fatal(err)
	}
}

// gardeners are the senders, and what they know.
type gardeners struct {
	store objstore.Store

	mu       sync.Mutex
	answered map[identity.Digest]bool           // accepted, or quarantined: must be readable
	frames   map[identity.Digest]identity.Batch // all that were ever written or sent
	counts   map[string]int
}

func (g *gardeners) note(what string, f []byte, id identity.Batch, answered bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.counts == nil {
		g.counts = map[string]int{}
	}
	g.counts[what]++
	d := identity.Sum(f)
	g.frames[d] = id
	g.answered[d] = g.answered[d] || answered
}

func smallFrame(t *testing.T, b identity.Boot, seq uint64, value float64) []byte {
	fb := frame.NewBuilder()
	s, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "garbage"}}, series.Gauge, "", 0)
	if err == nil {
		err = fb.Append(s, time.Now().UnixNano(), value)
	}
	if err != nil {
		t.Error(err)
		return nil
	}
	batch, err := fb.Build(b, seq)
	if err != nil {
		t.Error(err)
		return nil
	}
	f, err := frame.Encode(nil, batch)
	if err != nil {
		t.Error(err)
	}
	return f
}

// work sends, sends again, leaves blobs behind and comes back to them.
func (g *gardeners) work(ctx context.Context, t *testing.T, c *cluster.Cluster, w int, rnd *mrand.Rand, end <-chan struct{}) {
	boot := identity.Boot{Agent: fmt.Sprintf("gardener-%d", w), Boot: "boot"}
	var addrs []string
	for i := range c.Addr.Collectors {
		addrs = append(addrs, c.Addr.Collectors[(i+w)%len(c.Addr.Collectors)].GRPC)
	}
	s := load.NewSender(boot, addrs...)
	defer s.Close()
	type sent struct {
		frame []byte
		id    identity.Batch
	}
	var old, late []sent
	seq := uint64(0)
	fresh := func() sent {
		seq += 2
		return sent{smallFrame(t, boot, seq, float64(seq)), identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: seq, SeqEnd: seq}}
	}
	send := func(what string, x sent, want ...ingestv1.BatchStatus) bool {
		g.note(what, x.frame, x.id, false)
		r, err := s.Send(ctx, x.frame)
		if err != nil {
			t.Errorf("%s of %s: %v", what, x.id, err)
			return false
		}
		for _, w := range want {
			if r.GetStatus() == w {
				g.note("answered", x.frame, x.id, true)
				return true
			}
		}
		t.Errorf("%s of %s: %v", what, x.id, r)
		return false
	}
	const (
		accepted  = ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED
		duplicate = ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE
		conflict  = ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT
	)
	for !t.Failed() {
		select {
		case <-end:
			return
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(rnd.IntN(10)) * time.Millisecond):
		}
		switch k := rnd.IntN(12); {
		case k < 6:
			x := fresh()
			if send("new", x, accepted, duplicate) {
				old = append(old, x)
			}
		case k == 6: // what a collector leaves behind that was killed after the blob
			x := fresh()
			g.note("orphan", x.frame, x.id, false)
			if _, err := g.store.Create(ctx, layout.Blob(identity.Sum(x.frame), 0), x.frame, objstore.PutOptions{}); err != nil && ctx.Err() == nil {
				t.Errorf("orphan: %v", err)
			}
			late = append(late, x)
		case k == 7: // a sender that gives up at once
			x := fresh()
			g.note("given up", x.frame, x.id, false)
			short, cancel := context.WithTimeout(ctx, time.Duration(rnd.IntN(8000))*time.Microsecond)
			one := load.NewSender(boot, addrs...)
			_, _ = one.Try(short, x.frame)
			one.Close()
			cancel()
			late = append(late, x)
		case k < 10 && len(late) > 0: // an agent that was offline
			i := rnd.IntN(len(late))
			x := late[i]
			late = append(late[:i], late[i+1:]...)
			if send("late", x, accepted, duplicate) {
				old = append(old, x)
			}
		case k == 10 && len(old) > 0:
			send("again", old[rnd.IntN(len(old))], duplicate)
		case k == 11 && len(old) > 0:
			x := old[rnd.IntN(len(old))]
			x.frame = smallFrame(t, boot, x.id.SeqStart, rnd.Float64())
			send("conflict", x, conflict)
		}
	}
}

// check: what was answered is readable, what was not is gone.
func (g *gardeners) check(ctx context.Context, t *testing.T, st *gc.State, faults map[string]int) {
	t.Helper()
	orphans, rewritten := 0, 0
	there := map[identity.Digest]int{}
	for o, err := range objstore.List(ctx, g.store, objstore.ListOptions{Prefix: layout.RawBlobsPrefix}) {
		must(t, err)
		d, gen, err := layout.ParseBlob(o.Key)
		must(t, err)
		b, _, err := g.store.Get(ctx, o.Key, objstore.GetOptions{})
		must(t, err)
		if identity.Sum(b) != d {
			t.Errorf("%s is damaged", o.Key)
		}
		there[d]++
		if gen > 0 {
			rewritten++
		}
		if !g.answered[d] {
			// A batch that nobody was answered for may be accepted all the same.
			m, _, err := g.store.Get(ctx, layout.Accepted(g.frames[d]), objstore.GetOptions{})
			if err != nil || !strings.Contains(string(m), d.String()) {
				t.Errorf("%s is an orphan, and still there", o.Key)
			}
		}
	}
	for d, answered := range g.answered {
		switch {
		case answered && there[d] == 0:
			t.Errorf("the frame %s of %s was answered, and is gone", d, g.frames[d])
		case !answered && there[d] == 0:
			orphans++
		}
	}
	report, err := fsck.Run(ctx, g.store, fsck.Options{AuthorityID: cluster.Authority})
	must(t, err)
	for _, f := range report.Findings {
		t.Error(f)
	}
	t.Logf("%v; faults %v; %d orphans collected, %d frames are in a later generation, %d markers, %d plans", g.counts, faults, orphans, rewritten, st.Markers, st.Plan)
	if st.Deleted == 0 || orphans == 0 {
		t.Error("nothing was collected")
	}
}
