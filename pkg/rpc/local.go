package rpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Local calls services of this process without a connection, for a JSON API. Roles are
// asked for as they are of calls from outside; the principal is the context's. Streams
// are not served.
type Local struct {
	// Access has the methods that are registered.
	Access  Access
	methods map[string]localMethod
}

type localMethod struct {
	impl any
	call grpc.MethodHandler
}

var (
	_ grpc.ServiceRegistrar    = (*Local)(nil)
	_ grpc.ClientConnInterface = (*Local)(nil)
)

// RegisterService adds a service, before the first call.
func (l *Local) RegisterService(d *grpc.ServiceDesc, impl any) {
	if l.methods == nil {
		l.methods = map[string]localMethod{}
	}
	for _, m := range d.Methods {
		l.methods["/"+d.ServiceName+"/"+m.MethodName] = localMethod{impl: impl, call: m.Handler}
	}
}

// Invoke implements grpc.ClientConnInterface. Without a principal nothing is allowed.
func (l *Local) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	m, ok := l.methods[method]
	if !ok {
		return Failure{Code: codes.Unimplemented, Reason: ReasonNotFound, Message: "no method " + method}.Err()
	}
	p, _ := PrincipalFrom(ctx)
	if err := l.Access.Authorize(p, method); err != nil {
		return Status(err)
	}
	out, err := m.call(m.impl, ctx, func(in any) error {
		proto.Merge(in.(proto.Message), args.(proto.Message))
		return nil
	}, nil)
	if err != nil {
		return err
	}
	proto.Merge(reply.(proto.Message), out.(proto.Message))
	return nil
}

// NewStream implements grpc.ClientConnInterface.
func (l *Local) NewStream(_ context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, Failure{Code: codes.Unimplemented, Reason: ReasonNotFound, Message: fmt.Sprintf("%s: streams are not served here", method)}.Err()
}
