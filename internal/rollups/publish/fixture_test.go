package publish_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	objmem "lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	refmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const hour0 = timegrid.Hour(498_000)

// ticking is a clock that advances by itself when somebody sleeps.
type ticking struct{ now time.Time }

func newClock() *ticking { return &ticking{hour0.End().Add(time.Hour)} }

func (c *ticking) Now() time.Time { return c.now }

func (c *ticking) Sleep(ctx context.Context, d time.Duration) error {
	c.now = c.now.Add(d)
	return ctx.Err()
}

// counter gives distinct ids without randomness.
type counter struct{ n byte }

func (c *counter) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 0
	}
	c.n++
	b[0] = c.n
	return len(b), nil
}

var testPolicy = publish.Policy{
	Refs: retry.Policy{Attempts: 3, Base: time.Millisecond, Cap: time.Second}, Generations: 6,
	Delay: time.Minute, Grace: 2 * time.Minute, AbortAfter: 10 * time.Minute,
}

// tried is s behind further attempts at what failed, as a process has it.
func tried(s objstore.Store, c retry.Clock, p retry.Policy) objstore.Store {
	return objstore.Retry(s, retry.Retrier{Policy: p, Clock: c}, nil)
}

type world struct {
	t     testing.TB
	store *objmem.Store
	refs  *refmem.Refs
	clock *ticking
	ids   counter
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, store: objmem.New(nil), refs: refmem.New(), clock: newClock()}
	if _, err := w.collector().InitEpoch(t.Context(), &w.ids, false); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) config() publish.Config {
	s := tried(w.store, w.clock, testPolicy.Refs)
	return publish.Config{
		Store: s, Refs: w.refs, Queue: publish.NewObjectQueue(s, nil), Clock: w.clock, AuthorityID: "a", WorkerID: "w", Policy: testPolicy,
	}
}

func (w *world) publisher() *publish.Publisher {
	p, err := publish.NewPublisher(w.config())
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) collector() *publish.Collector {
	c, err := publish.NewCollector(w.config())
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// publication of generation gen, with one output per text.
func publication(gen, supersedes uint64, texts ...string) publish.Publication {
	in, err := catalog.NewInputs([]identity.Batch{{Agent: "h", Boot: "b", SeqStart: 0, SeqEnd: 10*gen - 1}})
	if err != nil {
		panic(err)
	}
	p := publish.Publication{
		Name: catalog.Name{Hour: hour0, Shard: 1, Resolution: timegrid.Raw, Generation: gen}, Shards: 4, Fence: 7,
		PlanSHA256: identity.Sum(planBody(gen)), Inputs: in, Counts: catalog.Counts{Records: 10 * gen, Published: 10 * gen}, Supersedes: supersedes,
	}
	for _, s := range texts {
		p.Outputs = append(p.Outputs, publish.Output{
			Metric: "up", Chunk: publish.Bytes([]byte("chunk " + s)), Index: publish.Bytes([]byte("index " + s)), FooterOffset: 1, Series: 1, Samples: 10, MinTime: 1, MaxTime: 2,
		})
	}
	return p
}

func planBody(gen uint64) []byte { return fmt.Appendf(nil, "plan %d", gen) }

func putPlan(t *testing.T, s *objmem.Store, gen uint64) {
	t.Helper()
	if _, err := s.Put(t.Context(), layout.RollupPlan(hour0, 1, gen), planBody(gen), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

// collect sweeps and steps until nothing is due for long.
func (w *world) collect() {
	w.t.Helper()
	c := w.collector()
	for range 4 {
		if _, err := c.Sweep(w.t.Context(), hour0); err != nil {
			w.t.Fatal(err)
		}
		w.clock.now = w.clock.now.Add(time.Hour)
		if _, err := c.Step(w.t.Context(), 1000); err != nil {
			w.t.Fatal(err)
		}
	}
}

func keys(t *testing.T, s objstore.Reader, prefix string) []string {
	t.Helper()
	var ks []string
	err := storetest.Each(t.Context(), s, prefix, func(i objstore.Info) error { ks = append(ks, i.Key); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return ks
}

func sum(b []byte) identity.Digest { return identity.Sum(b) }

func newRefs() *refmem.Refs { return refmem.New() }

// load gives content that is in memory.
func load(c publish.Content) []byte {
	b, err := c.Load()
	if err != nil {
		panic(err)
	}
	return b
}
