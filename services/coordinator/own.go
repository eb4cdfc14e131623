package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/shard"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// server is the OwnershipService.
type server struct {
	coordinatorv1.UnimplementedOwnershipServiceServer
	s       *Service
	b       *backend
	streams chan struct{}
}

const (
	maxAddress = 256
	maxToken   = 128
	// registerTimeout bounds the wait for a stream's first message.
	registerTimeout = 10 * time.Second
)

// errEnded ends the goroutines of a stream whose worker has ended its session.
var errEnded = errors.New("the worker ended its session")

type ownStream = grpc.BidiStreamingServer[coordinatorv1.OwnRequest, coordinatorv1.OwnResponse]

// Own serves one worker.
func (v *server) Own(stream ownStream) error {
	select {
	case v.streams <- struct{}{}:
		defer func() { <-v.streams }()
	default:
		return rpc.Failure{Code: codes.ResourceExhausted, Reason: coordinator.ReasonTooMany, Message: "this coordinator serves no more workers", RetryAfter: coordinator.RetryAfter}.Err()
	}
	o := &owned{v: v, b: v.b, stream: stream, requests: make(chan *coordinatorv1.OwnRequest), answers: make(chan *coordinatorv1.OwnResponse, 1),
		known: map[shard.ID]ownership.Epoch{}, revoked: map[shard.ID]ownership.Epoch{}}
	// The reader ends when the handler returns, because that ends the stream's context.
	go o.receive(stream.Context())
	if err := o.register(stream.Context()); err != nil {
		return failure(err)
	}
	// Requests and answers have a goroutine each, since a slow write must not delay renewals of the lease.
	g := run.NewGroup(stream.Context())
	g.Go("requests", o.serve)
	g.Go("answers", o.tell)
	err := g.Wait()
	if errors.Is(err, errEnded) {
		return nil
	}
	return failure(err)
}

// owned is a session on one stream.
type owned struct {
	v        *server
	b        *backend
	stream   ownStream
	held     etcd.Held
	requests chan *coordinatorv1.OwnRequest
	answers  chan *coordinatorv1.OwnResponse
	gone     error // why requests was closed; set before that

	// Only tell uses these: the grants and revocations that were sent to the worker.
	known   map[shard.ID]ownership.Epoch
	revoked map[shard.ID]ownership.Epoch
}

// receive passes requests to serve until the stream ends.
func (o *owned) receive(ctx context.Context) {
	defer close(o.requests)
	for {
		req, err := o.stream.Recv()
		if err != nil { // the worker has gone, is no longer authorized, or the handler returned
			// Set before the channel is closed, and read only after that, so it needs no lock.
			o.gone = err
			return
		}
		select {
		case o.requests <- req:
		case <-ctx.Done():
			o.gone = ctx.Err()
			return
		}
	}
}

// next returns the next request, or the error that ended the stream.
func (o *owned) next(ctx context.Context) (*coordinatorv1.OwnRequest, error) {
	select {
	case req, ok := <-o.requests:
		if !ok {
			return nil, o.gone
		}
		return req, nil
	case <-o.v.s.stopping:
		return nil, errDraining
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// register begins or continues the session, and sends the worker its grants.
func (o *owned) register(ctx context.Context) error {
	wctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	first, err := o.next(wctx)
	if err != nil {
		return err
	}
	r := first.GetRegister()
	if r == nil {
		return invalid(errors.New("the first message must be register"))
	}
	kind, err := ownership.ParseKind(r.GetKind())
	if err = errors.Join(err, ownership.CheckWorkerID(r.GetWorkerId()), shard.CheckCount(r.GetShards())); err != nil {
		return invalid(err)
	}
	if len(r.GetAddress()) > maxAddress || len(r.GetSession()) > maxToken {
		return invalid(fmt.Errorf("address has at most %d bytes, session %d", maxAddress, maxToken))
	}
	// The name in the message is not proven by anything else: a principal may only act as workers that its
	// settings name.
	p, _ := rpc.PrincipalFrom(ctx)
	if err := access.AuthorizeWorker(p, coordinatorv1.OwnershipService_Own_FullMethodName, r.GetWorkerId()); err != nil {
		return rpc.Status(err)
	}
	var ttl time.Duration
	if r.GetSession() == "" {
		o.held, ttl, err = o.b.sessions.Begin(ctx, kind, r.GetWorkerId(), r.GetAddress(), p.Name, r.GetShards(), o.v.s.now())
	} else {
		o.held, ttl, err = o.b.sessions.Continue(ctx, kind, r.GetWorkerId(), r.GetSession(), p.Name)
	}
	if err != nil {
		return err
	}
	failpoint.Hit("coordinator.session.begin.after")
	o.v.s.log.Info("a worker came", "kind", kind, "worker", o.held.Worker, "session", fmt.Sprintf("%016x", uint64(o.held.ID)), "continued", r.GetSession() != "")
	if err := o.stream.Send(&coordinatorv1.OwnResponse{Message: &coordinatorv1.OwnResponse_Registered{Registered: &coordinatorv1.WorkerRegistered{
		Session: o.held.Token, TtlMs: ttl.Milliseconds(), Continued: r.GetSession() != "",
	}}}); err != nil {
		return err
	}
	// Read from etcd and not from the mirror, which may not have the grants of a session that another coordinator
	// served.
	grants, err := o.b.sessions.Grants(ctx, o.held)
	if err != nil {
		return err
	}
	held := &coordinatorv1.HeldShards{}
	for n, g := range grants {
		o.known[n] = g.Epoch
		held.Granted = append(held.Granted, granted(n, g))
	}
	return o.stream.Send(&coordinatorv1.OwnResponse{Message: &coordinatorv1.OwnResponse_Held{Held: held}})
}

func granted(n shard.ID, g etcd.Grant) *coordinatorv1.ShardGranted {
	return &coordinatorv1.ShardGranted{Shard: uint32(n), Epoch: uint64(g.Epoch), Fence: uint64(g.Fence)}
}

// serve does what the worker asks for. An error of etcd ends the stream: the worker connects again, here or
// elsewhere, and both sides then start from what etcd has.
func (o *owned) serve(ctx context.Context) error {
	for {
		req, err := o.next(ctx)
		if err != nil {
			return err
		}
		switch m := req.GetMessage().(type) {
		case *coordinatorv1.OwnRequest_KeepAlive:
			ttl, err := o.b.sessions.KeepAlive(ctx, o.held)
			o.v.s.m.renewed(err)
			if err != nil {
				return err
			}
			failpoint.Hit("coordinator.renew.answer.before")
			select {
			case o.answers <- &coordinatorv1.OwnResponse{Message: &coordinatorv1.OwnResponse_KeptAlive{KeptAlive: &coordinatorv1.KeptAlive{
				Sequence: m.KeepAlive.GetSequence(), TtlMs: ttl.Milliseconds(),
			}}}:
			case <-ctx.Done():
				return ctx.Err()
			}
		// Releasing needs no answer: the worker has stopped already, and sees the next grant of the shard if there
		// is one.
		case *coordinatorv1.OwnRequest_Release:
			if err := o.b.sessions.Release(ctx, o.held, shard.ID(m.Release.GetShard()), ownership.Epoch(m.Release.GetEpoch())); err != nil {
				return err
			}
			failpoint.Hit("coordinator.release.write.after")
		case *coordinatorv1.OwnRequest_Drain:
			if err := o.b.sessions.Drain(ctx, o.held.Kind, o.held.ID, true); err != nil {
				return err
			}
			failpoint.Hit("coordinator.drain.write.after")
		case *coordinatorv1.OwnRequest_End:
			// The caller's context may end with the stream, but the session must be ended all the same.
			if err := o.b.sessions.End(context.WithoutCancel(ctx), o.held); err != nil {
				return err
			}
			failpoint.Hit("coordinator.session.end.after")
			return errEnded
		default:
			return invalid(errors.New("register comes once; other messages are not known"))
		}
	}
}

// tell sends answers and everything that changes for the worker. Only this goroutine writes to the stream after
// register.
func (o *owned) tell(ctx context.Context) error {
	seen := false
	for {
		// Taken before the state is read, so that a change in between wakes the loop.
		changed := o.b.mirror.Changed()
		st := o.b.mirror.State(o.held.Kind)
		if _, ok := st.Sessions[o.held.ID]; ok {
			seen = true
			if err := o.changes(st); err != nil {
				return err
			}
		} else if seen {
			return etcd.ErrSessionLost
		} // otherwise the mirror has not seen the session yet
		for wait := true; wait; {
			select {
			case a := <-o.answers:
				if err := o.stream.Send(a); err != nil {
					return err
				}
			case <-changed:
				wait = false
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// changes sends what the worker was not sent yet. A mirror that lags repeats old grants, which the worker
// recognizes by their epochs.
func (o *owned) changes(st *etcd.State) error {
	for i, g := range st.Grants {
		n := shard.ID(i)
		// Forgotten, so that a later grant of the shard is sent again.
		if g.Session != o.held.ID {
			delete(o.known, n)
			continue
		}
		if epoch, ok := o.known[n]; ok && epoch == g.Epoch {
			continue
		}
		o.known[n] = g.Epoch
		if err := o.stream.Send(&coordinatorv1.OwnResponse{Message: &coordinatorv1.OwnResponse_Granted{Granted: granted(n, g)}}); err != nil {
			return err
		}
	}
	for _, n := range ownership.Revoked(st.View(), o.held.ID) {
		epoch := st.Grants[n].Epoch
		if o.revoked[n] == epoch {
			continue
		}
		o.revoked[n] = epoch
		failpoint.Hit("coordinator.revoke.send.before")
		if err := o.stream.Send(&coordinatorv1.OwnResponse{Message: &coordinatorv1.OwnResponse_Revoked{Revoked: &coordinatorv1.ShardRevoked{
			Shard: uint32(n), Epoch: uint64(epoch),
		}}}); err != nil {
			return err
		}
	}
	return nil
}
