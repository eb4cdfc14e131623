package query_test

import (
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/layout"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
	"lightmetrics.dev/lightmetrics/services/query"
)

// reconciler sends what it is given to its watchers.
type reconciler struct {
	reconcilerv1.UnimplementedReconcilerServiceServer
	send chan *reconcilerv1.WatchAcceptedResponse
	on   chan struct{} // one for each watch
}

func (r *reconciler) WatchAccepted(_ *reconcilerv1.WatchAcceptedRequest, s grpc.ServerStreamingServer[reconcilerv1.WatchAcceptedResponse]) error {
	if err := s.Send(&reconcilerv1.WatchAcceptedResponse{}); err != nil {
		return err
	}
	r.on <- struct{}{}
	for {
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case m := <-r.send:
			if m == nil {
				return nil // the watch is cut
			}
			if err := s.Send(m); err != nil {
				return err
			}
		}
	}
}

func TestWatchShowsBatchesWithoutAnAudit(t *testing.T) {
	r := &reconciler{send: make(chan *reconcilerv1.WatchAcceptedResponse), on: make(chan struct{}, 10)}
	gs := grpc.NewServer()
	reconcilerv1.RegisterReconcilerServiceServer(gs, r)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- gs.Serve(l) }()
	defer func() { gs.Stop(); <-served }()

	a := newAuthority(t)
	n := start(t, a, func(c *query.Config) {
		c.Follow.AuditInterval, c.StaleAfter = time.Hour, 2*time.Hour
		c.Follow.Watch = []string{l.Addr().String()}
	})
	<-n.Complete()
	<-r.on
	now := time.Now()
	b := a.build(host, 1, now, point{"up", 1, now})
	a.accept(b)
	msg := &reconcilerv1.WatchAcceptedResponse{ManifestKey: layout.Accepted(b.manifest.Identity), Manifest: b.manifest.Marshal()}
	r.send <- &reconcilerv1.WatchAcceptedResponse{ManifestKey: "nonsense"}
	r.send <- msg
	r.send <- msg // hints repeat
	eventually(t, "the hinted batch", func() bool { return n.value("sum(up)") == "1" })

	// What is accepted while the watch is down is found when it ends.
	a.accept(a.build(host, 2, now.Add(time.Second), point{"up", 5, now.Add(-time.Second)}))
	r.send <- nil
	eventually(t, "the batch without a hint", func() bool { return n.value("sum_over_time(up[1m])") == "6" })
	<-r.on
}

func TestPollFindsDerivedKeys(t *testing.T) {
	a := newAuthority(t)
	n := start(t, a, func(c *query.Config) {
		c.Follow.AuditInterval, c.StaleAfter = time.Hour, 2*time.Hour
		c.Follow.PollInterval = 10 * time.Millisecond
	})
	<-n.Complete()
	now := time.Now()
	b := a.build(host, 1, now, point{"up", 1, now})
	a.accept(b)
	a.put(layout.AcceptedByTime(now, b.manifest.Identity), b.manifest.Marshal())
	eventually(t, "the derived key", func() bool { return n.value("up") == "1" })
}
