package ingest_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// testTimeout bounds every wait of a test; it says nothing of how long things take.
var testTimeout = mutants.Patience(30 * time.Second)

// keepPool makes a buffer that was given back be the next one that is taken: a pool is emptied by the garbage collector, and
// a processor does not look first at what another gave back.
func keepPool(t *testing.T) {
	percent, procs := debug.SetGCPercent(-1), runtime.GOMAXPROCS(1)
	t.Cleanup(func() { debug.SetGCPercent(percent); runtime.GOMAXPROCS(procs) })
}

var boot = identity.Boot{Agent: "web-1", Boot: "boot-1"}

// encode makes a frame of n records from seq on; value tells frames of one identity apart.
func encode(t testing.TB, b identity.Boot, seq uint64, n int, value float64) []byte {
	t.Helper()
	fb := frame.NewBuilder()
	series, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "requests_total"}, {Name: "job", Value: "test"}}, series.Counter, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := fb.Append(series, 1_700_000_000_000_000_000+int64(i)*1e9, value+float64(i)); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := fb.Build(b, seq)
	if err != nil {
		t.Fatal(err)
	}
	f, err := frame.Encode(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// bigFrame makes a frame of nearly size bytes that does not compress.
func bigFrame(t testing.TB, b identity.Boot, seq uint64, size int) []byte {
	t.Helper()
	return bigFrames(t, []identity.Boot{b}, seq, size)[0]
}

// bigFrames makes such a frame for each boot, of the same samples.
func bigFrames(t testing.TB, boots []identity.Boot, seq uint64, size int) [][]byte {
	t.Helper()
	fb := frame.NewBuilder()
	const perRecord, nSeries = 8, 64
	rows := (size - size/100) / perRecord / nSeries
	for i := range nSeries {
		id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "noise"}, {Name: "i", Value: fmt.Sprint(i)}}, series.Gauge, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for r := range rows {
			if err := fb.Append(id, int64(r+1)*1e9, math.Float64frombits(rand.Uint64())); err != nil {
				t.Fatal(err)
			}
		}
	}
	e := frame.NewEncoder(frame.Options{Uncompressed: true})
	frames := make([][]byte, len(boots))
	for i, b := range boots {
		batch, err := fb.Build(b, seq)
		if err != nil {
			t.Fatal(err)
		}
		if frames[i], err = e.Encode(nil, batch); err != nil {
			t.Fatal(err)
		}
	}
	return frames
}

// faulty is a store that can be down, deny, or hold its writes back.
type faulty struct {
	objstore.Store
	down   atomic.Bool
	denied atomic.Bool
	hold   atomic.Pointer[chan struct{}]
	held   atomic.Int64
	most   atomic.Int64 // of held, ever
	// journalHold holds the journal's segments back, and journalDown fails them.
	journalHold atomic.Pointer[chan struct{}]
	journalHeld atomic.Int64
	journalDown atomic.Bool
	creates     sync.Map // family -> *atomic.Int64: how many there were
	// unlisted fails listings alone; panics is how many creates still panic.
	unlisted atomic.Bool
	panics   atomic.Int64
	// keep is given the bodies of blobs, whose creates fail, as a client that still sends them.
	keep atomic.Pointer[func(body []byte)]
}

func (f *faulty) fail(write bool) error {
	switch {
	case f.denied.Load():
		return objstore.ErrDenied
	case f.down.Load() && write:
		return objstore.ErrUnknown
	case f.down.Load():
		return objstore.ErrUnavailable
	}
	return nil
}

func (f *faulty) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if err := f.fail(false); err != nil {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: err}
	}
	return f.Store.Get(ctx, key, o)
}

func (f *faulty) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := f.fail(false); err != nil {
		return objstore.Info{}, &objstore.Error{Op: "head", Key: key, Err: err}
	}
	return f.Store.Head(ctx, key)
}

func (f *faulty) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	err := f.fail(false)
	if f.unlisted.Load() {
		err = objstore.ErrUnavailable
	}
	if err != nil {
		return objstore.Page{}, &objstore.Error{Op: "list", Key: o.Prefix, Err: err}
	}
	return f.Store.List(ctx, o)
}

func (f *faulty) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if h := f.hold.Load(); h != nil && objstore.Family(key) == "accepted" {
		n := f.held.Add(1)
		for most := f.most.Load(); n > most && !f.most.CompareAndSwap(most, n); most = f.most.Load() {
		}
		var gone error
		select {
		case <-*h:
		case <-ctx.Done():
			gone = objstore.ErrUnknown
		}
		f.held.Add(-1)
		if gone != nil {
			return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: gone}
		}
	}
	n, _ := f.creates.LoadOrStore(objstore.Family(key), new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	if objstore.Family(key) == "journal" && key != layout.JournalBeginKey {
		if h := f.journalHold.Load(); h != nil {
			f.journalHeld.Add(1)
			select {
			case <-*h:
			case <-ctx.Done():
			}
			f.journalHeld.Add(-1)
		}
		if f.journalDown.Load() {
			return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrUnavailable}
		}
	}
	if objstore.Family(key) == "raw-blobs" {
		if f.panics.Add(-1) >= 0 {
			panic("a store that panics")
		}
		if keep := f.keep.Load(); keep != nil {
			(*keep)(body)
			return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrUnknown}
		}
	}
	if err := f.fail(true); err != nil {
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: err}
	}
	return f.Store.Create(ctx, key, body, o)
}

// block makes the creation of manifests wait until the returned function is called.
func (f *faulty) block() (release func()) {
	c := make(chan struct{})
	f.hold.Store(&c)
	return func() {
		f.hold.Store(nil)
		close(c)
	}
}

// blockJournal makes the creation of segments wait until the returned function is called.
func (f *faulty) blockJournal() (release func()) {
	c := make(chan struct{})
	f.journalHold.Store(&c)
	return func() {
		f.journalHold.Store(nil)
		close(c)
	}
}

// created is how many objects of a family were asked for.
func (f *faulty) created(family string) int64 {
	n, ok := f.creates.Load(family)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// collector is a running service with its clients.
type collector struct {
	*ingest.Service
	tel    *telemetry.Telemetry
	store  *faulty
	client ingestv1.IngestServiceClient
	conn   *grpc.ClientConn
	stop   func() // ends it and waits
}

// Place implements objstore.Placed.
func (f *faulty) Place() objstore.Place { return objstore.PlaceOf(f.Store) }

func newStore() *faulty { return &faulty{Store: mem.New(time.Now)} }

func testConfig() ingest.Config {
	c := ingest.DefaultConfig()
	c.GRPC.Listen, c.HTTP.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.ID = "collector-a"
	c.AcceptTimeout, c.DrainTimeout = testTimeout, testTimeout
	return c
}

// launch starts a collector and waits until it listens.
func launch(t testing.TB, store *faulty, client rpc.ClientConfig, change func(*ingest.Config)) *collector {
	t.Helper()
	return launchWith(t, store, client, telemetry.Discard(), change)
}

func launchWith(t testing.TB, store *faulty, client rpc.ClientConfig, tel *telemetry.Telemetry, change func(*ingest.Config)) *collector {
	t.Helper()
	return launchAt(t, store, client, tel, nil, change)
}

// launchAt is launchWith, with a clock; nil is time.Now.
func launchAt(t testing.TB, store *faulty, client rpc.ClientConfig, tel *telemetry.Telemetry, now func() time.Time, change func(*ingest.Config)) *collector {
	t.Helper()
	cfg := testConfig()
	if change != nil {
		change(&cfg)
	}
	c := &collector{tel: tel, store: store}
	var err error
	if c.Service, err = ingest.New(cfg, ingest.Deps{Store: store, Telemetry: c.tel, Now: now}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	select {
	case <-c.Ready():
	case err := <-done:
		t.Fatalf("collector ended: %v", err)
	}
	if c.conn, err = rpc.Dial(c.GRPCAddr(), client); err != nil {
		t.Fatal(err)
	}
	c.client = ingestv1.NewIngestServiceClient(c.conn)
	stopped := false
	c.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("collector ended with %v", err)
		}
	}
	t.Cleanup(func() {
		c.stop()
		_ = c.conn.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return c
}

// start is launch, and waits until the store is qualified.
func start(t testing.TB, store *faulty, change func(*ingest.Config)) *collector {
	t.Helper()
	c := launch(t, store, rpc.ClientConfig{}, change)
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	return c
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// contents is every object under the families that a submission may write.
func contents(t testing.TB, s objstore.Store) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := storetest.Each(t.Context(), s, "", func(i objstore.Info) error {
		if f := objstore.Family(i.Key); f != "probe" && f != "authority" && i.Key != layout.JournalBeginKey {
			all[i.Key] = i.ETag
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func bound(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// batches reads lightmetrics_ingest_batches_total.
func (c *collector) batches(t testing.TB, outcome, reason string) float64 {
	t.Helper()
	mfs, err := c.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, mf := range mfs {
		if mf.GetName() != "lightmetrics_ingest_batches_total" {
			continue
		}
		for _, m := range mf.GetMetric() {
			l := map[string]string{}
			for _, p := range m.GetLabel() {
				l[p.GetName()] = p.GetValue()
			}
			if l["outcome"] == outcome && l["reason"] == reason {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}
