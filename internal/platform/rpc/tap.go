package rpc

import (
	"context"

	"google.golang.org/grpc/tap"
)

// Tap authenticates a call by its headers, before a byte of its messages is read, and calls known
// with the principal; known must not block. A call without a principal is left to the
// interceptors, because a refusal from here could not carry its reason.
func (a *Authenticator) Tap(known func(context.Context, Principal)) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		if open(info.FullMethodName) {
			return ctx, nil
		}
		p, err := a.identify(ctx, a.current())
		// The interceptor authenticates again and answers with reason and text.
		if err != nil {
			return ctx, nil
		}
		own := WithPrincipal(ctx, p)
		known(own, p)
		return own, nil
	}
}
