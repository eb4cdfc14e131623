package query_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
	"lightmetrics.dev/lightmetrics/services/query"
)

// collector is a hinter that has frames, as a collector has those that it accepted last.
type collector struct {
	*hinter
	a      *authority
	w      *writer
	mu     sync.Mutex // of frames
	frames map[identity.Digest][]byte
	calls  atomic.Int64
	next   uint64
	began  time.Time
}

func startCollector(t *testing.T, a *authority) *collector {
	c := &collector{hinter: startHinter(t), a: a, w: a.writer("c1", journal.RoleCollector), frames: map[identity.Digest][]byte{}, began: time.Now()}
	c.read = c.answer
	return c
}

func (c *collector) answer(asked [][]byte, s grpc.ServerStreamingServer[journalv1.ReadFramesResponse]) error {
	c.calls.Add(1)
	m := &journalv1.ReadFramesResponse{}
	for i, sum := range asked {
		c.mu.Lock()
		f := c.frames[identity.Digest(sum)]
		c.mu.Unlock()
		m.Pieces = append(m.Pieces, &journalv1.FramePiece{Index: uint32(i), Data: f, Missing: f == nil})
	}
	return s.Send(m)
}

// build makes batches of one sample each. The collector has their frames.
func (c *collector) build(n int) (all []built) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.next++
		b := c.a.build(host, c.next, now, point{"up", 1, c.began.Add(-time.Duration(c.next) * time.Millisecond)})
		c.frames[b.manifest.FrameSHA256] = b.frame
		all = append(all, b)
	}
	return all
}

func (c *collector) forget(sum identity.Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.frames, sum)
}

func (c *collector) hintAt(at journal.Position) {
	c.send <- &journalv1.WatchJournalResponse{Position: at.String(), Writer: "c1"}
}

// watching starts a node that watches the collector, and has polled before anything else is accepted.
func (c *collector) watching(t *testing.T, wait time.Duration) *node {
	c.w.accept(c.build(1)...) // it opens the run
	n := start(t, c.a, func(cfg *query.Config) {
		slowPolls(cfg)
		cfg.Follow.Watch, cfg.Follow.FramesWait = []string{c.addr}, wait
	})
	<-n.Complete()
	<-c.on
	eventually(t, "the poll when the watch is on", func() bool { return n.number("lightmetrics_query_journal_polls_total{outcome=\"ok\"}") >= 2 })
	c.a.blobs.Store(0)
	return n
}

func (n *node) sees(t *testing.T, samples string) {
	t.Helper()
	eventually(t, samples+" samples", func() bool { return n.value("sum(count_over_time(up[1m]))") == samples })
}

// TestFramesComeFromTheirCollector: a node that watches the collector takes the frames of a segment from its memory, all
// in one call, and asks the store for none of them. Those that the collector lacks come from the store.
func TestFramesComeFromTheirCollector(t *testing.T) {
	c := startCollector(t, newAuthority(t))
	n := c.watching(t, time.Minute)
	c.hintAt(c.w.accept(c.build(40)...))
	n.sees(t, "41")
	if blobs, calls := c.a.blobs.Load(), c.calls.Load(); blobs != 0 || calls != 1 {
		t.Errorf("%d GETs of frames, %d calls", blobs, calls)
	}
	batches := c.build(5)
	c.forget(batches[1].manifest.FrameSHA256)
	c.forget(batches[4].manifest.FrameSHA256)
	c.hintAt(c.w.accept(batches...))
	n.sees(t, "46")
	if blobs := c.a.blobs.Load(); blobs != 2 {
		t.Errorf("%d GETs of frames, of which the collector lacks 2", blobs)
	}
	for outcome, want := range map[string]float64{"taken": 43, "missing": 2, "failed": 0} {
		if got := n.number("lightmetrics_query_peer_frames_total{outcome=\"" + outcome + "\"}"); got != want {
			t.Errorf("%v frames %s, want %v", got, outcome, want)
		}
	}
}

// TestALostBlobIsShownFromMemory: the samples of a batch whose blob was lost are shown where the collector still had its
// frame, and are in no doubt: its hash is the journal's. Where it has not, the answer says that the batch is missing.
func TestALostBlobIsShownFromMemory(t *testing.T) {
	a := newAuthority(t)
	c := startCollector(t, a)
	n := c.watching(t, time.Minute)
	lost := c.build(2)
	at := c.w.accept(lost...)
	for _, b := range lost {
		if err := a.Delete(t.Context(), b.manifest.RawBlobKey); err != nil {
			t.Fatal(err)
		}
	}
	c.hintAt(at)
	n.sees(t, "3")
	if e := n.get("/api/v1/query", "query", "up"); e.Lightmetrics.Partial {
		t.Errorf("partial: %+v", e.Lightmetrics)
	}
	lost = c.build(1)
	c.forget(lost[0].manifest.FrameSHA256)
	at = c.w.accept(lost...)
	if err := a.Delete(t.Context(), lost[0].manifest.RawBlobKey); err != nil {
		t.Fatal(err)
	}
	c.hintAt(at)
	eventually(t, "the batch is missing", func() bool { return n.number("lightmetrics_query_unreadable_batches") == 1 })
	if e := n.get("/api/v1/query", "query", "up"); !e.Lightmetrics.Partial {
		t.Error("a lost batch is missing without a word")
	}
}

// TestALyingCollectorChangesNothing: whatever a collector sends, or if it is silent, answers have what the journal says,
// from the store.
func TestALyingCollectorChangesNothing(t *testing.T) {
	for name, lie := range map[string]func(*collector, [][]byte, grpc.ServerStreamingServer[journalv1.ReadFramesResponse]) error{
		"another batch's frame": func(c *collector, asked [][]byte, s grpc.ServerStreamingServer[journalv1.ReadFramesResponse]) error {
			asked = slices.Clone(asked)
			slices.Reverse(asked)
			return c.answer(asked, s)
		},
		"endless": func(c *collector, asked [][]byte, s grpc.ServerStreamingServer[journalv1.ReadFramesResponse]) error {
			for {
				if err := s.Send(&journalv1.ReadFramesResponse{Pieces: []*journalv1.FramePiece{{Data: []byte("x")}}}); err != nil {
					return err
				}
			}
		},
		"silent": func(_ *collector, _ [][]byte, s grpc.ServerStreamingServer[journalv1.ReadFramesResponse]) error {
			<-s.Context().Done()
			return context.Cause(s.Context())
		},
		"none": nil,
	} {
		t.Run(name, func(t *testing.T) {
			c := startCollector(t, newAuthority(t))
			n := c.watching(t, 10*time.Millisecond)
			c.read = nil
			if lie != nil {
				c.read = func(asked [][]byte, s grpc.ServerStreamingServer[journalv1.ReadFramesResponse]) error {
					return lie(c, asked, s)
				}
			}
			for range 5 {
				c.hintAt(c.w.accept(c.build(4)...))
			}
			n.sees(t, "21")
			if blobs := c.a.blobs.Load(); blobs != 20 {
				t.Errorf("%d GETs of frames, want 20", blobs)
			}
			if e := n.get("/api/v1/query", "query", "up"); e.Lightmetrics.Partial {
				t.Errorf("partial: %+v", e.Lightmetrics)
			}
		})
	}
}
