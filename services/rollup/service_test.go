package rollup

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/backlog"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/status"
)

// patience bounds every wait of a test; no test measures time.
const patience = 30 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// running is a worker in a goroutine of its own.
type running struct {
	*Service
	stop func()
}

func (w *world) start(t *testing.T, cfg Config, s objstore.Store) running {
	t.Helper()
	svc := w.worker(cfg, s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}
	t.Cleanup(stop)
	select {
	case <-svc.Ready():
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return running{svc, stop}
}

// TestOverTheEmbeddedStore: two workers that both own everything, over HTTP: every resolution
// of every shard is published once and equals the recomputation; late batches make the
// next generation of exactly their hour.
func TestOverTheEmbeddedStore(t *testing.T) {
	w := newWorld(t, realStore(t))
	seq := map[shard.ID]uint64{}
	for id := range shard.ID(testShards) {
		seq[id] = w.some(agentOf(id, 0), hour0, 0, 20, 0)
		w.some(agentOf(id, 1), hour0, 5, 20, 0)
		w.some(agentOf(id, 0), hour0-1, 0, 3, 1000)
	}
	cfg := testConfig()
	cfg.Schedule.LateAfter = time.Second
	a, b := w.start(t, cfg, w.store), w.start(t, cfg, w.store)
	rest := func() bool {
		for id := range shard.ID(testShards) {
			if len(w.left(id)) > 0 {
				return false
			}
		}
		return true
	}
	eventually(t, "all segments are consumed", rest)
	for id := range shard.ID(testShards) {
		w.check(hour0, id, 1)
		w.check(hour0-1, id, 1)
	}
	w.advance(time.Hour)
	w.some(agentOf(0, 0), hour0, 30, 1, seq[0])
	eventually(t, "late ones are consumed", func() bool { w.advance(cfg.Schedule.LateAfter); return rest() })
	w.check(hour0, 0, 2)
	w.check(hour0, 1, 1)
	w.check(hour0-1, 0, 1)

	resp, err := http.Get("http://" + a.HTTPAddr() + "/v1/rollup/shards")
	must(t, err)
	defer resp.Body.Close()
	var answer struct {
		Shards []status.Shard `json:"shards"`
	}
	must(t, json.NewDecoder(resp.Body).Decode(&answer))
	if len(answer.Shards) != testShards || answer.Shards[0].Shard != "0000" {
		t.Errorf("shards %+v", answer)
	}
	for _, path := range []string{"/-/ready", "/metrics", "/config"} {
		resp, err := http.Get("http://" + b.HTTPAddr() + path)
		must(t, err)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %s", path, body)
		}
	}
	count := func(s running, res timegrid.Resolution) float64 {
		return testutil.ToFloat64(s.m.Generations.WithLabelValues(res.String()))
	}
	for _, res := range timegrid.Resolutions() {
		if n := count(a, res) + count(b, res); n != 2*testShards+1 {
			t.Errorf("%v generations of %s committed, want %d", n, res, 2*testShards+1)
		}
	}
	if n := testutil.ToFloat64(a.m.Late) + testutil.ToFloat64(b.m.Late); n != 1 {
		t.Errorf("%v late generations", n)
	}
}

// A batch over the hour's end is an input of both hours; one over three hours only of
// those that it has records in.
func TestBatchOverHours(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(1, 0)
	w.accept(agent, 0, point{"g", series.Gauge, at(hour0, time.Hour), 1}, point{"g", series.Gauge, at(hour0, time.Hour+time.Millisecond), 2})
	w.accept(agent, 10, point{"g", series.Gauge, at(hour0-3, time.Minute), 1}, point{"g", series.Gauge, at(hour0, time.Minute), 2})
	w.advance(2 * time.Hour)
	w.drive(testConfig(), ownership.Grant{Shard: 1, Fence: 1})
	for _, h := range []timegrid.Hour{hour0 - 3, hour0, hour0 + 1} {
		w.check(h, 1, 1)
	}
	if s := w.set(hour0, 1, timegrid.Raw); s.Counts.Records != 4 || s.Counts.Published != 2 || s.Counts.OtherHours != 2 {
		t.Errorf("counts %+v", s.Counts)
	}
	for _, h := range []timegrid.Hour{hour0 - 1, hour0 - 2} {
		if s := w.set(h, 1, timegrid.Raw); s != nil {
			t.Errorf("hour %s without records is published", h)
		}
	}
	if left := w.left(1); len(left) > 0 {
		t.Errorf("batches left: %v", left)
	}
}

// TestSchedule: the first generation waits for first_after, the next ones for late_after.
func TestSchedule(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Schedule.FirstAfter, cfg.Schedule.LateAfter = -50*time.Minute, 5*time.Minute
	agent := agentOf(0, 0)
	o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	generation := func() uint64 {
		must(t, rounds(t.Context(), o))
		if s := w.set(hour0, 0, timegrid.OneHour); s != nil {
			return s.Name.Generation
		}
		return 0
	}
	w.clock.Store(at(hour0, 5*time.Minute).UnixNano())
	seq := w.some(agent, hour0, 0, 2, 0)
	for _, step := range []struct {
		at   time.Duration
		more bool
		want uint64
	}{{5, false, 0}, {10, false, 1}, {11, true, 1}, {14, true, 1}, {16, false, 2}, {30, false, 2}, {31, true, 2}, {35, false, 2}, {36, false, 3}} {
		w.clock.Store(at(hour0, step.at*time.Minute).UnixNano())
		if step.more {
			seq = w.some(agent, hour0, int(seq), 1, seq)
		}
		if got := generation(); got != step.want {
			t.Fatalf("after %d minutes: generation %d, want %d", step.at, got, step.want)
		}
	}
	w.check(hour0, 0, 3)
}

// TestLateAndOutOfOrder: batches come in any order and again and again; each generation
// covers all before, and other hours stay as they are.
func TestLateAndOutOfOrder(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0, 100, 5, 1000)
	w.some(agent, hour0-1, 0, 2, 5000)
	g := ownership.Grant{Shard: 0, Fence: 1}
	w.drive(testConfig(), g)
	w.check(hour0, 0, 1)
	w.some(agent, hour0, 0, 5, 0) // before all others
	again := w.accepted[0]
	w.enter(again)
	w.advance(time.Hour)
	w.drive(testConfig(), g)
	w.check(hour0, 0, 2)
	// An overlap: numbers that are taken already, and one that is not; and a repeated time.
	w.accept(agent, seq-1, point{"load", series.Gauge, at(hour0, 105*10*time.Second), 7}, point{"load", series.Gauge, at(hour0, 106*10*time.Second), 8})
	w.accept(agent, 8000, point{"load", series.Gauge, at(hour0, 101*10*time.Second), 9})
	w.advance(time.Hour)
	w.drive(testConfig(), g)
	w.check(hour0, 0, 3)
	w.check(hour0-1, 0, 1)
	if c := w.set(hour0, 0, timegrid.Raw).Counts; c.Overlapped != 1 || c.Duplicates != 1 {
		t.Errorf("counts %+v", c)
	}
	if left := w.left(0); len(left) > 0 {
		t.Errorf("batches left: %v", left)
	}
}

// Numbers that two batches of different hours both have count once, whichever hour is
// rolled up first, and whichever batch was accepted first.
func TestOverlapOverHours(t *testing.T) {
	for name, order := range map[string][]int{"pending": {0, 0, 0}, "the later is published": {0, 1, 0}, "the winner comes late": {1, 0, 1}, "the winner is published": {0, 0, 1}} {
		w := newWorld(t, newMem())
		agent := agentOf(0, 0)
		two := func(h timegrid.Hour, from time.Duration) []point {
			return []point{{"g", series.Gauge, at(h, from), 1}, {"g", series.Gauge, at(h, from+time.Minute), 2}}
		}
		// 0-1 in the hour before, 1-2 in the hour, 2-3 in the hour: 0 wins 1, 1 wins 2.
		es := []accepted.Batch{w.acceptSilently(agent, 0, two(hour0-1, time.Minute)...),
			w.acceptSilently(agent, 1, two(hour0, time.Minute)...), w.acceptSilently(agent, 2, two(hour0, 9*time.Minute)...)}
		for round := range 2 {
			for i, e := range es {
				if order[i] == round {
					w.enter(e)
				}
			}
			w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 1})
		}
		w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 1})
		for _, h := range []timegrid.Hour{hour0 - 1, hour0} {
			gen := w.set(h, 0, timegrid.Raw).Name.Generation
			w.check(h, 0, gen)
		}
		if c := w.set(hour0, 0, timegrid.Raw).Counts; c.Published != 2 || c.Overlapped != 2 {
			t.Errorf("%s: %+v", name, c)
		}
		if left := w.left(0); len(left) > 0 {
			t.Errorf("%s: batches left: %v", name, left)
		}
	}
}

// Many parts make what one makes.
func TestParts(t *testing.T) {
	w := newWorld(t, newMem())
	for n := range 5 {
		w.some(agentOf(0, n), hour0, 0, 10, 0)
	}
	cfg := testConfig()
	cfg.Jobs.Memory = 12 << 10
	cfg.Chunks.MetricSamples, cfg.Chunks.MaxSamples = 8, 15
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	block := w.set(hour0, 0, timegrid.Raw)
	first := block.Name.Generation
	if first == 1 {
		t.Error("the hour was made in one part")
	}
	w.check(hour0, 0, first)
	metrics := map[string]bool{}
	for _, o := range block.Objects {
		metrics[o.Metric] = true
	}
	if len(block.Objects) < 4 || !metrics["load"] {
		t.Errorf("%d objects of %v", len(block.Objects), metrics)
	}

	// A former generation that does not fit whole is extended part by part.
	w.some(agentOf(0, 5), hour0, 20, 3, 0)
	svc := w.worker(cfg, w.store)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	toRest(t, w, o)
	last := w.set(hour0, 0, timegrid.Raw).Name.Generation
	if last == first {
		t.Fatal("the late batches are not rolled up")
	}
	w.check(hour0, 0, last)
	p, err := w.planOf(svc, last)
	must(t, err)
	if n := testutil.ToFloat64(svc.m.Extended); n != 1 || p.Parts < 2 {
		t.Errorf("%v generations extended, the last in %d parts", n, p.Parts)
	}
}

// A frame that is lost holds nothing back but itself, and heals when it is back.
func TestUnreadableFrame(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0, 0, 3, 0)
	lost := w.accepted[1]
	must(t, w.store.Delete(t.Context(), lost.RawBlobKey))
	o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	if err := rounds(t.Context(), o); err == nil || !strings.Contains(err.Error(), "aborted") {
		t.Fatalf("first try: %v", err)
	}
	w.advance(time.Minute)
	must(t, rounds(t.Context(), o))
	block := w.set(hour0, 0, timegrid.Raw)
	if block == nil || block.Name.Generation != 2 || block.Inputs.Covers(lost.Identity) || block.Inputs.Batches() != 2 {
		t.Fatalf("without the lost one: %+v", block)
	}
	if len(w.left(0)) != 1 {
		t.Errorf("batches left: %v", w.left(0))
	}
	w.some(agent, hour0, 10, 1, seq)
	w.advance(backlog.UnreadableWait)
	must(t, rounds(t.Context(), o))
	if block := w.set(hour0, 0, timegrid.Raw); block.Name.Generation != 3 || block.Inputs.Batches() != 3 {
		t.Fatalf("a later one: %+v", block)
	}
	_, err = w.store.Create(t.Context(), layout.Blob(lost.FrameSHA256, 3), w.frames[lost.Identity], objstore.PutOptions{})
	must(t, err)
	w.advance(time.Hour)
	must(t, rounds(t.Context(), o))
	w.check(hour0, 0, 4)
	if len(w.left(0)) != 0 {
		t.Errorf("batches left: %v", w.left(0))
	}
}
