package batch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

func newCommitter(t *testing.T, cfg Config, q Appender) *Committer {
	t.Helper()
	c, err := NewCommitter(cfg, []series.Label{{Name: "host", Value: "h"}}, q, func(queue.Entry) {})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// gatedQueue holds every Append until the gate opens.
type gatedQueue struct {
	*memQueue
	gate chan struct{}
}

func (q gatedQueue) Append(parts ...queue.Part) ([]queue.Entry, error) {
	<-q.gate
	return q.memQueue.Append(parts...)
}

// TestAppendAnswersAfterTheQueue: no call returns before the queue has its samples, and
// calls that wait together share a frame and one write.
func TestAppendAnswersAfterTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := gatedQueue{&memQueue{t: t}, make(chan struct{})}
		c := newCommitter(t, DefaultConfig(), q)
		var mu sync.Mutex
		answered := 0
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := c.Append(t.Context(), scrapeOf(seriesN(3), int64(1+i))); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				answered++
			})
			synctest.Wait()
		}
		if answered != 0 {
			t.Fatalf("%d calls are answered while the queue has nothing", answered)
		}
		close(q.gate)
		wg.Wait()
		if q.calls != 2 || len(q.got) != 2 || q.next != 60 {
			t.Errorf("%d writes of %d frames, %d records; want the first call's, and one for the 19 that waited", q.calls, len(q.got), q.next)
		}
	})
}

// TestAppendCarriesHistogramsAndStarts: and neither changes what it hands over.
func TestAppendCarriesHistogramsAndStarts(t *testing.T) {
	q := &memQueue{t: t}
	c := newCommitter(t, DefaultConfig(), q)
	h := series.Histogram{Schema: 2, Count: 3, Sum: 7, ZeroThreshold: 1e-9, PositiveSpans: []int32{1, 2}, PositiveBuckets: []float64{1, 2}}
	s := &input.Series{Labels: []series.Label{{Name: "__name__", Value: "latency"}}, Type: series.HistogramCumulative, Unit: "seconds", Start: 5}
	gauge := seriesN(1)[0]
	if err := c.Append(t.Context(), input.Batch{Samples: []input.Sample{{Series: s, Time: 10, Histogram: &h}, {Series: gauge, Time: 10, Value: 1}}}); err != nil {
		t.Fatal(err)
	}
	var found bool
	for _, g := range q.got[0].Groups {
		if g.Histograms != nil {
			found = true
			if got := g.Histograms[0]; got.Count != 3 || got.Sum != 7 || len(got.PositiveBuckets) != 2 || g.Series[0].StartTime != 5 || g.Series[0].Type != series.HistogramCumulative {
				t.Errorf("got %+v of %+v", got, g.Series[0])
			}
		}
	}
	if !found || q.next != 2 {
		t.Errorf("no histogram among %d records", q.next)
	}
}

// TestAppendCarriesHelps: once in an hour, and again where the write failed.
func TestAppendCarriesHelps(t *testing.T) {
	q := &memQueue{t: t, err: errors.New("disk")}
	c := newCommitter(t, DefaultConfig(), q)
	s := []*input.Series{helped("m", "help")}
	if err := c.Append(t.Context(), scrapeOf(s, 1)); err == nil {
		t.Fatal("no error")
	}
	q.err = nil
	for at := range int64(2) {
		if err := c.Append(t.Context(), scrapeOf(s, 2+at)); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(sentHelps(q)); got != "[map[m:help] map[]]" && got != "[map[m:help] map[m:help]]" { // the hour may change
		t.Errorf("helps %s", got)
	}
}

// TestAppendRefusesAsAWhole: a call with samples that no collector would take queues
// nothing, names each of them with its reason, and is taken without them.
func TestAppendRefusesAsAWhole(t *testing.T) {
	q := &memQueue{t: t}
	c := newCommitter(t, DefaultConfig(), q)
	s := seriesN(2)
	long := &input.Series{Type: series.Gauge, Labels: []series.Label{{Name: "__name__", Value: "m"}, {Name: "x", Value: strings.Repeat("x", 3000)}}}
	b := input.Batch{Samples: []input.Sample{
		{Series: s[0], Time: 5, Value: 1},
		{Series: long, Time: 5},
		{Series: s[0], Time: 5, Value: 2}, // the time is taken
		{Series: s[1], Time: 5, Histogram: &series.Histogram{}},
		{Series: s[1], Time: 5},
	}}
	err := c.Append(t.Context(), b)
	var rejected *input.RejectedError
	if !errors.As(err, &rejected) || len(rejected.Samples) != 3 || q.calls != 0 {
		t.Fatalf("got %v, %d writes", err, q.calls)
	}
	for i, want := range []struct {
		index  int
		reason frame.Reason
	}{{1, frame.BadLabels}, {2, frame.BadColumn}, {3, frame.BadColumn}} {
		if got := rejected.Samples[i]; got.Index != want.index || !errors.Is(got.Err, want.reason) {
			t.Errorf("rejection %d: %d %v, want %d %s", i, got.Index, got.Err, want.index, want.reason)
		}
	}
	if !errors.Is(err, frame.BadLabels) {
		t.Errorf("the error's reason: %v", err)
	}
	b.Samples = []input.Sample{b.Samples[0], b.Samples[4]}
	if err := c.Append(t.Context(), b); err != nil || q.next != 2 {
		t.Errorf("without them: %v, %d records", err, q.next)
	}
}

// TestAppendLargeCalls: a call over several frames is one write; beyond the bound it is refused.
func TestAppendLargeCalls(t *testing.T) {
	q := &memQueue{t: t}
	cfg := DefaultConfig()
	cfg.MaxRecords = 100
	c := newCommitter(t, cfg, q)
	if err := c.Append(t.Context(), scrapeOf(seriesN(250), 1)); err != nil {
		t.Fatal(err)
	}
	if len(q.got) != 3 || q.calls != 1 || q.next != 250 || q.got[0].Records() != 100 {
		t.Errorf("%d frames in %d writes, %d records", len(q.got), q.calls, q.next)
	}
	if err := c.Append(t.Context(), input.Batch{Samples: make([]input.Sample, MaxAppendSamples+1)}); !errors.Is(err, input.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	many := make([]input.Sample, 0, 5000)
	value := strings.Repeat("v", 2000)
	for i := range 5000 {
		ls := []series.Label{{Name: "__name__", Value: "m"}, {Name: "i", Value: fmt.Sprint(i)}}
		for k := range 4 {
			ls = append(ls, series.Label{Name: fmt.Sprint("l", k), Value: value})
		}
		many = append(many, input.Sample{Series: &input.Series{Labels: ls}, Time: 1})
	}
	if err := c.Append(t.Context(), input.Batch{Samples: many}); !errors.Is(err, input.ErrTooLarge) {
		t.Errorf("40 MB of labels: %v", err)
	}
	if q.next != 250 {
		t.Errorf("%d records after refused calls", q.next)
	}
}

// TestAppendOlderThanAnotherCall: the order of calls is not that of times.
func TestAppendOlderThanAnotherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := gatedQueue{&memQueue{t: t}, make(chan struct{})}
		c := newCommitter(t, DefaultConfig(), q)
		var wg sync.WaitGroup
		for _, at := range []int64{1, 30, 20, 20, 40} {
			wg.Go(func() {
				if err := c.Append(t.Context(), scrapeOf(seriesN(2), at)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(q.gate)
		wg.Wait()
		var records []uint64
		for i := range q.got {
			records = append(records, q.got[i].Records())
		}
		// The first call; 30; 20; 20 again with 40 behind it.
		if fmt.Sprint(records) != "[2 2 2 4]" || q.calls != 2 {
			t.Errorf("frames of %v records in %d writes", records, q.calls)
		}
	})
}

// TestAppendFails: a full or broken queue fails each call that waited and gives no numbers
// away; a frame that can't be encoded fails its own call only.
func TestAppendFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := gatedQueue{&memQueue{t: t, err: fmt.Errorf("x: %w", queue.ErrFull)}, make(chan struct{})}
		c := newCommitter(t, DefaultConfig(), q)
		group := func(batches ...input.Batch) []error {
			errs := make([]error, len(batches))
			var wg sync.WaitGroup
			for i, b := range batches {
				wg.Go(func() { errs[i] = c.Append(t.Context(), b) })
				synctest.Wait()
			}
			close(q.gate)
			wg.Wait()
			return errs
		}
		for i, err := range group(scrapeOf(seriesN(2), 1), scrapeOf(seriesN(2), 2), scrapeOf(seriesN(2), 3)) {
			if !errors.Is(err, queue.ErrFull) {
				t.Errorf("call %d: %v", i, err)
			}
		}
		if q.next != 0 {
			t.Errorf("%d numbers are gone", q.next)
		}
		q.err = nil
		for refusal, want := range map[error]error{&frame.Error{Reason: frame.TooLarge}: frame.TooLarge, queue.ErrTooLarge: input.ErrTooLarge} {
			q.gate = make(chan struct{})
			before := q.next
			c.queue = failSecond{q, 4, refusal}
			errs := group(scrapeOf(seriesN(1), 1), scrapeOf(seriesN(2), 2), scrapeOf(seriesN(4), 3), scrapeOf(seriesN(1), 4))
			if errs[0] != nil || errs[1] != nil || !errors.Is(errs[2], want) || errs[3] != nil || q.next != before+4 {
				t.Errorf("got %v, %d records", errs, q.next-before)
			}
		}
	})
}

// failSecond refuses a frame that has at least so many records, as the encoder does with one
// that is too large, and the queue with one that it could never hold.
type failSecond struct {
	Appender
	records uint64
	err     error
}

func (q failSecond) Append(parts ...queue.Part) ([]queue.Entry, error) {
	for _, p := range parts {
		if p.Records >= q.records {
			return nil, fmt.Errorf("append: %w", q.err)
		}
	}
	return q.Appender.Append(parts...)
}

// TestAppendWaitsForRoom: a group is bounded; what does not fit waits for the next, and a
// caller that stops waiting does not know.
func TestAppendWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := gatedQueue{&memQueue{t: t}, make(chan struct{})}
		c := newCommitter(t, DefaultConfig(), q)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		large := MaxAppendSamples/2 + 1
		errs := make([]error, 4)
		for i, n := range []int{1, large, large, 1} {
			wg.Go(func() { errs[i] = c.Append(ctx, scrapeOf(seriesN(n), int64(10+i))) })
			synctest.Wait()
		}
		c.mu.Lock()
		if got := len(c.next.batches); got != 2 || c.next.samples > MaxAppendSamples {
			t.Errorf("%d calls, %d samples in a group", got, c.next.samples)
		}
		c.mu.Unlock()
		cancel()
		synctest.Wait()
		close(q.gate)
		wg.Wait()
		// The first two are writers and know; the third had no place; the fourth had one.
		if errs[0] != nil || errs[1] != nil || !errors.Is(errs[2], context.Canceled) || !errors.Is(errs[3], context.Canceled) {
			t.Errorf("got %v", errs)
		}
		if !strings.Contains(errs[3].Error(), "may have been queued") || strings.Contains(errs[2].Error(), "may have") {
			t.Errorf("outcomes: %v; %v", errs[2], errs[3])
		}
		if q.next != uint64(large)+2 {
			t.Errorf("%d records", q.next)
		}
	})
}

// The series of a sender that comes with the same ones again stay where they are, and no frame has anything of another's.
func TestAppendKeepsSeries(t *testing.T) {
	q := &memQueue{t: t}
	c := newCommitter(t, DefaultConfig(), q)
	one, two := seriesN(6), seriesN(9)[4:]
	rounds := [][]*input.Series{one, one, one, one[:2], one, two, {two[1], one[0]}, two, {one[0], one[5], one[0]}, one}
	for i, list := range rounds {
		at := scrapeOf(list, int64(1000*(i+1)))
		for k := range at.Samples {
			at.Samples[k].Time += int64(k) // times of a series rise
		}
		if err := c.Append(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		got := q.got[len(q.got)-1]
		want := map[string]int{}
		for _, s := range at.Samples {
			want[s.Series.Labels[1].Value]++
		}
		strings, records := map[string]bool{}, 0
		for _, s := range got.Strings {
			strings[s] = true
		}
		for _, g := range got.Groups {
			records += len(g.Timestamps) * len(g.Series)
			for _, s := range g.Series {
				name := ""
				for _, l := range s.Labels {
					if got.Strings[l.Name] == "i" {
						name = got.Strings[l.Value]
					}
				}
				if want[name] != len(g.Timestamps) {
					t.Errorf("round %d: series %q has %d samples, want %d", i, name, len(g.Timestamps), want[name])
				}
			}
		}
		if records != len(list) {
			t.Errorf("round %d: %d records, want %d", i, records, len(list))
		}
		// "", host, h, __name__, m, i
		if len(strings) != 6+len(want) {
			t.Errorf("round %d: strings %q, want those of %v", i, got.Strings, want)
		}
	}
}

func TestOpenFrameKeepsSeries(t *testing.T) {
	o, err := newOpenFrame(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(list []*input.Series) (bytes int) {
		t.Helper()
		for _, s := range scrapeOf(list, 1).Samples {
			if err := add(o, s); err != nil {
				t.Fatal(err)
			}
		}
		bytes = o.bytes
		if err := o.reset(); err != nil || o.records() != 0 || len(o.order) != 0 || o.bytes != 0 {
			t.Fatalf("%v, %d records, %d series, %d bytes after a reset", err, o.records(), len(o.order), o.bytes)
		}
		return bytes
	}
	list := seriesN(5)
	first := fill(list)
	if len(o.table) != 5 || o.builder.Series() != 5 {
		t.Errorf("%d series are kept, want 5", len(o.table))
	}
	if again := fill(list); again != first {
		t.Errorf("%d bytes are counted, before it were %d", again, first)
	}
	if fill(list[:4]); len(o.table) != 0 || len(o.ids) != 0 {
		t.Errorf("%d series are kept although one did not come", len(o.table))
	}
	fill(list)
	if _, err := o.series(seriesN(1)[0]); err != nil {
		t.Fatal(err)
	}
	if fill(list[1:]); len(o.table) != 0 || len(o.ids) != 0 {
		t.Errorf("%d series of %d are kept although one came as another", len(o.table), len(o.ids))
	}
}
