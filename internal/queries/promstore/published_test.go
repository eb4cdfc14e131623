package promstore_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"

	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/inorder"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// rolled is a storage whose committed batches are in blocks, all or some of
// them; the others are only in memory. Every batch is in memory too, unless it expired.
type rolled struct {
	*framed
	publish publishedtest.Publisher
	reader  *published.Reader
	share   float64 // of the batches that are published
	expire  bool    // published batches are not in memory
	// floats: what is loaded with histograms is not published. It is not known what stood
	// before the first histogram of an hour, and upstream's scripts compare that hint.
	floats      bool
	views       published.Views
	done        []publishedtest.Batch
	resolutions []timegrid.Resolution
	gen         map[timegrid.Hour]uint64
	opened      int
}

const testShards = 4

func newRolled(t testing.TB, seed uint64, share float64, expire bool) *rolled {
	store := mem.New(func() time.Time { return testNow })
	reader, err := published.New(published.Config{Store: store, Gap: 100})
	if err != nil {
		t.Fatal(err)
	}
	return &rolled{
		framed: newFramed(t, seed), publish: publishedtest.Publisher{Store: store, Authority: "test", Shards: testShards, PerChunk: 7},
		reader: reader, share: share, resolutions: []timegrid.Resolution{timegrid.Raw}, expire: expire, gen: map[timegrid.Hour]uint64{},
	}
}

func (r *rolled) AppenderV2(context.Context) storage.AppenderV2 {
	return &appender{f: r.framed, commit: r.commit}
}

func (r *rolled) commit(batches []publishedtest.Batch) error {
	keep := r.floats && slices.ContainsFunc(batches, hasHistograms)
	var fresh []publishedtest.Batch
	for _, b := range batches {
		in := r.rnd.Float64() < r.share && !keep
		if in {
			fresh = append(fresh, b)
		}
		if !in || !r.expire {
			if err := r.insert(b); err != nil {
				return err
			}
		}
	}
	r.done, r.views = append(r.done, fresh...), nil
	for _, h := range publishedtest.Hours(fresh) {
		r.gen[h]++
		if _, err := r.publish.Publish(r.t.Context(), h, r.gen[h], r.done, r.resolutions...); err != nil {
			return err
		}
	}
	return nil
}

func hasHistograms(b publishedtest.Batch) bool {
	return slices.ContainsFunc(b.Frame.Groups, func(g frame.Group) bool { return len(g.Histograms) > 0 })
}

func (r *rolled) Querier(mint, maxt int64) (storage.Querier, error) {
	snap := r.store.Snapshot(testNow)
	q, pub, err := r.open(snap)
	if err != nil {
		return nil, err
	}
	s, err := q.Querier(mint, maxt)
	return checking{closing{s, snap}, r.t, pub}, err
}

var processors = inorder.New(3)

func (r *rolled) open(snap *live.Snapshot) (*promstore.Queryable, *published.Query, error) {
	if r.views == nil {
		v, err := publishedtest.NewViews(r.publish.Store, "test")
		if err != nil {
			return nil, nil, err
		}
		view, err := v.View(r.t.Context(), -2, 500_000)
		if err != nil {
			return nil, nil, err
		}
		r.views = fixed{view}
	}
	q := r.reader.Query(r.views, testShards, published.Span{Oldest: -2, Newest: 500_000}, published.Limits{})
	out := promstore.New(snap, promstore.Limits{}).WithPublished(q).WithResolutions(true)
	// Every other query is read by one processor.
	if r.opened++; r.opened%2 == 0 {
		out.WithParallel(processors, 0)
	}
	return out, q, nil
}

// fixed is one view.
type fixed struct{ view *catalog.View }

func (f fixed) View(context.Context, timegrid.Hour, timegrid.Hour) (*catalog.View, error) {
	return f.view, nil
}

// checking wants everything to be readable.
type checking struct {
	closing
	t testing.TB
	q *published.Query
}

func (c checking) Close() error {
	if ps, _ := c.q.Problems(); len(ps) > 0 {
		c.t.Errorf("problem: %+v", ps[0])
	}
	return c.closing.Close()
}

// TestPublishedConformance runs upstream's PromQL scripts over chunks and memory, each
// with a part of the batches.
func TestPublishedConformance(t *testing.T) {
	const seed = 20261122
	t.Logf("seed %d", seed)
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	promqltest.RunBuiltinTestsWithStorage(t, engine, func(t testing.TB) storage.Storage {
		r := newRolled(t, seed, 0.6, true)
		r.floats = true
		return r
	})
}

// TestPublishedDifferential: the same answers from Prometheus' TSDB and from chunks and
// memory in any mixture, whether memory still has what is published or not.
func TestPublishedDifferential(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 8))
		share, expire := []float64{1, 0.6, 0.2}[seed%3], seed%2 == 0
		t.Logf("seed %d: %g published, expired %v", seed, share, expire)
		ref, ours := teststorage.New(t), newRolled(t, seed, share, expire)
		defer ref.Close()
		// Samples from 45 minutes before the stroke of an hour to 45 after it.
		appendRandom(t, rnd, 3600_000-450_000, ref, ours)
		for _, expr := range expressions {
			want, got := evaluateFrom(t, engine, ref, expr, 3150), evaluateFrom(t, engine, ours, expr, 3150)
			if want != got {
				t.Errorf("seed %d: %s\n got %.600s\nwant %.600s", seed, expr, got, want)
			}
		}
	}
}
