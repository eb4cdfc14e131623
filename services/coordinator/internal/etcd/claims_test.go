package etcd

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/kvtest"
)

func TestClaimStoreConformance(t *testing.T) {
	t.Parallel()
	c := &Client{Etcd: dial(t, startMembers(t, 1)), Timeout: 30 * time.Second}
	var n atomic.Int64
	kvtest.Run(t, func(*testing.T) (claims.KV, string) {
		return NewClaimStore(c), fmt.Sprintf("/test/%d/", n.Add(1))
	})
}
