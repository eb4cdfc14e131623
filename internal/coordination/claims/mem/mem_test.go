package mem_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/kvtest"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
)

func TestConformance(t *testing.T) {
	kvtest.Run(t, func(*testing.T) (claims.KV, string) { return mem.New(), "/test/" })
}
