package promstore_test

import (
	"testing"

	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
)

// TestConformance runs upstream's PromQL scripts; what they load goes through frames.
func TestConformance(t *testing.T) {
	const seed = 20261121
	t.Logf("seed %d", seed)
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	promqltest.RunBuiltinTestsWithStorage(t, engine, func(t testing.TB) storage.Storage {
		return newFramed(t, seed)
	})
}
