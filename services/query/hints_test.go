package query_test

import (
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
	"lightmetrics.dev/lightmetrics/services/query"
)

// hinter sends what it is given to its watchers.
type hinter struct {
	journalv1.UnimplementedJournalServiceServer
	addr string
	send chan *journalv1.WatchJournalResponse
	on   chan struct{} // one for each watch
	// read answers ReadFrames; nil is a service that has no frames.
	read func(asked [][]byte, s grpc.ServerStreamingServer[journalv1.ReadFramesResponse]) error
}

func (h *hinter) ReadFrames(req *journalv1.ReadFramesRequest, s grpc.ServerStreamingServer[journalv1.ReadFramesResponse]) error {
	if h.read == nil {
		return h.UnimplementedJournalServiceServer.ReadFrames(req, s)
	}
	return h.read(req.GetFrameSha256(), s)
}

func startHinter(t *testing.T) *hinter {
	h := &hinter{send: make(chan *journalv1.WatchJournalResponse), on: make(chan struct{}, 10)}
	gs := grpc.NewServer()
	journalv1.RegisterJournalServiceServer(gs, h)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- gs.Serve(l) }()
	t.Cleanup(func() { gs.Stop(); <-served })
	return h
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
		case m := <-h.send:
			if m == nil {
				return nil // the watch is cut
			}
			if err := s.Send(m); err != nil {
				return err
			}
		}
	}
}

// slowPolls makes polls as rare as they may be.
func slowPolls(c *query.Config) {
	c.Follow.PollInterval, c.Follow.IdleInterval, c.StaleAfter = time.Hour, time.Hour, 3*time.Hour
}

func TestWatchShowsBatchesWithoutAPoll(t *testing.T) {
	h, a := startHinter(t), newAuthority(t)
	w := a.writer("c1", journal.RoleCollector)
	now := time.Now()
	first := w.accept(a.build(host, 1, now, point{"up", 1, now.Add(-2 * time.Second)}))
	n := start(t, a, func(c *query.Config) {
		slowPolls(c)
		c.Follow.Watch = []string{h.addr}
	})
	<-n.Complete()
	<-h.on
	eventually(t, "the poll when the watch is on", func() bool { return n.number("lightmetrics_query_journal_polls_total{outcome=\"ok\"}") >= 2 })
	second := w.accept(a.build(host, 2, now, point{"up", 1, now.Add(-time.Second)}))
	h.send <- &journalv1.WatchJournalResponse{Position: "nonsense"}
	for _, at := range []journal.Position{second, second, first} { // hints repeat, in any order
		h.send <- &journalv1.WatchJournalResponse{Position: at.String()}
	}
	eventually(t, "the hinted batch", func() bool { return n.value("sum(sum_over_time(up[1m]))") == "2" })

	// What is accepted while the watch is down is found when it ends.
	w.accept(a.build(host, 3, now.Add(time.Second), point{"up", 5, now}))
	h.send <- nil
	eventually(t, "the batch without a hint", func() bool { return n.value("sum(sum_over_time(up[1m]))") == "7" })
	<-h.on
	// A run that no poll has found is found by one.
	at := a.writer("c2", journal.RoleCollector).accept(a.build(host, 4, now, point{"up", 9, now.Add(time.Millisecond)}))
	h.send <- &journalv1.WatchJournalResponse{Position: at.String()}
	eventually(t, "the batch of a new run", func() bool { return n.value("sum(sum_over_time(up[1m]))") == "16" })
}

// TestSpoolingCollectorsAreNamed: while a collector that accepts on its own disk may hold batches, answers are
// partial and name it; unless its watch says that everything has landed.
func TestSpoolingCollectorsAreNamed(t *testing.T) {
	h, a := startHinter(t), newAuthority(t)
	now := time.Now()
	w := a.writer("spooler-7", journal.RoleSpooler)
	if _, err := w.w.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	plain := start(t, a, nil)
	<-plain.Complete()
	watching := start(t, a, func(c *query.Config) { c.Follow.Watch = []string{h.addr} })
	<-watching.Complete()
	<-h.on
	marked := func(n *node) bool {
		e := n.get("/api/v1/query", "query", "up")
		return e.Lightmetrics.Partial && has(e.Lightmetrics.Reasons, "LOCAL_SPOOL") && has(e.Lightmetrics.Reasons, "spooler-7")
	}
	if !marked(plain) || !marked(watching) {
		t.Error("a spooler that has not landed anything is not named")
	}
	at := w.accept(a.build(host, 1, now, point{"up", 1, now}))
	h.send <- &journalv1.WatchJournalResponse{Position: at.String()} // as a reconciler hints, which knows nothing of a spool
	watching.polls(2)
	if !marked(watching) {
		t.Error("a hint that is not the collector's own says that it has landed everything")
	}
	h.send <- &journalv1.WatchJournalResponse{Writer: "spooler-7", Unlanded: 1}
	h.send <- &journalv1.WatchJournalResponse{Writer: "spooler-7", Position: at.String()}
	eventually(t, "everything has landed", func() bool { return !marked(watching) })
	if !marked(plain) {
		t.Error("the node that does not watch is not marked")
	}
	h.send <- &journalv1.WatchJournalResponse{Writer: "spooler-7", Unlanded: 3}
	eventually(t, "it holds batches again", func() bool { return marked(watching) })
	h.send <- &journalv1.WatchJournalResponse{Writer: "spooler-7"}
	eventually(t, "and has landed them", func() bool { return !marked(watching) })
	h.send <- nil
	eventually(t, "the watch is cut", func() bool { return marked(watching) })
	<-h.on
	if err := w.w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*node{plain, watching} {
		eventually(t, "its run is closed", func() bool { return !n.get("/api/v1/query", "query", "up").Lightmetrics.Partial })
	}
}
