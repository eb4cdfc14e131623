package coordinator

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// ofRegion registers services whose state is this region's own: shards, pending work, references. A worker that is bound to other
// regions may not call them, or what leaks in one region could take shards of another and drop what its blocks refer to. The linearizer
// is of all regions, and compares the region of each change by itself.
type ofRegion struct {
	grpc.ServiceRegistrar
	region string
}

// RegisterService implements grpc.ServiceRegistrar.
func (r ofRegion) RegisterService(d *grpc.ServiceDesc, impl any) {
	if r.region != "" {
		bound := *d
		bound.Methods, bound.Streams = slices.Clone(d.Methods), slices.Clone(d.Streams)
		for i, m := range bound.Methods {
			bound.Methods[i].Handler = r.unary(m.Handler)
		}
		for i, m := range bound.Streams {
			method := "/" + d.ServiceName + "/" + m.StreamName
			bound.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
				if err := r.may(stream.Context(), method); err != nil {
					return err
				}
				return m.Handler(srv, stream)
			}
		}
		d = &bound
	}
	r.ServiceRegistrar.RegisterService(d, impl)
}

// unary is a handler that is called once the server's interceptors have let the caller pass, and may has.
func (r ofRegion) unary(of grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, outer grpc.UnaryServerInterceptor) (any, error) {
		return of(srv, ctx, dec, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			checked := func(ctx context.Context, req any) (any, error) {
				if err := r.may(ctx, info.FullMethod); err != nil {
					return nil, err
				}
				return next(ctx, req)
			}
			if outer == nil {
				return checked(ctx, req)
			}
			return outer(ctx, req, info, checked)
		})
	}
}

// may refuses a caller whose only role for a method is worker, and which acts for other regions. Operators and readers are not bound.
func (r ofRegion) may(ctx context.Context, method string) error {
	p, known := rpc.PrincipalFrom(ctx)
	other := func(role rpc.Role) bool { return role != rpc.RoleWorker && p.Has(role) }
	if !known || slices.ContainsFunc(access[method], other) {
		return nil
	}
	return rpc.Status(rpc.AuthorizeRegion(p, method, r.region))
}
