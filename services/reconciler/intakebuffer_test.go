package reconciler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const testShards = 4

func withIntake(c Config) Config {
	c.Intake.Shards, c.Intake.Interval = testShards, 5*time.Millisecond
	return c
}

// taken counts the batches of the intake.
func taken(t testing.TB, s objstore.Store) map[identity.Batch]int {
	t.Helper()
	n := map[identity.Batch]int{}
	for id := range shard.ID(testShards) {
		_, err := intake.NewReader(s, id).Poll(bg, 0, func(key string) error {
			seg, err := intake.ReadSegment(bg, s, key)
			for _, e := range seg.Entries {
				n[e.Identity]++
			}
			return err
		})
		must(t, err)
	}
	return n
}

func TestEveryBatchEntersTheIntakeOnce(t *testing.T) {
	s := newStore()
	var ms []accept.Manifest
	for i := range uint64(40) {
		ms = append(ms, acceptBatch(t, s, batch(fmt.Sprint("agent", i%8), i/8*10, i/8*10+9)))
	}
	r := start(t, withIntake(busy()), s)
	eventually(t, "intake", func() bool { return len(taken(t, s)) == len(ms) })
	eventually(t, "indexed", func() bool { return indexed(t, s, ms...) })
	must(t, r.stop())
	for id, n := range taken(t, s) {
		if n != 1 {
			t.Errorf("%s stands %d times in the intake", id, n)
		}
	}
	if n, err := shards.Read(bg, s); n != testShards || err != nil {
		t.Errorf("ReadShards = %d, %v", n, err)
	}
}

// noSegments refuses to create intake segments while on.
type noSegments struct {
	objstore.Store
	on atomic.Bool
}

func (n *noSegments) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if _, _, _, err := layout.ParseIntakeSegment(key); err == nil && n.on.Load() {
		return objstore.Info{}, gone("create", key, objstore.ErrUnavailable)
	}
	return n.Store.Create(ctx, key, b, o)
}

// What would let a later process pass a batch over waits for its segment: the checkpoint of the ledgers. The
// index does not wait.
func TestNothingPassesOverWhatIsNotInTheIntake(t *testing.T) {
	s := &noSegments{Store: newStore()}
	s.on.Store(true)
	m := acceptBatch(t, s, batch("agent", 0, 9))
	r := start(t, withIntake(busy()), s)
	eventually(t, "indexed", func() bool { return indexed(t, s, m) })
	eventually(t, "a refused round", func() bool { return r.intake.pending() == 1 })
	rounds := func() float64 {
		return testutil.ToFloat64(r.journal.m.saves.WithLabelValues("ok")) + testutil.ToFloat64(r.journal.m.saves.WithLabelValues("failed"))
	}
	eventually(t, "rounds of saving", func() bool { return rounds() >= 3 })
	if n := saved(t, s, "agent"); n != 0 {
		t.Errorf("%d records are saved", n)
	}
	s.on.Store(false)
	eventually(t, "intake", func() bool { return taken(t, s)[m.Identity] == 1 })
	eventually(t, "ledgers", func() bool { return saved(t, s, "agent") == 10 })
}

func TestIntakeBufferIsBounded(t *testing.T) {
	s := &noSegments{Store: newStore()}
	s.on.Store(true)
	st := newIntakeBuffer(s, IntakeConfig{Shards: testShards, Buffer: 2})
	add := func(seq uint64) {
		m, _ := manifest(batch("agent", seq, seq))
		st.add(m.Batch())
	}
	add(0)
	must(t, st.waitForRoom(bg))
	add(1)
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if err := st.waitForRoom(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait with a full buffer: %v", err)
	}
	if err := st.flush(bg); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("barrier without a store: %v", err)
	}
	s.on.Store(false)
	must(t, st.flush(bg))
	if n := st.pending(); n != 0 {
		t.Fatalf("%d entries wait behind a barrier", n)
	}
	must(t, st.waitForRoom(bg))
	if got := taken(t, s); len(got) != 2 {
		t.Errorf("%d batches, want 2", len(got))
	}
}

// Another number of shards would put agents elsewhere: the service refuses to run.
func TestTheNumberOfShardsIsFixed(t *testing.T) {
	s := newStore()
	must(t, shards.Ensure(bg, s, testShards+1))
	svc, err := New(withIntake(quiet()), Deps{Store: s, Telemetry: telemetry.Discard()})
	must(t, err)
	var differ *shards.CountError
	if err := svc.Run(bg); !errors.As(err, &differ) {
		t.Errorf("run: %v", err)
	}
}
