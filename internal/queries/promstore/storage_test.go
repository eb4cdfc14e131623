package promstore_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// framed is a storage.Storage whose appender writes batch frames: what upstream's
// tests append goes through encode, decode and internal/queries/live, in batches of random size
// that arrive in random order.
type framed struct {
	t     testing.TB
	store *live.Store
	rnd   *rand.Rand
	seq   uint64
}

var (
	boot    = identity.Boot{Agent: "agent", Boot: "boot"}
	testNow = time.Unix(0, 0)
)

func newStore(t testing.TB) *live.Store { return newStoreWith(t, live.Config{}) }

func newStoreWith(t testing.TB, c live.Config) *live.Store {
	c.History, c.MaxSeries = 200*365*24*time.Hour, 1<<20
	if c.MaxBytes == 0 {
		c.MaxBytes = 1 << 30
	}
	s, err := live.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newFramed(t testing.TB, seed uint64) *framed {
	return &framed{t: t, store: newStore(t), rnd: rand.New(rand.NewPCG(seed, 0)), seq: 1}
}

func (f *framed) Querier(mint, maxt int64) (storage.Querier, error) {
	snap := f.store.Snapshot(testNow)
	q, err := promstore.New(snap, promstore.Limits{}).Querier(mint, maxt)
	return closing{q, snap}, err
}

type closing struct {
	storage.Querier
	snap *live.Snapshot
}

func (c closing) Close() error { c.snap.Close(); return nil }

func (*framed) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) {
	return nil, errors.ErrUnsupported
}
func (*framed) Appender(context.Context) storage.Appender { panic("only AppenderV2 is used") }
func (f *framed) AppenderV2(context.Context) storage.AppenderV2 {
	return &appender{f: f, commit: f.commit}
}
func (*framed) StartTime() (int64, error) { return math.MinInt64, nil }
func (*framed) Close() error              { return nil }

type sample struct {
	labels labels.Labels
	st, t  int64
	v      float64
	h      *histogram.FloatHistogram
}

type appender struct {
	f       *framed
	commit  func([]publishedtest.Batch) error
	samples []sample
}

func (a *appender) Append(_ storage.SeriesRef, ls labels.Labels, st, t int64, v float64, h *histogram.Histogram, fh *histogram.FloatHistogram, _ storage.AppendV2Options) (storage.SeriesRef, error) {
	if h != nil {
		fh = h.ToFloat(nil)
	}
	if fh != nil {
		fh = fh.Copy()
	}
	a.samples = append(a.samples, sample{ls, st, t, v, fh})
	return 1, nil
}

func (a *appender) Rollback() error { a.samples = nil; return nil }

func (a *appender) Commit() error {
	slices.SortStableFunc(a.samples, func(x, y sample) int { return int(x.t - y.t) })
	var batches []*frame.Batch
	for rest := a.samples; len(rest) > 0; {
		n := min(len(rest), 1+a.f.rnd.IntN(200))
		b, err := pack(boot, a.f.seq, rest[:n])
		if err != nil {
			return err
		}
		a.f.seq = b.Identity.SeqEnd + 1
		batches, rest = append(batches, b), rest[n:]
	}
	a.f.rnd.Shuffle(len(batches), func(i, j int) { batches[i], batches[j] = batches[j], batches[i] })
	accepted := make([]publishedtest.Batch, len(batches))
	for i, b := range batches {
		accepted[i] = publishedtest.Batch{Frame: b, AcceptedAt: int64(b.Identity.SeqStart)}
	}
	return a.commit(accepted)
}

func (f *framed) commit(batches []publishedtest.Batch) error {
	for _, b := range batches {
		if err := f.insert(b); err != nil {
			return err
		}
	}
	return nil
}

func (f *framed) insert(b publishedtest.Batch) error {
	_, err := f.store.Insert(accepted.Batch{Identity: b.Frame.Identity, AcceptedAt: b.AcceptedAt}, b.Frame, testNow)
	return err
}

// pack sends samples through a frame.
func pack(boot identity.Boot, seq uint64, all []sample) (*frame.Batch, error) {
	b := frame.NewBuilder()
	for _, s := range all {
		var ls []series.Label
		s.labels.Range(func(l labels.Label) { ls = append(ls, series.Label{Name: l.Name, Value: l.Value}) })
		typ := series.Unknown
		if strings.HasSuffix(s.labels.Get("__name__"), "_total") {
			typ = series.Counter
		}
		if s.h != nil {
			typ = series.HistogramCumulative
			if s.h.CounterResetHint == histogram.GaugeType {
				typ = series.HistogramGauge
			}
		}
		st := int64(0)
		if s.st != 0 {
			st = s.st * 1e6
		}
		id, err := b.AddSeries(ls, typ, "", st)
		if err != nil {
			return nil, err
		}
		if s.h != nil {
			err = b.AppendHistogram(id, s.t*1e6, samples.Histogram(s.h))
		} else {
			err = b.Append(id, s.t*1e6, s.v)
		}
		if err != nil {
			return nil, err
		}
	}
	built, err := b.Build(boot, seq)
	if err != nil {
		return nil, err
	}
	raw, err := frame.Encode(nil, built)
	if err != nil {
		return nil, err
	}
	out := &frame.Batch{}
	return out, frame.Decode(raw, out, frame.Limits{})
}
