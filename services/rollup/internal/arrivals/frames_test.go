package arrivals

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// keeper is a FrameKeeper.
type keeper struct {
	mu   sync.Mutex
	kept map[identity.Digest][]byte
	put  chan struct{}
}

func (k *keeper) Has(sum identity.Digest) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[sum] != nil
}

func (k *keeper) Put(sum identity.Digest, raw []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[sum] = raw
	k.put <- struct{}{}
}

// TestFramesComeWithTheirBatches: the frames of a segment are taken from the collector that hinted at it, those of shards
// that this worker owns, in one call; a frame that has come is not asked for again, and one whose bytes are others is not
// taken. Batches arrive whatever the collector does.
func TestFramesComeWithTheirBatches(t *testing.T) {
	h := &hinter{send: make(chan string), on: make(chan struct{}, 9), writer: "c", frames: map[identity.Digest][]byte{}, asked: make(chan []identity.Digest, 9)}
	k := &keeper{kept: map[identity.Digest][]byte{}, put: make(chan struct{}, 99)}
	addr := startHinter(t, h)
	w := newWorld(t, func(c *Config) {
		c.Watch, c.Frames = []string{addr}, k
		c.Peers = peerframes.New(peerframes.Config{Wait: time.Minute, Now: time.Now, Log: telemetry.Discard().Log, Metrics: peerframes.NewMetrics(prometheus.NewRegistry(), "test")})
	})
	q := w.hub.Open(0, nil)
	frame := func(n uint64) ([]byte, identity.Digest) {
		raw := fmt.Appendf(nil, "frame %d", n)
		return raw, identity.Sum(raw)
	}
	enter := func(on []shard.ID, from uint64) journal.Position {
		for i, id := range on {
			raw, sum := frame(from + uint64(i))
			_, err := w.w.Add(journal.Entry{ID: of(id, from+uint64(i)), Outcome: journal.Accepted, SHA256: sum, Bytes: uint64(len(raw)), At: 1, MinTime: 1, MaxTime: 2})
			must(t, err)
		}
		at, _, err := w.w.Flush(t.Context())
		must(t, err)
		return at
	}
	for n := range uint64(20) {
		raw, sum := frame(n)
		h.frames[sum] = raw
	}
	_, wrong := frame(12)
	h.frames[wrong] = []byte("frame 13")
	enter([]shard.ID{0}, 100) // it opens the run
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { _ = w.hub.Run(ctx) })
	wg.Go(func() { _ = w.hub.TakeFrames(ctx) })
	wg.Go(func() { _ = w.hub.Watch(ctx, addr, rpc.ClientConfig{}) })
	<-h.on
	for !w.hub.watches.all() {
		time.Sleep(time.Millisecond)
	}
	sums := func(ns ...uint64) (out []identity.Digest) {
		for _, n := range ns {
			_, sum := frame(n)
			out = append(out, sum)
		}
		return out
	}
	h.send <- enter([]shard.ID{0, 1, 0, 0}, 1).String()
	if got := <-h.asked; !slices.Equal(got, sums(1, 3, 4)) {
		t.Errorf("asked for %d frames", len(got))
	}
	for range 3 {
		<-k.put
	}
	// The batches of frame 3 and 4 again: a retry that another collector answered.
	h.send <- enter([]shard.ID{0, 0, 0}, 3).String()
	if got := <-h.asked; !slices.Equal(got, sums(5)) {
		t.Errorf("asked for %d frames, of which one has not come", len(got))
	}
	<-k.put
	h.send <- enter([]shard.ID{0}, 12).String()
	<-h.asked
	var got []identity.Batch
	for end := time.Now().Add(time.Minute); !slices.Contains(got, of(0, 12)); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("arrived: %v", got)
		}
		batches, _, _ := q.Take(99)
		got = append(got, ids(batches)...)
	}
	if k.Has(wrong) || !k.Has(sums(5)[0]) || len(k.kept) != 4 {
		t.Errorf("%d frames are kept", len(k.kept))
	}
}
