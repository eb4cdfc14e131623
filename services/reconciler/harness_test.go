package reconciler

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test; no test measures time.
var patience = mutants.Patience(20 * time.Second)

const testAuthority = "authority-1"

var bg = context.Background()

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func manifest(id identity.Batch) (accept.Manifest, []byte) {
	frame := []byte("frame of " + id.String())
	d := identity.Sum(frame)
	return accept.Manifest{
		AuthorityID: testAuthority, Identity: id, FrameSHA256: d, FrameBytes: uint64(len(frame)),
		RawBlobKey: layout.Blob(d, 0), AcceptedAt: time.Now().UnixNano(), CollectorID: "c1",
		WireVersion: 1, FrameVersion: 1, AttemptID: fmt.Sprintf("%032x", id.SeqStart),
		RecordCount: id.Count(), MinTime: 1, MaxTime: 2,
	}, frame
}

func create(t testing.TB, s objstore.Store, key string, body []byte) {
	t.Helper()
	_, err := s.Create(bg, key, body, objstore.PutOptions{})
	must(t, err)
}

// acceptBatch does what a collector does: boot record, blob, manifest, and a segment of the journal.
func acceptBatch(t testing.TB, s objstore.Store, id identity.Batch) accept.Manifest {
	t.Helper()
	m := plantBatch(t, s, id)
	must(t, journaltest.Append(bg, s, testAuthority, m.Entry(journal.Accepted)))
	return m
}

// plantBatch is acceptBatch by a collector that died before it wrote a segment, or by one before the journal.
func plantBatch(t testing.TB, s objstore.Store, id identity.Batch) accept.Manifest {
	t.Helper()
	m, frame := manifest(id)
	_, err := s.Put(bg, layout.Boot(id.BootOf()), []byte("{}"), objstore.PutOptions{})
	must(t, err)
	create(t, s, m.RawBlobKey, frame)
	create(t, s, layout.Accepted(id), m.Marshal())
	return m
}

func batch(agent string, start, end uint64) identity.Batch {
	return identity.Batch{Agent: agent, Boot: "boot", SeqStart: start, SeqEnd: end}
}

func newStore() *mem.Store { return mem.New(time.Now) }

// quiet follows the journal, with derived keys as objects; everything else comes once, at the start, or not at all.
func quiet() Config {
	c := DefaultConfig()
	c.HTTP.Listen, c.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.AuthorityID = testAuthority
	c.Derived = DerivedObjects
	c.Journal.Polling.Interval, c.Journal.IdleInterval = 10*time.Millisecond, 10*time.Millisecond
	c.Journal.Folding.Interval = time.Hour
	c.Repairs.Interval = time.Hour
	c.Audit.Interval, c.Audit.Period, c.Audit.Rate = 0, 0, 1e6
	c.Scrub.Period = 0
	c.Ledgers.SaveInterval = 20 * time.Millisecond
	c.Queue.RetryBase, c.Queue.RetryMax = time.Millisecond, 20*time.Millisecond
	c.DrainTimeout = 3 * time.Second
	c.Workers = 4
	return c
}

// busy does everything all the time.
func busy() Config {
	c := quiet()
	c.Repairs.Interval = 10 * time.Millisecond
	c.Journal.Folding.Interval, c.Journal.Retention = 10*time.Millisecond, 0
	c.Scrub.Period, c.Scrub.Rate = 10*time.Millisecond, 1e6
	return c
}

type running struct {
	*Service
	tel  *telemetry.Telemetry
	t    testing.TB
	stop func() error
}

// start runs a reconciler until the test or stop ends it.
func start(t testing.TB, cfg Config, s objstore.Store) *running {
	t.Helper()
	return startWith(t, cfg, Deps{Store: s})
}

func startWith(t testing.TB, cfg Config, d Deps) *running {
	t.Helper()
	tel := telemetry.Discard()
	log := &syncBuffer{}
	tel.Log = slog.New(slog.NewTextHandler(log, nil))
	d.Telemetry = tel
	svc, err := New(cfg, d)
	must(t, err)
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	var once sync.Once
	stop := func() (err error) {
		once.Do(func() {
			cancel()
			err = <-done
			if t.Failed() {
				t.Logf("log:\n%s", log.String())
			}
		})
		return err
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	select {
	case <-svc.Ready():
	case err := <-done:
		t.Fatalf("run: %v", err)
	}
	return &running{Service: svc, tel: tel, t: t, stop: stop}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// client of the service's gRPC face.
func (r *running) client() reconcilerv1.ReconcilerServiceClient {
	r.t.Helper()
	conn, err := rpc.Dial(r.GRPCAddr(), rpc.ClientConfig{})
	must(r.t, err)
	r.t.Cleanup(func() { conn.Close() })
	return reconcilerv1.NewReconcilerServiceClient(conn)
}

func (r *running) url(path string) string { return "http://" + r.HTTPAddr() + path }

// httpClient keeps no connections, so that none outlives its test.
var httpClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// derived is everything that follows from the manifests: keys and bodies.
func derived(t testing.TB, s objstore.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, p := range []string{layout.AcceptedByBlobPrefix, layout.AcceptedByTimePrefix, layout.RawBlobsByTimePrefix,
		layout.QuarantineByBlobPrefix, layout.RepairPrefix} {
		must(t, storetest.Each(bg, s, p, func(o objstore.Info) error {
			b, _, err := s.Get(bg, o.Key, objstore.GetOptions{})
			out[o.Key] = string(b)
			return err
		}))
	}
	return out
}

func wanted(ms ...accept.Manifest) map[string]string {
	out := map[string]string{}
	for _, m := range ms {
		for _, d := range reconcile.DerivedOf(m, m.Marshal()) {
			out[d.Key] = string(d.Body)
		}
	}
	return out
}

// indexed reports whether everything that follows from ms is there.
func indexed(t testing.TB, s objstore.Store, ms ...accept.Manifest) bool {
	t.Helper()
	for key := range wanted(ms...) {
		if _, err := s.Head(bg, key); err != nil {
			return false
		}
	}
	return true
}

// ledgerOf lists one agent's ledger.
func (r *running) ledgerOf(c reconcilerv1.ReconcilerServiceClient, agent string) *reconcilerv1.Ledger {
	r.t.Helper()
	res, err := c.ListLedgers(bg, &reconcilerv1.ListLedgersRequest{AgentId: agent})
	if err != nil {
		if rpc.Reason(err) == rpc.ReasonNotReady {
			return &reconcilerv1.Ledger{}
		}
		r.t.Fatal(err)
	}
	if len(res.Ledgers) == 0 {
		return &reconcilerv1.Ledger{}
	}
	return res.Ledgers[0]
}

// flaky fails some calls, before or after they took effect, while on is set.
type flaky struct {
	objstore.Store
	on      atomic.Bool
	percent int
	before  bool // fail calls before they take effect
	mu      sync.Mutex
	rnd     *rand.Rand
	// lists counts listings that were failed.
	lists atomic.Int64
}

func newFlaky(t testing.TB, s objstore.Store, percent int) *flaky {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	f := &flaky{Store: s, percent: percent, rnd: rand.New(rand.NewPCG(seed, 1))}
	f.on.Store(true)
	return f
}

func (f *flaky) fails() (before, after bool) {
	if !f.on.Load() {
		return false, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.rnd.IntN(200)
	before, after = n < f.percent, n >= 200-f.percent
	if f.before {
		return before || after, false
	}
	return before, after
}

func (f *flaky) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if b, a := f.fails(); a || b {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrUnavailable}
	}
	return f.Store.Get(ctx, key, o)
}

func (f *flaky) Head(ctx context.Context, key string) (objstore.Info, error) {
	if b, a := f.fails(); a || b {
		return objstore.Info{}, &objstore.Error{Op: "head", Key: key, Err: objstore.ErrUnavailable}
	}
	return f.Store.Head(ctx, key)
}

func (f *flaky) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if b, a := f.fails(); a || b {
		f.lists.Add(1)
		return objstore.Page{}, &objstore.Error{Op: "list", Key: o.Prefix, Err: objstore.ErrUnavailable}
	}
	return f.Store.List(ctx, o)
}

func (f *flaky) write(op, key string, fn func() (objstore.Info, error)) (objstore.Info, error) {
	before, after := f.fails()
	if before {
		return objstore.Info{}, &objstore.Error{Op: op, Key: key, Err: objstore.ErrUnknown}
	}
	i, err := fn()
	if after {
		return objstore.Info{}, &objstore.Error{Op: op, Key: key, Err: objstore.ErrUnknown}
	}
	return i, err
}

func (f *flaky) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	return f.write("create", key, func() (objstore.Info, error) { return f.Store.Create(ctx, key, b, o) })
}

func (f *flaky) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return f.write("replace", key, func() (objstore.Info, error) { return f.Store.Replace(ctx, key, b, etag, o) })
}

func (f *flaky) Put(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	return f.write("put", key, func() (objstore.Info, error) { return f.Store.Put(ctx, key, b, o) })
}
