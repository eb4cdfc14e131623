package follow

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/layout"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// watched is one watch: what is sent on it, and how it ends.
type watched struct {
	stream grpc.ServerStreamingServer[reconcilerv1.WatchAcceptedResponse]
	end    chan error
}

// reconciler hands its watches to the test.
type reconciler struct {
	reconcilerv1.UnimplementedReconcilerServiceServer
	t       *testing.T
	addr    string
	server  *grpc.Server
	served  chan error
	watches chan *watched
}

func startReconciler(t *testing.T) *reconciler {
	r := &reconciler{t: t, addr: "127.0.0.1:0", watches: make(chan *watched, 16)}
	r.start()
	t.Cleanup(r.stop)
	return r
}

// start serves at the address that it had before.
func (r *reconciler) start() {
	l, err := net.Listen("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.addr, r.server, r.served = l.Addr().String(), grpc.NewServer(), make(chan error, 1)
	reconcilerv1.RegisterReconcilerServiceServer(r.server, r)
	go func() { r.served <- r.server.Serve(l) }()
}

// stop cuts every watch.
func (r *reconciler) stop() {
	r.server.Stop()
	<-r.served
}

func (r *reconciler) WatchAccepted(_ *reconcilerv1.WatchAcceptedRequest, s grpc.ServerStreamingServer[reconcilerv1.WatchAcceptedResponse]) error {
	w := &watched{s, make(chan error, 1)}
	r.watches <- w
	select {
	case err := <-w.end:
		return err
	case <-s.Context().Done():
		return s.Context().Err()
	}
}

func (r *reconciler) watch() *watched {
	r.t.Helper()
	select {
	case w := <-r.watches:
		return w
	case <-time.After(time.Minute):
		r.t.Fatal("nobody watches")
		return nil
	}
}

// on sends the message that the watch is on; hint, one of a batch.
func (w *watched) on(t *testing.T) { w.send(t, &reconcilerv1.WatchAcceptedResponse{}) }
func (w *watched) hint(t *testing.T, b *batch) {
	w.send(t, &reconcilerv1.WatchAcceptedResponse{ManifestKey: b.key(), Manifest: b.manifest.Marshal()})
}

func (w *watched) send(t *testing.T, m *reconcilerv1.WatchAcceptedResponse) {
	t.Helper()
	if err := w.stream.Send(m); err != nil {
		t.Fatal(err)
	}
}

// followed runs a follower that relies on the watch: neither polls nor audits come by themselves.
func followed(t *testing.T, seed uint64, r *reconciler) *world {
	t.Logf("seed %d", seed)
	w := newWorld(t, seed, time.Time{})
	w.cfg.AuditInterval, w.cfg.FullAuditInterval, w.cfg.PollInterval, w.cfg.Snapshots = time.Hour, 0, 0, false
	w.cfg.Fetchers, w.cfg.Watch = 4, []string{r.addr}
	w.restart()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.follow.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v", err)
		}
	})
	return w
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within a minute", what)
		}
	}
}

func (w *world) shows(batches ...*batch) func() bool {
	return func() bool {
		shown := w.shown()
		return !slices.ContainsFunc(batches, func(b *batch) bool { return shown[b.ms[0]] == 0 })
	}
}

// quiet waits until no audit runs or is asked for: of audits that were, one may run and one wait.
func (w *world) quiet() {
	w.t.Helper()
	for range 2 {
		since := time.Now()
		w.follow.auditSoon()
		w.eventually("an audit", func() bool { return w.follow.Status().CompleteThrough.After(since) })
	}
}

// TestWatchInAnyOrder: hints come shuffled and again, some with the bytes of another batch;
// each batch is shown, once.
func TestWatchInAnyOrder(t *testing.T) {
	r := startReconciler(t)
	w := followed(t, 21, r)
	s := r.watch()
	s.on(t)
	w.eventually("the first audit", func() bool { return !w.follow.Status().CompleteThrough.IsZero() })
	for range 60 {
		w.accept(false)
	}
	hints := append(slices.Clone(w.batches), w.batches...)
	w.rnd.Shuffle(len(hints), func(i, j int) { hints[i], hints[j] = hints[j], hints[i] })
	for i, b := range hints {
		if i%10 == 0 {
			s.send(t, &reconcilerv1.WatchAcceptedResponse{ManifestKey: b.key(), Manifest: hints[len(hints)-1].manifest.Marshal()})
		}
		s.hint(t, b)
	}
	w.eventually("all batches", w.shows(w.batches...))
	w.check("hints in any order")
}

// TestLostHintsAreFoundWhenTheWatchIsOn: what was accepted while no watch was on - it was
// cut, or the reconciler was restarted - is found by the audit that the next one begins with.
func TestLostHintsAreFoundWhenTheWatchIsOn(t *testing.T) {
	r := startReconciler(t)
	w := followed(t, 22, r)
	s := r.watch()
	s.on(t)
	w.eventually("the first audit", func() bool { return !w.follow.Status().CompleteThrough.IsZero() })
	shown := w.accept(false)
	s.hint(t, shown)
	w.eventually("the hinted batch", w.shows(shown))

	for _, end := range []func(){
		func() { s.end <- status.Error(codes.ResourceExhausted, "LAGGED") },
		func() { s.end <- nil },
		func() { r.stop(); r.start() },
	} {
		w.quiet()
		since := time.Now()
		end()
		s = r.watch()
		// The audit that the cut began is done: it can't find what comes now.
		w.eventually("the audit after the cut", func() bool { return w.follow.Status().CompleteThrough.After(since) })
		lost := w.accept(false)
		w.check("a batch without a hint")
		if w.shows(lost)() {
			t.Fatal("it was found without a hint, and before the watch was on")
		}
		s.on(t)
		w.eventually("the batch without a hint", w.shows(lost))
		next := w.accept(false)
		s.hint(t, next)
		w.eventually("the watch continues", w.shows(next))
	}
	w.check("in the end")
}

// TestSlowFollowerLosesNothing: more hints come than wait, while the store does not answer; the stream is
// not read on, complete_through stays, and all are shown when the store is back.
func TestSlowFollowerLosesNothing(t *testing.T) {
	r := startReconciler(t)
	w := followed(t, 23, r)
	s := r.watch()
	s.on(t)
	b := w.accept(false)
	s.hint(t, b)
	w.eventually("the watch is on", w.shows(b))
	w.quiet()
	for range 300 {
		w.accept(false)
	}
	w.fail("raw-blobs/")
	for range 6 { // each fails: an error is no record of anything
		for _, b := range w.batches {
			s.hint(t, b)
		}
	}
	through := w.follow.Status().CompleteThrough
	w.follow.auditSoon()
	w.eventually("the audit fails", func() bool { return w.follow.Status().AuditError != nil })
	if st := w.follow.Status(); !st.CompleteThrough.Equal(through) || st.Unread != 0 {
		t.Errorf("the store does not answer: %+v", st)
	}
	w.check("the store does not answer")
	w.fail("")
	// An audit may still join the take of a hint that has failed already, and fails with it:
	// the next one, which follow.audit_interval brings in a service, does not.
	w.eventually("an audit that succeeds", func() bool {
		if w.follow.Status().AuditError == nil {
			return true
		}
		w.follow.auditSoon()
		return false
	})
	w.eventually("all batches", w.shows(w.batches...))
	w.check("the store is back")
}

// TestPollReadsManifestsNotWhatIsDerived: a derived key with other bytes shows only what was accepted.
func TestPollReadsManifestsNotWhatIsDerived(t *testing.T) {
	w := newWorld(t, 24, time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC))
	b, never := w.accept(false), w.accept(false)
	w.must(w.store.Delete(t.Context(), never.key()))
	w.batches = w.batches[:1]
	w.put(layout.AcceptedByTime(b.manifest.AcceptedTime(), b.manifest.Identity), b.manifest.Marshal())
	w.put(layout.AcceptedByTime(never.manifest.AcceptedTime(), never.manifest.Identity), never.manifest.Marshal())
	w.put(layout.AcceptedByTimeHour(b.at)+"nonsense", []byte("{"))
	if err := w.follow.Poll(t.Context()); err == nil {
		t.Error("a derived key of what is not there was seen through")
	}
	if !w.shows(b)() {
		t.Error("the batch is not shown")
	}
	w.check("poll")
	if !w.follow.Status().CompleteThrough.IsZero() {
		t.Error("a poll proves nothing")
	}
}
