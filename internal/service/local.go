package service

import (
	"context"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// local calls the services of this process without a connection, for the JSON API. Roles are
// asked for as they are of calls from outside; the principal is the context's. Methods to
// which clients stream are not served.
type local struct {
	api     *api
	methods map[string]localMethod
	calls   sync.WaitGroup // handlers of streams
}

type localMethod struct {
	impl   any
	unary  grpc.MethodHandler // or
	stream grpc.StreamHandler
}

var _ grpc.ClientConnInterface = (*local)(nil)

// register adds a service, before the first call.
func (l *local) register(d *grpc.ServiceDesc, impl any) {
	if l.methods == nil {
		l.methods = map[string]localMethod{}
	}
	for _, m := range d.Methods {
		l.methods["/"+d.ServiceName+"/"+m.MethodName] = localMethod{impl: impl, unary: m.Handler}
	}
	for _, m := range d.Streams {
		// The JSON API has one request for each call, so a stream from the client cannot be expressed.
		if !m.ClientStreams {
			l.methods["/"+d.ServiceName+"/"+m.StreamName] = localMethod{impl: impl, stream: m.Handler}
		}
	}
}

// find gives a method that the context's principal may call. Without one nothing is allowed.
func (l *local) find(ctx context.Context, method string, stream bool) (localMethod, error) {
	m, ok := l.methods[method]
	if !ok || (m.stream != nil) != stream {
		return m, rpc.Failure{Code: codes.Unimplemented, Reason: rpc.ReasonNotFound, Message: fmt.Sprintf("no method %s here", method)}.Err()
	}
	// The zero principal has no role, so a route that forgot to authenticate is refused here.
	p, _ := rpc.PrincipalFrom(ctx)
	return m, rpc.Status(l.api.s.access.Authorize(p, method))
}

// Invoke implements grpc.ClientConnInterface.
func (l *local) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	m, err := l.find(ctx, method, false)
	if err != nil {
		return err
	}
	out, err := l.call(incoming(ctx), method, m, args)
	if err != nil {
		return l.api.status(method, err)
	}
	share(reply, out)
	return nil
}

// incoming is the context that a handler gets, as over a connection: what the gateway puts into outgoing metadata are headers of
// the request, the caller's token among them, and a handler that calls another service would send them on.
func incoming(ctx context.Context) context.Context { return metadata.NewOutgoingContext(ctx, nil) }

func (l *local) call(ctx context.Context, method string, m localMethod, args any) (out any, err error) {
	// No interceptor of the gRPC server runs for this call, so a panic is caught here.
	defer rpc.Recovered(l.api.s.tel.Log, method, &err)
	return m.unary(m.impl, ctx, func(in any) error {
		share(in, args)
		return nil
	}, nil)
}

// share gives to, an empty message, the fields of from. Nothing is copied: neither side may
// change a message that it has handed over, as gRPC asks of both.
func share(to, from any) {
	dst := to.(proto.Message).ProtoReflect()
	from.(proto.Message).ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		dst.Set(f, v)
		return true
	})
}

// NewStream implements grpc.ClientConnInterface. The handler's goroutine ends with ctx at
// the latest, when what it sends is read no more; the server's end waits for it.
func (l *local) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	m, err := l.find(ctx, method, true)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(incoming(ctx))
	st := &localStream{ctx: ctx, request: make(chan any, 1), sent: make(chan any), ended: make(chan error, 1)}
	l.calls.Go(func() {
		// The handler has ended, so what it has started with the context of the stream must end too.
		defer cancel()
		err := func() (err error) {
			defer rpc.Recovered(l.api.s.tel.Log, method, &err)
			return m.stream(m.impl, &handlerSide{localStream: st})
		}()
		st.ended <- l.api.status(method, err)
	})
	return &callerSide{localStream: st}, nil
}

// localStream is one call with one request and many answers.
type localStream struct {
	ctx     context.Context
	request chan any
	sent    chan any
	ended   chan error // one value
}

func (s *localStream) Context() context.Context { return s.ctx }

// callerSide is the stream as the gateway has it.
type callerSide struct {
	*localStream
	err error // io.EOF or the handler's, once it ended
}

func (s *callerSide) Header() (metadata.MD, error) { return metadata.MD{}, nil }
func (s *callerSide) Trailer() metadata.MD         { return nil }
func (s *callerSide) CloseSend() error             { return nil }

// SendMsg hands the request over.
func (s *callerSide) SendMsg(m any) error {
	// It never blocks: the channel holds one request, and the gateway sends no second one.
	s.request <- m
	return nil
}

// RecvMsg gives the next answer, io.EOF behind the last one.
func (s *callerSide) RecvMsg(m any) error {
	if s.err != nil {
		return s.err
	}
	select {
	case from := <-s.sent:
		share(m, from)
		return nil
	// sent has no buffer, so every message was taken before the handler could end: none is lost when this
	// case is chosen.
	case s.err = <-s.ended:
		if s.err == nil {
			s.err = io.EOF
		}
		return s.err
	}
}

// handlerSide is the stream as its handler has it.
type handlerSide struct {
	*localStream
	received bool
}

func (*handlerSide) SetHeader(metadata.MD) error  { return nil }
func (*handlerSide) SendHeader(metadata.MD) error { return nil }
func (*handlerSide) SetTrailer(metadata.MD)       {}

// SendMsg waits until the caller has taken the message, or is gone.
func (s *handlerSide) SendMsg(m any) error {
	select {
	case s.sent <- m:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// RecvMsg gives the request once.
func (s *handlerSide) RecvMsg(m any) error {
	if s.received {
		return io.EOF
	}
	select {
	case from := <-s.request:
		share(m, from)
		s.received = true
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}
