package robustness

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

func reconcilerStatus(ctx context.Context, c *cluster.Cluster) (*reconcilerv1.GetStatusResponse, error) {
	conn, err := rpc.Dial(c.Addr.ReconcilerGRPC, rpc.ClientConfig{})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return reconcilerv1.NewReconcilerServiceClient(conn).GetStatus(ctx, &reconcilerv1.GetStatusRequest{})
}
