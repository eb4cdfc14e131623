package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/shard"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

const (
	// firstAnswer bounds the wait for registered on a new stream.
	firstAnswer = 5 * time.Second
	// againMin and againMax bound the wait before the next stream.
	againMin, againMax = 50 * time.Millisecond, 2 * time.Second
	// tickEvery is how often the renewal of the lease is checked.
	tickEvery = 100 * time.Millisecond
	// restartAfter is the wait before a shard is released whose work returned by itself, so that failing work does
	// not move shards in a tight loop.
	restartAfter = time.Second
	// goodbye bounds the wait for the coordinator to end the session.
	goodbye = 2 * time.Second
)

// holding is a shard that the worker was granted in this session.
type holding struct {
	grant    Grant
	cancel   context.CancelCauseFunc
	finished chan struct{}
	over     bool // the work has returned and the release was sent
}

// runner is one Run. Only loop uses its fields, so they need no lock.
type runner struct {
	o     *Owner
	work  ShardFunc
	group *run.Group
	base  context.Context // of leases; outlives the caller's context, for the drain

	lease    *lease
	ttl      time.Duration
	stream   *stream
	address  int
	failures int
	backoff  *run.Backoff
	retry    *time.Timer

	held     map[shard.ID]*holding
	seen     map[shard.ID]uint64        // greatest epoch that this session knows
	running  map[shard.ID]chan struct{} // closed when the last Work on the shard has returned
	finished chan *holding
	active   int
	draining bool
}

// Run owns shards until ctx ends. Then it releases them, waits for work to return within the drain timeout, and
// ends the session. work runs once at a time for each shard, in its own goroutine. An error means that the worker
// can never own anything as it is configured, that work panicked, or that it did not return.
func (o *Owner) Run(ctx context.Context, work ShardFunc) error {
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	r := &runner{o: o, work: work, group: run.NewGroup(base), base: base, backoff: run.NewBackoff(againMin, againMax), retry: time.NewTimer(0),
		held: map[shard.ID]*holding{}, seen: map[shard.ID]uint64{}, running: map[shard.ID]chan struct{}{}, finished: make(chan *holding)}
	defer r.retry.Stop()
	err := r.loop(ctx)
	if r.stream != nil {
		r.stream.close()
	}
	if r.lease != nil {
		r.lease.end(ErrDraining)
	}
	if r.active > 0 { // work that ignores its context is not waited for
		return errors.Join(err, fmt.Errorf("owner: work on %d shards did not return within %s", r.active, o.cfg.DrainTimeout))
	}
	return errors.Join(err, r.group.Wait())
}

func (r *runner) loop(ctx context.Context) error {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	var drained <-chan time.Time
	done := ctx.Done()
	for {
		// Receiving from a nil channel blocks for ever, so cases without a stream or a lease are never chosen.
		var in chan *coordinatorv1.OwnResponse
		var ended chan error
		if r.stream != nil {
			in, ended = r.stream.in, r.stream.ended
		}
		var expired <-chan struct{}
		if r.lease != nil {
			expired = r.lease.ctx.Done()
		}
		select {
		case m := <-in:
			r.message(m)
		case err := <-ended:
			if err := r.streamEnded(err); err != nil {
				r.stopAll(ErrLost)
				return err
			}
		case <-expired:
			r.o.log.Warn("the lease has ended; every shard is lost", "cause", context.Cause(r.lease.ctx))
			// The stream belongs to the session that ended; the next one registers without its token.
			r.closeStream()
			r.endLease(ErrLeaseExpired)
		case h := <-r.finished:
			r.ended(h)
		case <-r.retry.C:
			if !r.draining {
				r.connect()
			}
		case <-tick.C:
			r.renew()
		case <-r.group.Context().Done(): // work panicked
			r.stopAll(ErrLost)
			return nil
		case <-done:
			done = nil // a closed channel would be chosen in every round
			drained = time.After(r.o.cfg.DrainTimeout)
			r.drain()
		case <-drained:
			return nil
		}
		if r.draining && r.active == 0 {
			r.leave()
			return nil
		}
	}
}

// connect opens a stream to the next coordinator and registers.
func (r *runner) connect() {
	if r.stream != nil {
		return
	}
	cfg := r.o.cfg
	address := cfg.Addresses[r.address%len(cfg.Addresses)]
	s, err := open(r.base, address, cfg.Client)
	if err != nil {
		r.o.log.Warn("coordinator can't be reached", "address", address, "error", err)
		r.again()
		return
	}
	r.stream = s
	reg := &coordinatorv1.RegisterWorker{Kind: r.o.kind, WorkerId: cfg.WorkerID, Address: cfg.Advertise, Shards: r.o.shards}
	if r.lease != nil {
		// To continue the session keeps the shards while the stream moves to another coordinator.
		reg.Session = r.lease.token
	}
	s.registered = time.Now()
	s.send(&coordinatorv1.OwnRequest{Message: &coordinatorv1.OwnRequest_Register{Register: reg}})
}

// again waits, longer with each failure, and then tries the next coordinator.
func (r *runner) again() {
	r.failures++
	r.address++
	r.retry.Reset(r.backoff.Next())
}

func (r *runner) closeStream() {
	if r.stream != nil {
		r.stream.close()
		r.stream = nil
		r.again()
	}
}

// streamEnded decides whether trying again is of use; an error says that it is not.
func (r *runner) streamEnded(err error) error {
	address := r.stream.address
	r.closeStream()
	reason := rpc.Reason(err)
	switch {
	case reason == ReasonSessionLost:
		r.endLease(ErrLost)
	case reason == ReasonShardCount, status.Code(err) == codes.InvalidArgument:
		r.endLease(ErrLost)
		return fmt.Errorf("owner: %s refuses worker %s: %w", address, r.o.cfg.WorkerID, err)
	}
	// One log line for the first failure and then one in ten: retries can go on for hours.
	if r.failures == 1 || r.failures%10 == 0 {
		r.o.log.Warn("the stream to a coordinator ended; trying again", "address", address, "error", err, "failures", r.failures)
	}
	return nil
}

// renew keeps the lease alive, and closes the stream to a coordinator that does not answer.
func (r *runner) renew() {
	s := r.stream
	if s == nil {
		return
	}
	now := time.Now()
	if r.lease == nil || s.registered != (time.Time{}) {
		if now.Sub(s.answered) > firstAnswer {
			r.o.log.Warn("a coordinator does not answer", "address", s.address)
			r.closeStream()
		}
		return
	}
	// Half of the TTL is left to reach another coordinator, which continues the session.
	if now.Sub(s.answered) > r.ttl/2 {
		r.o.log.Warn("a coordinator does not renew the lease", "address", s.address)
		r.closeStream()
		return
	}
	if last, ok := s.sent[s.sequence]; !ok || now.Sub(last) >= r.ttl/4 {
		s.keepAlive()
	}
}

func (r *runner) message(m *coordinatorv1.OwnResponse) {
	s := r.stream
	switch m := m.GetMessage().(type) {
	case *coordinatorv1.OwnResponse_Registered:
		r.failures = 0
		r.backoff.Reset()
		s.answered = time.Now()
		r.ttl = time.Duration(m.Registered.GetTtlMs()) * time.Millisecond
		if r.lease != nil && m.Registered.GetContinued() {
			// Counted from before the request was sent: the coordinator may have renewed the lease at any time
			// since.
			r.lease.extend(s.registered, r.ttl)
		} else {
			r.endLease(ErrLost)
			r.lease = newLease(r.base, m.Registered.GetSession(), s.registered, r.ttl)
			r.o.session.Store(r.lease)
			r.o.m.sessions.Inc()
		}
		s.registered = time.Time{}
	case *coordinatorv1.OwnResponse_KeptAlive:
		if sent, ok := s.sent[m.KeptAlive.GetSequence()]; ok && r.lease != nil {
			s.answered = time.Now()
			r.ttl = time.Duration(m.KeptAlive.GetTtlMs()) * time.Millisecond
			r.lease.extend(sent, r.ttl)
			r.o.m.renewals.Inc()
			if m.KeptAlive.GetSequence() != s.sequence {
				delete(s.sent, m.KeptAlive.GetSequence())
			}
		}
	case *coordinatorv1.OwnResponse_Held:
		r.heldShards(m.Held)
	case *coordinatorv1.OwnResponse_Granted:
		r.granted(m.Granted)
	case *coordinatorv1.OwnResponse_Revoked:
		n, epoch := shard.ID(m.Revoked.GetShard()), m.Revoked.GetEpoch()
		if h, ok := r.held[n]; ok && h.grant.Epoch == epoch {
			r.revoke(h)
		} else {
			// An older grant than the one that is held, or none: release it, so that the coordinator does not
			// wait.
			r.release(n, epoch)
		}
	}
}

// heldShards compares with the coordinator's list: a shard that it does not name is lost.
func (r *runner) heldShards(m *coordinatorv1.HeldShards) {
	named := map[shard.ID]uint64{}
	for _, g := range m.GetGranted() {
		named[shard.ID(g.GetShard())] = g.GetEpoch()
	}
	for n, h := range r.held {
		// Another epoch means that the shard was granted again in between, perhaps to another worker.
		if named[n] != h.grant.Epoch {
			h.cancel(ErrLost)
			delete(r.held, n)
		}
	}
	for _, g := range m.GetGranted() {
		r.granted(g)
	}
}

// granted starts work, unless the grant is known already or older than one that is.
func (r *runner) granted(g *coordinatorv1.ShardGranted) {
	n, epoch := shard.ID(g.GetShard()), g.GetEpoch()
	h, ok := r.held[n]
	switch {
	// A message of a session that has ended meanwhile.
	case r.lease == nil:
		return
	case ok && h.grant.Epoch == epoch:
		if h.over { // the message with its release was lost
			r.release(n, epoch)
		}
		return
	// A grant that is not newer than all that were seen is a late message.
	case epoch <= r.seen[n], r.draining:
		r.release(n, epoch)
		return
	case ok:
		h.cancel(ErrLost)
	}
	r.seen[n] = epoch
	ctx, cancel := context.WithCancelCause(r.lease.ctx)
	h = &holding{cancel: cancel, finished: make(chan struct{}), grant: Grant{Shard: n, Epoch: epoch, Fence: g.GetFence(), lease: r.lease, ctx: ctx}}
	// Work on an earlier grant of the shard may still be stopping; two at once on one shard are never started.
	before := r.running[n]
	r.held[n], r.running[n] = h, h.finished
	r.active++
	r.o.m.granted.Inc()
	r.group.Go(fmt.Sprintf("shard %s", n), func(context.Context) error {
		defer func() {
			cancel(ErrLost)
			close(h.finished)
			// The loop counts active work by this message; once Run has returned nobody reads it.
			select {
			case r.finished <- h:
			case <-r.base.Done(): // Run has returned
			}
		}()
		if before != nil { // work of an earlier grant
			select {
			case <-before:
			case <-r.base.Done():
				return nil
			}
		}
		r.do(ctx, h.grant)
		return nil
	})
}

// do runs the work. If it returned by itself, do waits a moment before the shard is released.
func (r *runner) do(ctx context.Context, g Grant) {
	defer r.o.m.end(ctx)
	// The grant may have ended while the work of the earlier one was stopping.
	if ctx.Err() != nil {
		return
	}
	r.o.m.owned.Inc()
	err := r.work(ctx, g)
	r.o.m.owned.Dec()
	if ctx.Err() != nil {
		return
	}
	r.o.log.Warn("work on a shard returned; the shard is given back", "shard", g.Shard.String(), "epoch", g.Epoch, "error", err)
	select {
	case <-time.After(restartAfter):
	case <-ctx.Done():
	}
}

// ended handles work that has returned.
func (r *runner) ended(h *holding) {
	r.active--
	h.over = true
	n := h.grant.Shard
	// A newer grant of the shard may have replaced the entry.
	if r.running[n] == h.finished {
		delete(r.running, n)
	}
	if r.held[n] == h {
		r.release(n, h.grant.Epoch)
	}
}

func (r *runner) revoke(h *holding) {
	if h.over {
		r.release(h.grant.Shard, h.grant.Epoch)
		return
	}
	// The release follows when the work has returned: until then nobody else may have the shard.
	h.cancel(ErrRevoked)
}

// release sends a shard's release. Without a stream it does nothing: the next coordinator lists the shard as held,
// and it is released then.
func (r *runner) release(n shard.ID, epoch uint64) {
	if r.stream == nil || r.lease == nil {
		return
	}
	r.stream.send(&coordinatorv1.OwnRequest{Message: &coordinatorv1.OwnRequest_Release{Release: &coordinatorv1.ReleaseShard{Shard: uint32(n), Epoch: epoch}}})
}

// endLease ends the session on this side; the next register begins another.
func (r *runner) endLease(cause error) {
	if r.lease == nil {
		return
	}
	r.lease.end(cause)
	r.lease = nil
	r.o.session.Store(nil)
	// Epochs of another session say nothing about this one; running stays, as old work may still be stopping.
	r.held, r.seen = map[shard.ID]*holding{}, map[shard.ID]uint64{}
}

// drain asks for the shards to be moved and stops all work.
func (r *runner) drain() {
	r.draining = true
	if r.stream != nil && r.lease != nil {
		r.stream.send(&coordinatorv1.OwnRequest{Message: &coordinatorv1.OwnRequest_Drain{Drain: &coordinatorv1.DrainSession{}}})
	}
	// After the drain was sent, so that the coordinator does not grant the released shards to this worker again.
	for _, h := range r.held {
		h.cancel(ErrDraining)
	}
}

// leave ends the session, so that its shards are free without waiting for the lease.
func (r *runner) leave() {
	if r.stream == nil || r.lease == nil {
		return
	}
	r.stream.send(&coordinatorv1.OwnRequest{Message: &coordinatorv1.OwnRequest_End{End: &coordinatorv1.EndSession{}}})
	timer := time.NewTimer(goodbye)
	defer timer.Stop()
	for {
		select {
		case <-r.stream.in: // messages no longer matter
		case <-r.stream.ended:
			return
		case <-timer.C:
			return
		}
	}
}

// stopAll stops all work and waits for it, within the drain timeout.
func (r *runner) stopAll(cause error) {
	r.endLease(cause)
	timer := time.NewTimer(r.o.cfg.DrainTimeout)
	defer timer.Stop()
	for r.active > 0 {
		select {
		case h := <-r.finished:
			r.ended(h)
		case <-timer.C:
			return
		}
	}
}
