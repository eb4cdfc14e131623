package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// TestEveryInputIsRegistered: each field of Inputs has the settings of an input, under a
// key, and its default settings are valid.
func TestEveryInputIsRegistered(t *testing.T) {
	typ := reflect.TypeFor[Inputs]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		if !f.Type.Implements(reflect.TypeFor[input.Settings]()) {
			t.Errorf("%s is not an input.Settings", f.Name)
		}
		if f.Tag.Get("koanf") == "" || f.Tag.Get("reload") != "yes" {
			t.Errorf("%s has tags %q, want a koanf key and reload", f.Name, f.Tag)
		}
	}
	for _, s := range DefaultInputs().all() {
		if err := s.Validate(time.Second); err != nil {
			t.Error(err)
		}
	}
}

// listener is a source that others send to: it appends what comes and answers with the error.
type listener struct {
	requests chan input.Batch
	answers  chan error
	mu       sync.Mutex
	removed  bool
}

func (l *listener) Run(ctx context.Context, sink input.Sink) error {
	for {
		select {
		case b := <-l.requests:
			l.answers <- sink.Append(ctx, b)
		case <-ctx.Done():
			l.mu.Lock()
			defer l.mu.Unlock()
			l.removed = input.Removed(ctx)
			return nil
		}
	}
}

func (l *listener) Status() input.Status { return input.Status{Up: true, Address: "127.0.0.1:4318"} }

func (l *listener) spec(settings any) input.Spec {
	return input.Spec{Kind: "push", Name: fmt.Sprint(settings), Settings: settings, New: func(input.Env) (input.Source, error) { return l, nil }}
}

func newListener() *listener {
	return &listener{requests: make(chan input.Batch), answers: make(chan error)}
}

// startAgent runs an agent without inputs of its own.
func startAgent(t *testing.T, cfg Config) (*Agent, func()) {
	t.Helper()
	cfg.Host.Enabled = false
	cfg.HTTP.Listen = ""
	a, err := New(cfg, Deps{Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	<-a.Ready()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return a, stop
}

func histogramBatch(at int64) input.Batch {
	s := &input.Series{Labels: []series.Label{{Name: "__name__", Value: "latency"}}, Type: series.HistogramCumulative, Start: 7}
	return input.Batch{Source: "push", Samples: []input.Sample{{Series: s, Time: at, Histogram: &series.Histogram{Count: 1, Sum: 2, PositiveSpans: []int32{0, 1}, PositiveBuckets: []float64{1}}}}}
}

// TestAcknowledgedInput: what a source appends is on disk when it is answered, with its
// histogram and start time, and reaches a collector without waiting for the age of a batch.
func TestAcknowledgedInput(t *testing.T) {
	store := sendtest.NewStore()
	c := &sendtest.Collector{Store: store}
	addr, err := c.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	cfg := DefaultConfig()
	cfg.AgentID, cfg.DataDir, cfg.Send.Collectors = "pushed", filepath.Join(t.TempDir(), "data"), []string{addr}
	cfg.Batch.MaxAge = time.Hour
	a, _ := startAgent(t, cfg)
	l := newListener()
	if err := a.sources.replace([]input.Spec{l.spec("one")}); err != nil {
		t.Fatal(err)
	}
	l.requests <- histogramBatch(10)
	if err := <-l.answers; err != nil {
		t.Fatal(err)
	}
	if _, _, next := a.queue.Boot(); next != 2 {
		t.Errorf("answered with next number %d", next)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ids, err := store.Wait(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	var b frame.Batch
	if err := frame.Decode(store.Frame(ids[0]), &b, frame.Limits{}); err != nil {
		t.Fatal(err)
	}
	if g := b.Groups[0]; g.Series[0].StartTime != 7 || g.Histograms[0].Sum != 2 {
		t.Errorf("got %+v", g)
	}
	if st := a.Status().Inputs; len(st) != 1 || st[0].Input != "push" || st[0].Address != "127.0.0.1:4318" || !st[0].Up {
		t.Errorf("status: %+v", st)
	}
	// Equal settings keep the source, others replace it, and it learns that it is gone.
	if err := a.sources.replace([]input.Spec{newListener().spec("one")}); err != nil || a.sources.active[0].source != l {
		t.Errorf("a source with equal settings was replaced: %v", err)
	}
	failing := input.Spec{Kind: "push", Settings: "bad", New: func(input.Env) (input.Source, error) { return nil, errors.New("no such device") }}
	if err := a.sources.replace([]input.Spec{l.spec("two"), failing}); err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("got %v", err)
	}
	if l.removed {
		t.Error("settings that were refused ended a source")
	}
	if err := a.sources.replace([]input.Spec{newListener().spec("two")}); err != nil || !l.removed {
		t.Errorf("removed %v, %v", l.removed, err)
	}
}

// TestFullQueueIsBackPressure: an acknowledged source hears that the queue is full, and
// what it was refused leaves no gap: whoever sent it still has it.
func TestFullQueueIsBackPressure(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AgentID, cfg.DataDir, cfg.Send.Collectors = "full", filepath.Join(t.TempDir(), "data"), []string{"127.0.0.1:1"}
	cfg.Queue.SegmentBytes, cfg.Queue.MaxBytes, cfg.DrainTimeout = 64<<10, 256<<10, 0
	a, stop := startAgent(t, cfg)
	l := newListener()
	if err := a.sources.replace([]input.Spec{l.spec("one")}); err != nil {
		t.Fatal(err)
	}
	taken := uint64(0)
	var err error
	for i := range 10_000 {
		b := histogramBatch(int64(i))
		b.Samples[0].Series.Labels = slices.Concat(b.Samples[0].Series.Labels, []series.Label{{Name: "i", Value: strings.Repeat(fmt.Sprint(i), 300)}})
		l.requests <- b
		if err = <-l.answers; err != nil {
			break
		}
		taken++
	}
	if !errors.Is(err, queue.ErrFull) || taken < 10 {
		t.Fatalf("%d taken, %v", taken, err)
	}
	if _, _, next := a.queue.Boot(); next != taken+1 || a.queue.Stats().Skipped != 0 {
		t.Errorf("next number %d after %d records, %d skipped", next, taken, a.queue.Stats().Skipped)
	}
	stop()
	_, st, err := Inspect(cfg)
	if err != nil || uint64(st.Pending) != taken {
		t.Errorf("%d of %d acknowledged batches are on disk, %v", st.Pending, taken, err)
	}
}
