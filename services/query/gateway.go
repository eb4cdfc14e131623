package query

import (
	"context"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/pkg/rpc"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// gateway serves the QueryService as JSON below /v1/.
func gateway(ctx context.Context, conn *grpc.ClientConn) (http.Handler, error) {
	mux := runtime.NewServeMux(rpc.JSON())
	if err := queryv1.RegisterQueryServiceHandler(ctx, mux, conn); err != nil {
		return nil, err
	}
	return mux, nil
}
