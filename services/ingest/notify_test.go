package ingest_test

import (
	"errors"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// hints is a reconciler that only takes notifications.
type hints struct {
	reconcilerv1.UnimplementedReconcilerServiceServer
	got chan *reconcilerv1.NotifyAcceptedRequest
}

func (h *hints) NotifyAccepted(s grpc.ClientStreamingServer[reconcilerv1.NotifyAcceptedRequest, reconcilerv1.NotifyAcceptedResponse]) error {
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&reconcilerv1.NotifyAcceptedResponse{})
		}
		if err != nil {
			return err
		}
		h.got <- m
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
	h := &hints{got: make(chan *reconcilerv1.NotifyAcceptedRequest, 100)}
	reconcilerv1.RegisterReconcilerServiceServer(g, h)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	defer func() { g.Stop(); <-served }()

	c := start(t, newStore(), func(c *ingest.Config) {
		c.Notify.Addresses = []string{dead.Addr().String(), l.Addr().String()}
		c.Notify.Queue = 8
	})
	s, _ := c.mustOpen(t, boot, 0)
	keys := map[string]bool{}
	for i := range uint64(20) {
		f := encode(t, boot, i*5, 5, 0)
		keys[s.ask(f).GetAcceptance().GetManifestKey()] = true
		s.ask(f) // a duplicate tells nobody
		m := <-h.got
		manifest, err := accept.ParseManifest(m.GetManifest())
		if err != nil || !keys[m.GetManifestKey()] || manifest.Identity.SeqStart != i*5 {
			t.Fatalf("notification %d: %v, %v", i, m, err)
		}
	}
	s.done()
	if len(h.got) != 0 {
		t.Errorf("%d notifications too many", len(h.got))
	}
}
