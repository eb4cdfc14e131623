package arrivals

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
)

const authority = "a"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a store with a journal of one writer, and a hub over it.
type world struct {
	t     *testing.T
	store *fault.Store
	w     *journal.Writer
	hub   *Hub
}

func newWorld(t *testing.T, change func(*Config)) *world {
	w := &world{t: t, store: fault.New(mem.New(time.Now), 1)}
	w.w = w.writer()
	c := Config{Store: w.store, Authority: authority, Shards: 2, Interval: time.Hour, Idle: 2 * time.Hour, MaxQueued: 100,
		Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&c)
	}
	w.hub = New(c)
	return w
}

func (w *world) writer() *journal.Writer {
	out, err := journal.NewWriter(journal.WriterConfig{Store: w.store, Rand: cryptorand.Reader, Clock: func() int64 { return time.Now().UnixNano() },
		Opening: journal.Opening{Writer: "c", Role: journal.RoleCollector, Authority: authority}})
	must(w.t, err)
	return out
}

// agents of shards 0 and 1.
var agents = func() (out [2]string) {
	for i := range 100 {
		a := fmt.Sprint("agent-", i)
		out[shard.Of(a, 2)] = a
	}
	return out
}()

// of is batch n of the shard's agent.
func of(id shard.ID, n uint64) identity.Batch {
	return identity.Batch{Agent: agents[id], Boot: "b", SeqStart: n, SeqEnd: n}
}

// enter writes a segment, and gives its position.
func (w *world) enter(by *journal.Writer, ids ...identity.Batch) journal.Position {
	w.t.Helper()
	for _, id := range ids {
		_, err := by.Add(journal.Entry{ID: id, Outcome: journal.Accepted, SHA256: identity.Sum([]byte(id.String())), Bytes: 1, At: 1, MinTime: 1, MaxTime: 1})
		must(w.t, err)
	}
	at, _, err := by.Flush(w.t.Context())
	must(w.t, err)
	return at
}

func (w *world) poll() {
	w.t.Helper()
	_, err := w.hub.Poll(w.t.Context())
	must(w.t, err)
}

// fold folds everything, and deletes the segments.
func (w *world) fold() {
	w.t.Helper()
	f, err := journal.NewFolder(journal.FolderConfig{Store: w.store, Rand: cryptorand.Reader})
	must(w.t, err)
	from, err := f.Load(w.t.Context())
	must(w.t, err)
	follower, err := journal.NewFollower(journal.FollowerConfig{Store: w.store, Authority: authority, From: from,
		Segment: func(_ context.Context, s *journal.Segment) error { return f.Add(s) }, Folded: func(context.Context, []journal.Entry) error { return nil }})
	must(w.t, err)
	_, err = follower.Poll(w.t.Context())
	must(w.t, err)
	for i := range int64(3) {
		_, err := f.Fold(w.t.Context(), i)
		must(w.t, err)
	}
}

func ids(batches []accepted.Batch) (out []identity.Batch) {
	for _, b := range batches {
		out = append(out, b.Identity)
	}
	return out
}

// takes wants what Take gives: batches, or positions through which everything was given.
func (w *world) takes(q *Queue, n int, want ...identity.Batch) {
	w.t.Helper()
	got, through, lost := q.Take(n)
	if lost || through != nil || !slices.Equal(ids(got), want) {
		w.t.Fatalf("%v, positions %v, lost %v; want %v", ids(got), through, lost, want)
	}
}

func (w *world) marked(q *Queue) journal.Positions {
	w.t.Helper()
	got, through, lost := q.Take(9)
	if through == nil || lost || len(got) > 0 {
		w.t.Fatalf("%v, positions %v, lost %v; want positions", ids(got), through, lost)
	}
	return *through
}

// A queue has the batches of its shard, and positions stand behind everything that they cover, and before what they do not.
func TestPositionsStandBetweenBatches(t *testing.T) {
	w := newWorld(t, nil)
	var seen []identity.Batch
	q := w.hub.Open(0, func(b []accepted.Batch) { seen = append(seen, ids(b)...) })
	other := w.hub.Open(1, nil)
	w.enter(w.w, of(0, 1), of(1, 1), of(0, 2))
	w.poll()
	first := w.hub.follower.Positions()
	w.enter(w.w, of(0, 3))
	w.poll()
	w.takes(q, 1, of(0, 1))
	w.takes(q, 9, of(0, 2)) // not beyond the positions
	if p := w.marked(q); !slices.Equal(p.Runs, first.Runs) {
		t.Errorf("positions %v, want %v", p, first)
	}
	w.takes(q, 9, of(0, 3))
	if p := w.marked(q); slices.Equal(p.Runs, first.Runs) {
		t.Error("positions did not move")
	}
	w.takes(q, 9)
	w.takes(other, 9, of(1, 1))
	if !slices.Equal(seen, []identity.Batch{of(0, 1), of(0, 2), of(0, 3)}) {
		t.Errorf("the sink has seen %v", seen)
	}
	q.Close()
	w.enter(w.w, of(0, 4))
	w.poll()
	if _, ok := w.hub.queues[0]; ok || len(seen) != 3 {
		t.Error("a queue that was closed is given batches")
	}
}

// Where there is no room, what arrived is forgotten, its owner learns it before anything else, and no positions that
// cover it are given. Others keep theirs.
func TestAQueueWithoutRoom(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxQueued = 3 })
	q, other := w.hub.Open(0, nil), w.hub.Open(1, nil)
	w.enter(w.w, of(1, 1))
	w.poll()
	w.enter(w.w, of(0, 1), of(0, 2))
	w.poll()
	w.enter(w.w, of(0, 3), of(0, 4))
	w.poll()
	if got, through, lost := q.Take(9); !lost || through != nil || len(got) > 0 {
		t.Fatalf("%v, %v, lost %v", ids(got), through, lost)
	}
	w.takes(q, 9)
	w.enter(w.w, of(0, 5), of(0, 6)) // the others were given back
	w.poll()
	w.takes(q, 9, of(0, 5), of(0, 6))
	w.marked(q)
	w.takes(other, 9, of(1, 1))
	if w.hub.queued != 0 {
		t.Errorf("%d batches are counted", w.hub.queued)
	}
}

// An older copy of the bucket: everybody has to catch up, and the journal is read from its beginning.
func TestTheJournalWentBack(t *testing.T) {
	w := newWorld(t, nil)
	q := w.hub.Open(0, nil)
	w.enter(w.w, of(0, 1))
	w.fold()
	old, _, err := w.store.Get(t.Context(), layout.JournalHeadKey, objstore.GetOptions{})
	must(t, err)
	w.enter(w.w, of(0, 2))
	w.fold()
	w.enter(w.w, of(0, 3))
	w.poll()
	_, err = w.store.Put(t.Context(), layout.JournalHeadKey, old, objstore.PutOptions{})
	must(t, err)
	if _, err := w.hub.Poll(t.Context()); !errors.Is(err, journal.ErrHeadWentBack) {
		t.Fatalf("error %v", err)
	}
	if _, _, lost := q.Take(9); !lost {
		t.Error("the queue keeps what the bucket may not have")
	}
	if w.hub.follower != nil {
		t.Error("the follower goes on")
	}
}

// Shards that begin together share one reading of the journal, each from its own positions, and each gets what is its
// own: of files and of segments. One that fails is no failure of the others.
func TestShardsCatchUpTogether(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Gather = 200 * time.Millisecond })
	w.enter(w.w, of(0, 1), of(1, 1))
	w.fold()
	w.poll()
	from := w.hub.follower.Positions()
	w.enter(w.w, of(0, 2), of(1, 2))
	w.fold()
	w.enter(w.w, of(0, 3), of(1, 3))
	type result struct {
		got []identity.Batch
		to  journal.Positions
		err error
	}
	failed := errors.New("no room")
	results := make([]result, 4)
	ended, end := context.WithCancel(t.Context())
	end()
	lists := w.store.Count("list", "")
	var wg sync.WaitGroup
	for i, c := range []struct {
		ctx  context.Context
		of   shard.ID
		from journal.Positions
		err  error
	}{{t.Context(), 0, from, nil}, {t.Context(), 1, journal.Positions{}, nil}, {t.Context(), 1, from, failed}, {ended, 1, from, nil}} {
		wg.Go(func() {
			r := &results[i]
			r.to, r.err = w.hub.CatchUp(c.ctx, c.of, c.from, func(b []accepted.Batch) error {
				r.got = append(r.got, ids(b)...)
				return c.err
			})
			slices.SortFunc(r.got, identity.Batch.Compare)
			r.got = slices.Compact(r.got)
		})
		joined := func() int {
			w.hub.gathering.Lock()
			defer w.hub.gathering.Unlock()
			if w.hub.waiting == nil {
				return len(results)
			}
			return len(w.hub.waiting.of)
		}
		for joined() <= i {
			time.Sleep(time.Millisecond)
		}
	}
	wg.Wait()
	if n := w.store.Count("list", "") - lists; n > 4 { // a first poll lists twice, and starts again behind a head
		t.Errorf("%d listings", n)
	}
	// The reading begins at the earliest positions, so a shard may be given more than it asked for, and never less.
	if r := results[0]; r.err != nil || !slices.Contains(r.got, of(0, 2)) || !slices.Contains(r.got, of(0, 3)) || len(r.to.Runs) != 1 {
		t.Errorf("%+v", r)
	}
	if r := results[1]; r.err != nil || !slices.Equal(r.got, []identity.Batch{of(1, 1), of(1, 2), of(1, 3)}) {
		t.Errorf("%+v", r)
	}
	if r := results[2]; !errors.Is(r.err, failed) {
		t.Errorf("%+v", r)
	}
	if r := results[3]; !errors.Is(r.err, context.Canceled) {
		t.Errorf("%+v", r)
	}
	// What comes while a shard catches up is in its queue.
	q := w.hub.Open(0, nil)
	w.enter(w.w, of(0, 4))
	w.poll()
	got, _, _ := q.Take(99)
	if !slices.Contains(ids(got), of(0, 4)) {
		t.Errorf("queued %v", ids(got))
	}
	// A reading that fails proves nothing.
	w.store.Add(fault.Refused("get", layout.JournalPrefix, objstore.ErrDenied))
	if to, err := w.hub.CatchUp(t.Context(), 0, from, func([]accepted.Batch) error { return nil }); err == nil || len(to.Runs) > 0 {
		t.Errorf("%v, %v", to, err)
	}
}

// hinter sends what it is given to its one watcher.
type hinter struct {
	journalv1.UnimplementedJournalServiceServer
	send   chan string // "": the watch is cut
	on     chan struct{}
	writer string // of a collector
	// frames are what it has in memory, and asked the hashes that it was asked for.
	frames map[identity.Digest][]byte
	asked  chan []identity.Digest
}

// startHinter serves until the test ends.
func startHinter(t *testing.T, h *hinter) (addr string) {
	gs := grpc.NewServer()
	journalv1.RegisterJournalServiceServer(gs, h)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- gs.Serve(l) }()
	t.Cleanup(func() { gs.Stop(); <-served })
	return l.Addr().String()
}

func (h *hinter) ReadFrames(req *journalv1.ReadFramesRequest, s grpc.ServerStreamingServer[journalv1.ReadFramesResponse]) error {
	m := &journalv1.ReadFramesResponse{}
	var asked []identity.Digest
	for i, sum := range req.GetFrameSha256() {
		asked = append(asked, identity.Digest(sum))
		f := h.frames[identity.Digest(sum)]
		m.Pieces = append(m.Pieces, &journalv1.FramePiece{Index: uint32(i), Data: f, Missing: f == nil})
	}
	err := s.Send(m)
	h.asked <- asked
	return err
}

func (h *hinter) WatchJournal(_ *journalv1.WatchJournalRequest, s grpc.ServerStreamingServer[journalv1.WatchJournalResponse]) error {
	if err := s.Send(&journalv1.WatchJournalResponse{}); err != nil {
		return err
	}
	h.on <- struct{}{}
	for {
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case at := <-h.send:
			if at == "" {
				return nil
			}
			if err := s.Send(&journalv1.WatchJournalResponse{Position: at, Writer: h.writer}); err != nil {
				return err
			}
		}
	}
}

// Hints are followed without a poll, at a run that nobody knows with one; polls are idle apart while every watch is on.
func TestHintsAreFollowed(t *testing.T) {
	h := &hinter{send: make(chan string), on: make(chan struct{}, 9)}
	addr := startHinter(t, h)
	w := newWorld(t, func(c *Config) { c.Watch = []string{addr} })
	q := w.hub.Open(0, nil)
	w.enter(w.w, of(0, 1))
	if d := w.hub.pause(time.Second, nil); d != time.Second {
		t.Errorf("pause of %v without a watch", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { _ = w.hub.Run(ctx) })
	wg.Go(func() { _ = w.hub.Watch(ctx, addr, rpc.ClientConfig{}) })
	arrives := func(want identity.Batch) {
		t.Helper()
		for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if got, _, _ := q.Take(9); slices.Contains(ids(got), want) {
				return
			}
		}
		t.Fatalf("%v does not arrive", want)
	}
	arrives(of(0, 1))
	<-h.on
	for !w.hub.watches.all() {
		time.Sleep(time.Millisecond)
	}
	if d := w.hub.pause(time.Second, nil); d != 2*time.Hour {
		t.Errorf("pause of %v while hints come", d)
	}
	if d := w.hub.pause(time.Second, errors.New("")); d != time.Second {
		t.Errorf("pause of %v after a failure", d)
	}
	w.enter(w.w, of(0, 2))
	at := w.enter(w.w, of(0, 3))
	h.send <- "nonsense"
	h.send <- at.String()
	arrives(of(0, 3))
	if got := w.hub.follower.Runs(); len(got) != 1 || got[0].Next != at.Segment+1 {
		t.Errorf("read through %+v", got)
	}
	// A poll of when the watch began may have found these.
	at = w.enter(w.w, of(0, 6))
	h.send <- at.String()
	arrives(of(0, 6))
	at = w.enter(w.writer(), of(0, 4))
	h.send <- at.String()
	arrives(of(0, 4))
	w.enter(w.w, of(0, 5)) // without a hint
	h.send <- ""
	arrives(of(0, 5))
}
