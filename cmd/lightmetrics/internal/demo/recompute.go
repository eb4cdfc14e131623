package demo

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// expressions are asked of the service and of the raw samples.
var expressions = []string{
	`sum by (mode) (rate(node_cpu_seconds_total[10s]))`,
	`avg_over_time(node_load1[10s])`,
	`node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes`,
	`sum(count_over_time(node_cpu_seconds_total[1m]))`,
	`count({__name__=~"node_.+"})`,
	`topk(3, {__name__=~"node_.+_total"})`,
}

// recompute holds the service's answers against the same PromQL over the accepted frames,
// read one by one from the bucket: first with chunks and the tail in memory, then, after
// a worker came back, with everything rolled up.
func recompute(ctx context.Context, c *cluster.Cluster, s *screen) error {
	raw, err := readFrames(ctx, c)
	if err != nil {
		return err
	}
	rolled, err := rolledUp(ctx, c, raw)
	if err != nil {
		return err
	}
	// Both kinds of source must have a part of the samples, or the comparison below would prove nothing
	// about the seam between them.
	if rolled == 0 || rolled >= raw.records {
		return fmt.Errorf("%d of %d records are rolled up: nothing to show", rolled, raw.records)
	}
	if err := raw.compare(ctx, c); err != nil {
		return fmt.Errorf("with chunks and the live tail: %w", err)
	}
	s.title("PromQL over chunks and live tail, against the same over every accepted frame:")
	rows := [][]string{{"chunks + live tail", fmt.Sprint(rolled), fmt.Sprint(raw.records - rolled), fmt.Sprint(len(expressions)), "equal"}}

	if err := c.StartRollup(ctx, 0); err != nil {
		return err
	}
	err = cluster.Poll(ctx, "everything to be rolled up", func() (bool, error) {
		var err error
		rolled, err = rolledUp(ctx, c, raw)
		return err == nil && rolled == raw.records, err
	})
	if err != nil {
		return err
	}
	// The query service sees a block at its next poll.
	if err := cluster.Poll(ctx, "equal answers", func() (bool, error) { err := raw.compare(ctx, c); return err == nil, err }); err != nil {
		return err
	}
	rows = append(rows, []string{"a worker came back", fmt.Sprint(rolled), "0", fmt.Sprint(len(expressions)), "equal"})
	s.rows("ANSWERED FROM\tRECORDS IN CHUNKS\tIN THE LIVE TAIL\tEXPRESSIONS\tANSWERS", rows)
	s.step("verdict: chunks and tail answer what the raw samples answer, each record once")
	return nil
}

// rawSamples are all accepted frames, in memory.
type rawSamples struct {
	store    *live.Store
	batches  []identity.Batch
	records  uint64
	from, to time.Time // of the samples
}

func readFrames(ctx context.Context, c *cluster.Cluster) (*rawSamples, error) {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return nil, err
	}
	r := &rawSamples{}
	if r.store, err = live.New(live.Config{History: 24 * time.Hour, MaxBytes: 1 << 30, MaxSeries: 1 << 20, AgentLabel: agentlabel.Default}); err != nil {
		return nil, err
	}
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	batches, err := load.CountedManifests(ctx, store, c.AuthorityID())
	if err != nil {
		return nil, err
	}
	for _, m := range batches {
		raw, err := accept.ReadFrame(ctx, store, m.FrameKey(), m.FrameSHA256, m.FrameBytes)
		if err != nil {
			return nil, err
		}
		var b frame.Batch
		if err := frame.Decode(raw, &b, frame.DefaultLimits()); err != nil {
			return nil, fmt.Errorf("%s: %w", m.FrameKey(), err)
		}
		a := accepted.Batch{Identity: m.Identity, FrameSHA256: identity.Sum(raw), AcceptedAt: m.AcceptedAt, MaxTime: m.MaxTime}
		if _, err := r.store.Insert(a, &b, time.Now()); err != nil {
			return nil, err
		}
		r.batches = append(r.batches, m.Identity)
		r.records += m.RecordCount
		// Of the manifests and not of the clock: the range has exactly the samples that were accepted.
		first, last = min(first, m.MinTime), max(last, m.MaxTime)
	}
	r.from, r.to = time.Unix(0, first).Truncate(time.Second), time.Unix(0, last).Truncate(time.Second)
	return r, nil
}

// rolledUp counts the records that blocks have. The run is shorter than an hour, so
// that a batch lies in one hour or, at its turn, in two that are published one after the other.
func rolledUp(ctx context.Context, c *cluster.Cluster, raw *rawSamples) (uint64, error) {
	all, err := c.RawBlocks(ctx, raw.from, raw.to)
	var n uint64
	for _, s := range all {
		n += s.Counts.Published
	}
	return n, err
}

// compare asks every expression of both.
func (r *rawSamples) compare(ctx context.Context, c *cluster.Cluster) error {
	engine := promql.NewEngine(promql.EngineOpts{
		Logger: slog.New(slog.DiscardHandler), MaxSamples: 50_000_000, Timeout: time.Minute,
		EnableAtModifier: true, EnableNegativeOffset: true,
	})
	defer engine.Close()
	for _, x := range expressions {
		got, warnings, err := c.Range(ctx, x, promv1.Range{Start: r.from, End: r.to, Step: time.Second})
		if err != nil {
			return err
		}
		// A partial answer may equal the expected one by chance.
		if len(warnings) > 0 {
			return fmt.Errorf("%s: %v", x, warnings)
		}
		want, err := r.evaluate(ctx, engine, x)
		if err != nil {
			return err
		}
		if err := sameMatrix(got, want); err != nil {
			return fmt.Errorf("%s: %w", x, err)
		}
	}
	return nil
}

func (r *rawSamples) evaluate(ctx context.Context, engine *promql.Engine, x string) (promql.Matrix, error) {
	snap := r.store.Snapshot(time.Now())
	defer snap.Close()
	q, err := engine.NewRangeQuery(ctx, promstore.New(snap, promstore.Limits{}), nil, x, r.from, r.to, time.Second)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	res := q.Exec(ctx)
	m, err := res.Matrix()
	if err != nil {
		return nil, err
	}
	out := make(promql.Matrix, len(m))
	for i, s := range m { // the query's memory is not ours
		out[i] = promql.Series{Metric: s.Metric.Copy(), Floats: append([]promql.FPoint(nil), s.Floats...)}
	}
	return out, nil
}

// sums of buckets and sums of samples differ in their last digits.
const relative = 1e-9

func sameMatrix(got model.Matrix, want promql.Matrix) error {
	if len(got) != len(want) || len(want) == 0 {
		return fmt.Errorf("%d series, from the raw samples %d", len(got), len(want))
	}
	by := make(map[uint64]promql.Series, len(want))
	for _, s := range want {
		by[s.Metric.Hash()] = s
	}
	for _, g := range got {
		b := labels.NewScratchBuilder(len(g.Metric))
		for name, value := range g.Metric {
			b.Add(string(name), string(value))
		}
		b.Sort()
		w, ok := by[b.Labels().Hash()]
		if !ok || len(w.Floats) != len(g.Values) {
			return fmt.Errorf("%s: %d values, from the raw samples %d", g.Metric, len(g.Values), len(w.Floats))
		}
		for i, v := range g.Values {
			a, e := float64(v.Value), w.Floats[i].F
			if int64(v.Timestamp) != w.Floats[i].T || math.Abs(a-e) > relative*math.Abs(e) {
				return fmt.Errorf("%s at %d: %g, from the raw samples %g", g.Metric, v.Timestamp, a, e)
			}
		}
	}
	return nil
}
