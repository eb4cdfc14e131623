package regions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/memfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Sizes: failovers of a whole region, in CI and in make soak; senders, and the time between two batches of one.
const (
	fewFailovers, allFailovers = 2, 40
	failoverSenders            = 24
	senderPause                = 200 * time.Millisecond
	// regionDelay is what each direction between two regions takes: claims wait for it, so that they are under way when a region goes.
	regionDelay = 25 * time.Millisecond
	// regionAway is how long a region stays away once its senders have left it: above take_over, which is 1s here.
	regionAway = 5 * time.Second
)

// TestFailoversOfRegions: senders prefer their own region, which is killed or cut off under load, again and again. They go to the
// others and come back by themselves. Each batch is acknowledged once its region is gone or back, with the bytes that were queued, and
// counts in exactly one region. Copies that are left behind are counted: the decision record about them rests on how few there are.
func TestFailoversOfRegions(t *testing.T) {
	t.Parallel()
	failovers := size(t, "FAILOVERS", fewFailovers, allFailovers)
	_, rnd := seeded(t)
	r := newRegions(t, cluster.RegionsOptions{Delay: regionDelay, Options: cluster.Options{Adjust: func(process string, s map[string]any) {
		if strings.Contains(process, "collector-") {
			s["take_over"] = "1s" // so that claims of a region that is away for seconds are taken over
		}
	}}})
	ctx := within(t, time.Duration(failovers+3)*2*time.Minute)
	must(t, r.Start(ctx))
	var all []*preferring
	for i := range failoverSenders {
		s, err := newPreferring(r, i)
		must(t, err)
		all = append(all, s)
	}
	stop := runAll(t, all)
	defer stop()
	must(t, onLists(ctx, all, func(int) send.List { return send.Preferred }))
	copies, bytesOf := 0, uint64(0)
	for n := range failovers {
		at := rnd.IntN(len(r.Of))
		kill := n%2 == 0
		began, sent := time.Now(), queued(all)
		if kill {
			r.Of[at].KillServices()
		} else {
			must(t, r.Isolate(at))
		}
		must(t, onLists(ctx, all, func(home int) send.List {
			if home == at {
				return send.Fallback
			}
			return send.Preferred
		}))
		left := time.Since(began)
		// What was under way there is claimed elsewhere before the region is back, or its own reconciler would finish it. What it had
		// accepted and not journalled waits for it.
		time.Sleep(regionAway)
		if kill {
			must(t, r.Of[at].StartServices(ctx))
		} else {
			must(t, r.Heal())
		}
		must(t, onLists(ctx, all, func(int) send.List { return send.Preferred }))
		took := time.Since(began)
		resume, err := idle(ctx, all)
		must(t, err)
		c, b, err := copiesOf(ctx, r, all)
		must(t, err)
		resume()
		how := "cut off"
		if kill {
			how = "killed"
		}
		t.Logf("%s was %s: its senders left after %s and were back after %s; %.0f batches a second in all; %d copies more, %d bytes", r.Names[at], how,
			left.Round(time.Millisecond), took.Round(time.Millisecond), float64(queued(all)-sent)/time.Since(began).Seconds(), c-copies, b-bytesOf)
		copies, bytesOf = c, b
	}
	stop()
	total := 0
	homes, err := load.ReadHomes(ctx, r, func(identity.Boot) bool { return true })
	must(t, err)
	for _, s := range all {
		for id, frame := range s.frames {
			total++
			at := homes.Of(id)
			if len(at) != 1 {
				t.Errorf("%s is counted by %v", id, at)
				continue
			}
			if homes[at[0]][id].SHA256 != identity.Sum(frame) {
				t.Errorf("%s is counted with other bytes", id)
			}
		}
	}
	t.Logf("%d batches, each counted once; %d failovers left %d copies with %d bytes", total, failovers, copies, bytesOf)
	// What is in flight when a region goes, and no more: a window of each sender.
	if most := failovers * failoverSenders / len(r.Of) * send.DefaultConfig().MaxInFlightBatches; copies > most {
		t.Errorf("%d copies, want %d at most", copies, most)
	}
}

// preferring is a sender of a region, with a queue in memory.
type preferring struct {
	home   int
	queue  *queue.Queue
	sender *send.Sender

	mu     sync.Mutex
	frames map[identity.Batch][]byte
	paused bool
}

func newPreferring(r *cluster.Regions, i int) (*preferring, error) {
	s := &preferring{home: i % len(r.Of), frames: map[identity.Batch][]byte{}}
	cfg := send.DefaultConfig()
	cfg.Collectors, cfg.Fallback = nil, nil
	for k, c := range r.Of {
		for _, a := range c.Addr.Collectors {
			if k == s.home {
				cfg.Collectors = append(cfg.Collectors, a.GRPC)
			} else {
				cfg.Fallback = append(cfg.Fallback, a.GRPC)
			}
		}
	}
	cfg.ConnectTimeout, cfg.AnswerTimeout, cfg.BackoffMax = 5*time.Second, 6*time.Second, time.Second
	cfg.FallbackAfter, cfg.ReturnInterval, cfg.ReturnAfter, cfg.ReturnMax = time.Second, 500*time.Millisecond, 2*time.Second, 4*time.Second
	var err error
	if s.queue, err = queue.Open(memfs.New(), "q", queue.Options{Agent: fmt.Sprintf("sender-%d", i), MaxBytes: 256 << 20, SegmentBytes: 4 << 20, Policy: queue.RefuseNew, Now: time.Now, Log: slog.New(slog.DiscardHandler)}); err != nil {
		return nil, err
	}
	s.sender, err = send.New(cfg, s.queue, send.Deps{Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler), Now: time.Now})
	return s, err
}

// add queues a batch of some 2 KB, as an agent's of one host.
func (s *preferring) add() error {
	_, err := s.queue.Append(queue.Part{Records: 400, Encode: func(id identity.Batch) ([]byte, error) {
		f, err := load.Frame(id.BootOf(), "failover", id.SeqStart, 200, time.Now(), float64(id.SeqStart))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.frames[id] = bytes.Clone(f)
		return f, err
	}})
	return err
}

// runAll runs the senders, and queues batches, until stop, which waits until all is acknowledged.
func runAll(t *testing.T, all []*preferring) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() {
			if err := s.sender.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			tick := time.NewTicker(senderPause)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				s.mu.Lock()
				paused := s.paused
				s.mu.Unlock()
				if paused {
					continue
				}
				if err := s.add(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			fctx, done := context.WithTimeout(ctx, 2*time.Minute)
			defer done()
			if _, err := idle(fctx, all); err != nil {
				t.Error(err)
			}
			cancel()
			wg.Wait()
			for _, s := range all {
				if n := s.queue.Stats(); n.Pending+n.Parked+n.Dead != 0 {
					t.Errorf("a sender has %+v left", n)
				}
			}
		})
	}
}

// idle waits until everything is acknowledged; nothing is queued before resume.
func idle(ctx context.Context, all []*preferring) (resume func(), err error) {
	pause := func(paused bool) {
		for _, s := range all {
			s.mu.Lock()
			s.paused = paused
			s.mu.Unlock()
		}
	}
	pause(true)
	for _, s := range all {
		if err := s.sender.Flush(ctx, s.queue.Last()); err != nil {
			return nil, fmt.Errorf("a sender of region %d: %w; %+v", s.home, err, s.sender.Status())
		}
	}
	return func() { pause(false) }, nil
}

func queued(all []*preferring) (n int) {
	for _, s := range all {
		s.mu.Lock()
		n += len(s.frames)
		s.mu.Unlock()
	}
	return n
}

// onLists waits until each sender uses the list that its region's senders should.
func onLists(ctx context.Context, all []*preferring, want func(home int) send.List) error {
	return cluster.Poll(ctx, "senders to change regions", func() (bool, error) {
		for _, s := range all {
			if st := s.sender.Status(); st.List != want(s.home) || st.DisconnectedSince != nil {
				return false, fmt.Errorf("a sender of region %d: %+v", s.home, st)
			}
		}
		return true, nil
	})
}

// copiesOf counts the manifests of the senders' batches in regions that do not count them, and the bytes of their frames, once each batch
// is counted somewhere: reconcilers enter what a collector that died had begun.
func copiesOf(ctx context.Context, r *cluster.Regions, all []*preferring) (n int, size uint64, err error) {
	var homes load.Homes
	err = cluster.Poll(ctx, "each batch to be counted", func() (bool, error) {
		var err error
		if homes, err = load.ReadHomes(ctx, r, func(identity.Boot) bool { return true }); err != nil {
			return false, err
		}
		for _, s := range all {
			s.mu.Lock()
			ids := slices.Collect(maps.Keys(s.frames))
			s.mu.Unlock()
			for _, id := range ids {
				if at := homes.Of(id); len(at) != 1 {
					return false, fmt.Errorf("%s is counted by %v", id, at)
				}
			}
		}
		return true, nil
	})
	if err != nil {
		return 0, 0, err
	}
	for _, s := range all {
		boot, _, _ := s.queue.Boot()
		for i, c := range r.Of {
			store, err := c.OpenStore(ctx)
			if err != nil {
				return 0, 0, err
			}
			for o, err := range objstore.List(ctx, store, objstore.ListOptions{Prefix: layout.AcceptedBoot(boot)}) {
				if err != nil {
					return 0, 0, err
				}
				id, err := layout.ParseAccepted(o.Key)
				if err != nil {
					return 0, 0, err
				}
				if slices.Contains(homes.Of(id), r.Names[i]) {
					continue
				}
				b, _, err := store.Get(ctx, o.Key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
				if err != nil {
					return 0, 0, err
				}
				m, err := accept.ParseManifest(b)
				if err != nil {
					return 0, 0, err
				}
				if m.FrameSHA256 != identity.Sum(s.frames[id]) {
					return 0, 0, errors.New("a manifest of " + id.String() + " has another frame")
				}
				n++
				size += m.FrameBytes
			}
		}
	}
	return n, size, nil
}
