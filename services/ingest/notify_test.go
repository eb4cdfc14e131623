package ingest_test

import (
	"errors"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc"

	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// hints is a reconciler that only takes notifications.
type hints struct {
	journalv1.UnimplementedJournalServiceServer
	got chan string
}

func (h *hints) NotifyJournal(s grpc.ClientStreamingServer[journalv1.NotifyJournalRequest, journalv1.NotifyJournalResponse]) error {
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&journalv1.NotifyJournalResponse{})
		}
		if err != nil {
			return err
		}
		h.got <- m.GetPosition()
	}
}

func TestReconcilersAreTold(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close() // one reconciler is down: nothing may wait for it
	g := grpc.NewServer()
	h := &hints{got: make(chan string, 100)}
	journalv1.RegisterJournalServiceServer(g, h)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	defer func() { g.Stop(); <-served }()

	c := start(t, newStore(), func(c *ingest.Config) {
		c.Notify.Addresses = []string{dead.Addr().String(), l.Addr().String()}
		c.Notify.Queue = 8
	})
	s, _ := c.mustOpen(t, boot, 0)
	for i := range uint64(20) {
		if at, told := s.ask(encode(t, boot, i*5, 5, 0)).GetAcceptance().GetJournalPosition(), <-h.got; at == "" || at != told {
			t.Fatalf("batch %d stands at %q, the hint is at %q", i, at, told)
		}
	}
	s.done()
	if len(h.got) != 0 {
		t.Errorf("%d notifications too many", len(h.got))
	}
}
