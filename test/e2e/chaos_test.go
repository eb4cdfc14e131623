package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/cluster"
	"lightmetrics.dev/lightmetrics/internal/proc"
	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/fsck"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestKillAnythingAtAnyMoment kills agent, collectors, store, reconciler and query with
// SIGKILL at random moments under load, with duplicates and conflicts on purpose. After
// it, every acknowledged batch is readable byte for byte, and PromQL's sums are the sums that were sent.
func TestKillAnythingAtAnyMoment(t *testing.T) {
	rounds := size(t, "ROUNDS", 50, 500)
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SEED"); v != "" {
		seed, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("SEED=%d ROUNDS=%d", seed, rounds)
	rnd := rand.New(rand.NewPCG(seed, 1))

	c := newCluster(t, cluster.Options{Collectors: 2, ScrapeInterval: 200 * time.Millisecond, BatchAge: 400 * time.Millisecond})
	ctx := within(t, time.Duration(rounds)*10*time.Second+2*time.Minute)
	must(t, c.StartStore(ctx))
	for i := range c.Collectors {
		must(t, c.StartCollector(ctx, i))
	}
	must(t, c.StartReconciler(ctx))
	must(t, c.StartQuery(ctx))
	must(t, c.StartAgent(ctx))

	f := startFleet(ctx, t, c, seed)
	victims := []struct {
		name    string
		process **proc.Process
		restart func(context.Context) error
	}{
		{"store", &c.Store, c.StartStore},
		{"collector 1", &c.Collectors[0], func(ctx context.Context) error { return c.StartCollector(ctx, 0) }},
		{"collector 2", &c.Collectors[1], func(ctx context.Context) error { return c.StartCollector(ctx, 1) }},
		{"reconciler", &c.Reconciler, c.StartReconciler},
		{"query", &c.Query, c.StartQuery},
		{"agent", &c.Agent, c.StartAgent},
	}
	killed := map[string]int{}
	for round := range rounds {
		time.Sleep(time.Duration(rnd.IntN(250)) * time.Millisecond)
		v := victims[rnd.IntN(len(victims))]
		cluster.Kill(v.process)
		killed[v.name]++
		time.Sleep(time.Duration(rnd.IntN(150)) * time.Millisecond)
		if err := v.restart(ctx); err != nil {
			t.Fatalf("round %d: restart %s: %v", round, v.name, err)
		}
	}
	sent := f.stop()
	t.Logf("killed %v; fleet: %d batches acknowledged, %d duplicates, %d conflicts", killed, len(sent.acked), sent.duplicates, sent.conflicts)
	if t.Failed() {
		return
	}
	must(t, cluster.Stop(&c.Agent))
	settle(ctx, t, c, sent)
}

// settle waits until the answers agree with the bucket, and the bucket with what was sent.
func settle(ctx context.Context, t *testing.T, c *cluster.Cluster, sent *ledgerOfTest) {
	store, err := c.OpenStore(ctx)
	must(t, err)
	found := map[identity.Batch]identity.Digest{}
	report, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: cluster.Authority,
		OnBatch: func(m accept.Manifest, _ *frame.Batch) { found[m.Identity] = m.FrameSHA256 }})
	must(t, err)
	for _, f := range report.Findings {
		t.Error(f)
	}
	for id, d := range sent.acked {
		if found[id] != d {
			t.Errorf("%s was acknowledged with %s, the bucket has %s", id, d, found[id])
		}
	}
	if int(report.Quarantined) < sent.conflicts {
		t.Errorf("%d conflicts were answered, %d are quarantined", sent.conflicts, report.Quarantined)
	}
	for b, l := range report.Ledgers {
		if gaps := l.Gaps(3); len(gaps) > 0 {
			t.Errorf("%s has gaps %v", b, gaps)
		}
		if over := l.Overlaps(3); len(over) > 0 {
			t.Errorf("%s has overlaps %v", b, over)
		}
	}
	type sums struct{ sum, count, all float64 }
	want := sums{sent.sum, float64(sent.count), float64(report.Samples)}
	var got sums
	var warnings []string
	poll, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	err = cluster.Poll(poll, "PromQL to see everything once", func() (bool, error) {
		now := time.Now()
		for expression, into := range map[string]*float64{
			`sum(sum_over_time(fleet[2h]))`:   &got.sum,
			`sum(count_over_time(fleet[2h]))`: &got.count,
		} {
			v, w, err := c.Scalar(poll, expression, now)
			if err != nil {
				return false, err
			}
			*into, warnings = v, w
		}
		var err error
		if got.all, _, err = c.CountSamples(poll, now); err != nil {
			return false, err
		}
		return got == want && len(warnings) == 0, nil
	})
	if err != nil {
		t.Errorf("%v: got %+v, want %+v, warnings %v", err, got, want, warnings)
	}
}

// ledgerOfTest is what the fleet knows to be acknowledged.
type ledgerOfTest struct {
	acked      map[identity.Batch]identity.Digest
	sum        float64
	count      int
	duplicates int
	conflicts  int
}

// fleet is a number of senders that send until they are stopped.
type fleet struct {
	quit chan struct{}
	wg   sync.WaitGroup
	mu   sync.Mutex
	sent ledgerOfTest
	// ackedAt is when a batch was known to be acknowledged.
	ackedAt map[identity.Batch]time.Time
}

const (
	fleetSenders = 6
	fleetRows    = 10 // 2 series each
)

func startFleet(ctx context.Context, t *testing.T, c *cluster.Cluster, seed uint64) *fleet {
	f := &fleet{quit: make(chan struct{}), sent: ledgerOfTest{acked: map[identity.Batch]identity.Digest{}},
		ackedAt: map[identity.Batch]time.Time{}}
	start := time.Now().Add(-time.Hour)
	for i := range fleetSenders {
		f.wg.Add(1)
		go func() {
			defer f.wg.Done()
			if err := f.run(ctx, t, c, i, seed, start); err != nil {
				t.Errorf("fleet sender %d: %v", i, err)
			}
		}()
	}
	return f
}

// stop lets every sender finish what it began.
func (f *fleet) stop() *ledgerOfTest {
	close(f.quit)
	f.wg.Wait()
	return &f.sent
}

// run sends one boot's batches, in order, each until it has an outcome; now and then
// the same bytes again, and now and then other bytes for an identity that is taken.
func (f *fleet) run(ctx context.Context, t *testing.T, c *cluster.Cluster, i int, seed uint64, start time.Time) error {
	boot := identity.Boot{Agent: fmt.Sprintf("fleet-%d", i), Boot: "boot"}
	rnd := rand.New(rand.NewPCG(seed, uint64(i)+100))
	s := newSender(boot, c.Addr.Collectors[i%2].GRPC, c.Addr.Collectors[1-i%2].GRPC)
	defer s.close()
	const n = 2 * fleetRows
	for k := 0; ; k++ {
		select {
		case <-f.quit:
			return nil
		default:
		}
		at := start.Add(time.Duration(k*fleetRows) * rowStep)
		seq := uint64(k*n + 1)
		value := float64(rnd.IntN(1000))
		body := makeFrame(t, boot, "fleet", seq, fleetRows, at, value)
		r, err := s.send(ctx, body)
		if err != nil {
			return err
		}
		switch st := r.GetStatus().String(); st {
		case "BATCH_STATUS_ACCEPTED", "BATCH_STATUS_DUPLICATE":
			// DUPLICATE: an attempt before was accepted and its answer lost.
			f.acked(identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: seq, SeqEnd: seq + n - 1}, body, value, n)
		default:
			return fmt.Errorf("batch %d: %s (%s %s)", seq, st, r.GetReason(), r.GetDetail())
		}
		if err := f.provoke(ctx, t, s, rnd, body, seq, at, value); err != nil {
			return err
		}
	}
}

// provoke sends a duplicate or a conflict now and then.
func (f *fleet) provoke(ctx context.Context, t *testing.T, s *sender, rnd *rand.Rand, body []byte, seq uint64, at time.Time, value float64) error {
	want, into := "BATCH_STATUS_DUPLICATE", &f.sent.duplicates
	switch rnd.IntN(8) {
	case 0:
	case 1:
		body = makeFrame(t, s.boot, "fleet", seq, fleetRows, at, value+5000)
		want, into = "BATCH_STATUS_IDENTITY_CONFLICT", &f.sent.conflicts
	default:
		return nil
	}
	r, err := s.send(ctx, body)
	if err != nil {
		return err
	}
	if got := r.GetStatus().String(); got != want {
		return fmt.Errorf("batch %d again: %s, want %s", seq, got, want)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	*into++
	return nil
}

// acked notes an acknowledged batch: n values from value on, by steps of one.
func (f *fleet) acked(id identity.Batch, body []byte, value float64, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent.acked[id], f.ackedAt[id] = identity.Sum(body), time.Now()
	f.sent.sum += float64(n)*value + float64(n*(n-1))/2
	f.sent.count += n
}
