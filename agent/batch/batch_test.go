package batch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// memQueue gives identities as the queue does, and keeps decoded batches.
type memQueue struct {
	t     *testing.T
	mu    sync.Mutex
	next  uint64
	err   error
	sizes []int
	got   []frame.Batch
	calls int // of Append that were taken
}

func (q *memQueue) Append(parts ...queue.Part) ([]queue.Entry, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return nil, q.err
	}
	// All or none, as the queue does.
	next, sizes, got := q.next, q.sizes, q.got
	var entries []queue.Entry
	for _, p := range parts {
		e, err := q.append(p)
		if err != nil {
			q.next, q.sizes, q.got = next, sizes, got
			return nil, err
		}
		entries = append(entries, e)
	}
	q.calls++
	return entries, nil
}

func (q *memQueue) append(p queue.Part) (queue.Entry, error) {
	id := identity.Batch{Agent: "a", Boot: "b", SeqStart: q.next + 1, SeqEnd: q.next + p.Records}
	enc, err := p.Encode(id)
	if err != nil {
		return queue.Entry{}, err
	}
	var b frame.Batch
	// Not a pooled decoder, whose channels may be of another test's bubble.
	if err := frame.NewDecoder().Decode(enc, &b, frame.Limits{}); err != nil {
		q.t.Errorf("a collector would refuse it: %v", err)
	}
	if b.Records() != p.Records || b.Identity != id {
		q.t.Errorf("%d records of %s, want %d", b.Records(), b.Identity, p.Records)
	}
	q.next = id.SeqEnd
	q.sizes, q.got = append(q.sizes, len(enc)), append(q.got, b)
	return queue.Entry{Identity: id, Bytes: len(enc)}, nil
}

func (q *memQueue) Skip(records uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next += records
	return nil
}

type drops map[string]int

func (q *memQueue) batches() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.got)
}

func newBatcher(t *testing.T, cfg Config, q *memQueue) (*Batcher, drops) {
	t.Helper()
	d := drops{}
	b, err := New(cfg, []series.Label{{Name: "host", Value: "h"}}, q, func(r string, n int) { d[r] += n },
		func(queue.Entry) {}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return b, d
}

func seriesN(n int) []*input.Series {
	out := make([]*input.Series, n)
	for i := range out {
		out[i] = &input.Series{Type: series.Gauge, Labels: []series.Label{{Name: "__name__", Value: "m"}, {Name: "i", Value: fmt.Sprint(i)}}}
	}
	return out
}

func scrapeOf(series []*input.Series, at int64) input.Batch {
	s := input.Batch{Source: "t"}
	for i, x := range series {
		s.Samples = append(s.Samples, input.Sample{Series: x, Time: at, Value: float64(i)})
	}
	return s
}

// Scrapes of one source become one dense matrix.
func TestSeveralScrapesAreOneMatrix(t *testing.T) {
	q := &memQueue{t: t}
	b, _ := newBatcher(t, DefaultConfig(), q)
	one, two := seriesN(20), seriesN(5)
	for i := range int64(6) {
		b.add(scrapeOf(one, 1000+i*10))
		b.add(scrapeOf(two[:1], 1003+i*10))
	}
	b.flush()
	// two[0] has the labels of one[0]: a series is its labels, whoever brings it.
	if len(q.got) != 1 || q.next != 126 {
		t.Fatalf("%d batches, %d records", len(q.got), q.next)
	}
	if n := len(q.got[0].Groups); n != 2 {
		t.Fatalf("%d groups, want the 19 series of one set of timestamps and the merged one", n)
	}
	if b.open.records() != 0 || len(b.open.ids) != 0 {
		t.Fatal("not reset")
	}
}

func TestBounds(t *testing.T) {
	q := &memQueue{t: t}
	cfg := DefaultConfig()
	cfg.MaxRecords = 100
	b, _ := newBatcher(t, cfg, q)
	b.add(scrapeOf(seriesN(250), 1))
	b.flush()
	if len(q.got) != 3 || q.got[0].Records() != 100 || q.got[2].Records() != 50 || q.next != 250 {
		t.Fatalf("%d batches", len(q.got))
	}
	q = &memQueue{t: t}
	cfg = DefaultConfig()
	cfg.MaxBytes = 4 << 10
	b, _ = newBatcher(t, cfg, q)
	b.add(scrapeOf(seriesN(500), 1))
	b.flush()
	if len(q.got) < 5 {
		t.Fatalf("%d batches for 500 series and 4 KiB", len(q.got))
	}
	q = &memQueue{t: t}
	b, _ = newBatcher(t, cfg, q)
	one := seriesN(1)
	for i := range int64(500) {
		b.add(scrapeOf(one, i))
	}
	b.flush()
	if len(q.got) < 2 {
		t.Fatalf("%d batches for 500 records of one series and 4 KiB", len(q.got))
	}
}

// TestStopTakesWhatWaits: what stands in the channel when the agent stops is queued.
func TestStopTakesWhatWaits(t *testing.T) {
	q := &memQueue{t: t}
	b, _ := newBatcher(t, DefaultConfig(), q)
	ch := input.NewBuffer(20, func(n int) { t.Errorf("%d samples dropped", n) })
	for i := range int64(20) {
		ch.Offer(scrapeOf(seriesN(1), i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Run(ctx, ch); err != nil || q.next != 20 {
		t.Errorf("%d of 20 records are queued, %v", q.next, err)
	}
}

// What no collector would take is dropped alone and counted; a full queue drops the batch.
func TestDrops(t *testing.T) {
	q := &memQueue{t: t}
	b, d := newBatcher(t, DefaultConfig(), q)
	s := seriesN(3)
	bad := &input.Series{Type: series.Gauge, Labels: []series.Label{{Name: "__name__", Value: "m"}, {Name: "x", Value: string(make([]byte, 3000))}}}
	b.add(scrapeOf(append([]*input.Series{bad}, s...), 10))
	b.add(scrapeOf(s[:2], 9))
	b.flush()
	if d[DropSeries] != 1 || d[DropOrder] != 2 || q.next != 3 {
		t.Fatalf("%v, %d records", d, q.next)
	}
	for reason, err := range map[string]error{DropQueueFull: fmt.Errorf("x: %w", queue.ErrFull), DropQueue: errors.New("disk")} {
		q.err = err
		b.add(scrapeOf(s, 20))
		b.flush()
		if d[reason] != 3 {
			t.Fatalf("%s: %v", reason, d)
		}
	}
	q.err = nil
	b.add(scrapeOf(s, 30))
	b.flush()
	if q.got[1].Identity.SeqStart != 10 {
		t.Fatalf("two dropped batches of 3 left no gap: %s", q.got[1].Identity)
	}
}

// TestBusyBatcherLeavesAGap: what found no room in the buffer takes numbers before the
// batch that follows, or at the stop where none does.
func TestBusyBatcherLeavesAGap(t *testing.T) {
	q := &memQueue{t: t}
	cfg := DefaultConfig()
	cfg.MaxRecords = 3
	b, _ := newBatcher(t, cfg, q)
	in := input.NewBuffer(2, func(int) {})
	s := seriesN(3)
	in.Offer(scrapeOf(s, 1))
	in.Offer(scrapeOf(s, 2))
	for i := range int64(4) {
		if in.Offer(scrapeOf(s, 3+i)) {
			t.Fatal("a full buffer takes more")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Run(ctx, in); err != nil {
		t.Fatal(err)
	}
	if len(q.got) != 2 || q.got[0].Identity.SeqStart != 13 || q.next != 18 {
		t.Errorf("%d batches up to %d, want two of 13 to 18 behind a gap of 12", len(q.got), q.next)
	}
	for i := range int64(3) {
		in.Offer(scrapeOf(s, 10+i))
	}
	<-in.C()
	<-in.C() // nothing follows what was dropped
	if err := b.Run(ctx, in); err != nil || q.next != 21 {
		t.Errorf("numbers up to %d after a last drop of 3, %v", q.next, err)
	}
}

// A stale marker arrives with its bits; any other NaN, too.
func TestStaleMarkerIsBitExact(t *testing.T) {
	q := &memQueue{t: t}
	b, _ := newBatcher(t, DefaultConfig(), q)
	s := seriesN(2)
	other := math.Float64frombits(0x7ff8000000000009)
	b.add(input.Batch{Samples: []input.Sample{{Series: s[0], Time: 1, Value: input.StaleNaN}, {Series: s[1], Time: 1, Value: other}}})
	b.flush()
	got := q.got[0].Groups[0].Values
	if math.Float64bits(got[0]) != value.StaleNaN || math.Float64bits(got[1]) != 0x7ff8000000000009 {
		t.Errorf("got %x and %x", math.Float64bits(got[0]), math.Float64bits(got[1]))
	}
}

func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &memQueue{t: t}
		cfg := DefaultConfig()
		b, _ := newBatcher(t, cfg, q)
		ctx, cancel := context.WithCancel(t.Context())
		dropped := 0
		ch := input.NewBuffer(2, func(n int) { dropped += n })
		done := make(chan error)
		go func() { done <- b.Run(ctx, ch) }()
		s := seriesN(4)
		ch.Offer(scrapeOf(s, 1))
		time.Sleep(cfg.MaxAge - time.Second)
		synctest.Wait()
		if q.batches() != 0 {
			t.Error("closed too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := q.batches(); n != 1 {
			t.Errorf("%d batches after max_age", n)
		}
		ch.Offer(scrapeOf(s, 2))
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if q.next != 8 {
			t.Errorf("%d records: the unfinished batch is not queued at a stop", q.next)
		}
		for i := range int64(3) {
			ch.Offer(scrapeOf(s, 10+i))
		}
		if dropped != 4 {
			t.Errorf("%d samples dropped by a full channel, want the newest scrape's 4", dropped)
		}
	})
}

// A clock that was set, or a target that makes up its times, does not cost the batch: what
// lies far apart goes into batches of their own.
func TestJumpsInTimeBeginABatch(t *testing.T) {
	q := &memQueue{t: t}
	b, d := newBatcher(t, DefaultConfig(), q)
	series := seriesN(1)
	hour := int64(time.Hour)
	for _, at := range []int64{0, hour, 12 * hour, 12*hour + 1, 50 * 365 * 24 * hour, math.MaxInt64} {
		b.add(scrapeOf(series, at))
	}
	b.add(scrapeOf(seriesN(2)[1:], math.MinInt64))
	b.flush()
	var records []uint64
	for i := range q.got {
		first, last := frame.TimeRange(&q.got[i])
		if uint64(last)-uint64(first) > uint64(maxSpan) {
			t.Errorf("a batch from %d to %d", first, last)
		}
		records = append(records, q.got[i].Records())
	}
	if fmt.Sprint(records) != "[3 1 1 1 1]" || len(d) > 0 {
		t.Errorf("batches of %v records, dropped %v", records, d)
	}
}
