package reconciler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// bench is a reconciler whose scans a test calls one by one, over a store whose clock it
// sets and whose listings it fails.
type bench struct {
	objstore.Store
	t   *testing.T
	svc *Service

	mu      sync.Mutex
	clock   time.Time
	slow    time.Duration // that a listing takes
	failing string        // prefix of what can't be listed
	page    int           // most keys of a page; 0 is the store's own bound
}

// benchTime is no whole second: Last-Modified is.
var benchTime = time.Date(2026, 11, 21, 5, 52, 7, 700_000_000, time.UTC)

func newBench(t *testing.T) *bench {
	b := &bench{t: t, clock: benchTime}
	b.Store = mem.New(b.now)
	b.restart()
	return b
}

// restart is a process that remembers nothing. Its clock is ahead of the store's.
func (b *bench) restart() {
	cfg := quiet()
	cfg.Frontier.Back = 0
	svc, err := New(cfg, Deps{Store: b, Telemetry: telemetry.Discard(), Now: func() time.Time { return b.now().Add(2 * time.Minute) }})
	must(b.t, err)
	b.svc = svc
}

func (b *bench) now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clock
}

func (b *bench) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	b.mu.Lock()
	b.clock = b.clock.Add(b.slow)
	fails := b.failing != "" && strings.HasPrefix(o.Prefix, b.failing)
	if b.page > 0 {
		o.Limit = b.page
	}
	b.mu.Unlock()
	if fails {
		return objstore.Page{}, &objstore.Error{Op: "list", Key: o.Prefix, Err: objstore.ErrUnavailable}
	}
	return b.Store.List(ctx, o)
}

// working runs fn while a worker reconciles, or gives up on everything.
func (b *bench) working(gives bool, fn func(context.Context) error) error {
	ctx, stop := context.WithCancel(bg)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !gives {
			_ = b.svc.work(ctx) // ends with ctx
			return
		}
		for {
			it, err := b.svc.queue.take(ctx)
			if err != nil {
				return
			}
			b.svc.queue.finish(it, false, nil)
		}
	}()
	err := fn(bg)
	stop()
	<-done
	return err
}

func (b *bench) through() time.Time {
	st, err := (server{s: b.svc}).GetStatus(bg, nil)
	must(b.t, err)
	if st.CompleteThroughUnixNs == 0 {
		return time.Time{}
	}
	return time.Unix(0, st.CompleteThroughUnixNs).UTC()
}

func (b *bench) checkpoint() time.Time {
	ns, err := b.svc.core.ReadCheckpoint(bg)
	must(b.t, err)
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func (b *bench) ledgers() []*reconcilerv1.Ledger {
	res, err := (server{s: b.svc}).ListLedgers(bg, &reconcilerv1.ListLedgersRequest{})
	must(b.t, err)
	return res.GetLedgers()
}

// acceptedAt is a batch that was accepted at a time.
func (b *bench) acceptedAt(id identity.Batch, at time.Time) accept.Manifest {
	m, frame := manifest(id)
	m.AcceptedAt = at.UnixNano()
	_, err := b.Put(bg, layout.Boot(id.BootOf()), []byte("{}"), objstore.PutOptions{})
	must(b.t, err)
	create(b.t, b, m.RawBlobKey, frame)
	create(b.t, b, layout.Accepted(id), m.Marshal())
	return m
}

// TestCompleteThroughIsWhenTheAuditBegan: what is accepted while an audit lists may be
// missed by it. So complete_through, and the scan's checkpoint, are the store's time at the
// begin, in whole seconds, and never go back.
func TestCompleteThroughIsWhenTheAuditBegan(t *testing.T) {
	b := newBench(t)
	acceptBatch(t, b, batch("a", 0, 9))
	b.slow = time.Minute
	began := benchTime.Truncate(time.Second)
	must(t, b.working(false, b.svc.frontierAudit))
	if got := b.through(); !got.Equal(began) {
		t.Errorf("frontier audit: complete through %s, want %s", got, began)
	}
	began = b.now().Truncate(time.Second)
	must(t, b.working(false, b.svc.fullAudit))
	if got := b.through(); !got.Equal(began) {
		t.Errorf("full audit: complete through %s, want %s", got, began)
	}
	began = b.now().Truncate(time.Second)
	must(t, b.working(false, b.svc.timeScan))
	if got := b.checkpoint(); !got.Equal(began) {
		t.Errorf("time scan: checkpoint %s, want %s", got, began)
	}
	last := b.through()
	b.svc.completed(last.Add(-time.Hour))
	if got := b.through(); !got.Equal(last) {
		t.Errorf("complete through went back from %s to %s", last, got)
	}
}

// TestFailedListingsProveNothing: whichever listing of a scan fails, the scan has failed.
func TestFailedListingsProveNothing(t *testing.T) {
	id := batch("a", 0, 9)
	for name, c := range map[string]struct {
		failing string
		scan    func(*Service) func(context.Context) error
	}{
		"boots":             {layout.BootsPrefix, func(s *Service) func(context.Context) error { return s.frontierAudit }},
		"a boot":            {layout.AcceptedBoot(id.BootOf()), func(s *Service) func(context.Context) error { return s.frontierAudit }},
		"all manifests":     {layout.AcceptedPrefix, func(s *Service) func(context.Context) error { return s.fullAudit }},
		"conflicts":         {layout.QuarantinePrefix, func(s *Service) func(context.Context) error { return s.fullAudit }},
		"by time":           {layout.AcceptedByTimePrefix, func(s *Service) func(context.Context) error { return s.timeScan }},
		"repairs":           {layout.RepairPrefix, func(s *Service) func(context.Context) error { return s.sweepRepairs }},
		"a boot's manifest": {"", nil},
	} {
		b := newBench(t)
		acceptBatch(t, b, id)
		b.failing = c.failing
		gives := c.scan == nil // nothing fails to be listed; the worker gives up on what was found
		if gives {
			c.scan = func(s *Service) func(context.Context) error { return s.frontierAudit }
		}
		if err := b.working(gives, c.scan(b.svc)); err == nil || !gives && !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if got := b.through(); !got.IsZero() {
			t.Errorf("%s: complete through %s", name, got)
		}
		if got := b.checkpoint(); !got.IsZero() {
			t.Errorf("%s: checkpoint %s", name, got)
		}
		if !gives && b.svc.listed.Load() {
			t.Errorf("%s: listed", name)
		}
	}
}

// TestWhatWasNotReconciledIsNotComplete: a scan that found a manifest which the workers gave
// up has failed, and the ledger stays as it is.
func TestWhatWasNotReconciledIsNotComplete(t *testing.T) {
	b := newBench(t)
	m := b.acceptedAt(batch("a", 0, 9), benchTime)
	must(t, b.working(false, b.svc.frontierAudit))
	must(t, b.working(false, b.svc.timeScan))
	complete, checkpoint := b.through(), b.checkpoint()
	must(t, b.svc.ledgers.flush(bg))
	b.restart()
	b.svc.listed.Store(true)
	b.clock = b.clock.Add(time.Minute)
	if !indexed(t, b, m) {
		t.Fatal("the manifest was not reconciled")
	}
	for name, scan := range map[string]func(context.Context) error{"full audit": b.svc.fullAudit, "time scan": b.svc.timeScan} {
		if err := b.working(true, scan); err == nil {
			t.Errorf("%s: it has succeeded", name)
		}
	}
	if got := b.through(); !got.IsZero() || complete.IsZero() {
		t.Errorf("complete through %s, before it %s", got, complete)
	}
	if got := b.checkpoint(); !got.Equal(checkpoint) {
		t.Errorf("checkpoint %s, want %s", got, checkpoint)
	}
	if _, err := b.svc.ledgers.open(bg, m.Identity.BootOf()); err != nil {
		t.Fatal(err)
	}
	if n := b.svc.ledgers.boots[m.Identity.BootOf()].l.BatchCount(); n != 1 {
		t.Errorf("%d batches in the ledger after audits that failed", n)
	}
}

// TestFrontierAuditFindsWhatIsNew: the batch right behind the frontier, and one that fills a
// gap; a gap is told as one, and what lies behind it is not accepted through.
func TestFrontierAuditFindsWhatIsNew(t *testing.T) {
	b := newBench(t)
	b.page = 1 // each page has one key
	check := func(what string, through, last, batches uint64, gaps ...string) {
		t.Helper()
		must(t, b.working(false, b.svc.frontierAudit))
		l := b.ledgers()
		if len(l) != 1 {
			t.Fatalf("%s: %d ledgers", what, len(l))
		}
		var got []string
		for _, g := range l[0].GetGaps() {
			got = append(got, layout.SeqName(g.GetStart(), g.GetEnd()))
		}
		if l[0].GetAcceptedThrough() != through || l[0].GetLastSeq() != last || l[0].GetBatchCount() != batches || !slices.Equal(got, gaps) {
			t.Errorf("%s: %v", what, l[0])
		}
	}
	acceptBatch(t, b, batch("a", 0, 9))
	acceptBatch(t, b, batch("a", 10, 19))
	check("the first", 19, 19, 2)
	acceptBatch(t, b, batch("a", 20, 29))
	check("right behind", 29, 29, 3)
	acceptBatch(t, b, batch("a", 40, 49))
	acceptBatch(t, b, batch("a", 50, 59))
	check("behind a gap", 29, 59, 5, layout.SeqName(30, 39))
	acceptBatch(t, b, batch("a", 30, 39))
	check("in the gap", 59, 59, 6)
}

// TestTimeScanLooksBack: a scan begins the lookback before the checkpoint, in the middle of
// an hour, and mends what is missing from there on.
func TestTimeScanLooksBack(t *testing.T) {
	b := newBench(t)
	must(t, b.working(false, b.svc.timeScan))
	from := b.checkpoint().Add(-b.svc.cfg.TimeScan.Lookback)
	inside, outside := b.acceptedAt(batch("a", 0, 9), from), b.acceptedAt(batch("b", 0, 9), from.Add(-time.Millisecond))
	ahead := b.acceptedAt(batch("c", 0, 9), b.now().Add(b.svc.cfg.TimeScan.Ahead))
	for _, m := range []accept.Manifest{inside, outside, ahead} { // where it is, the others should be
		create(t, b, byTimeKey(m), m.Marshal())
	}
	b.restart()
	must(t, b.working(false, b.svc.timeScan))
	for name, c := range map[string]struct {
		m    accept.Manifest
		want bool
	}{"inside": {inside, true}, "outside": {outside, false}, "ahead": {ahead, true}} {
		if got := indexed(t, b, c.m); got != c.want {
			t.Errorf("%s: mended %v", name, got)
		}
	}
}
