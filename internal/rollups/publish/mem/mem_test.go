package mem_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish/refstest"
)

func TestConformance(t *testing.T) {
	refstest.Run(t, func(*testing.T) publish.Refs { return mem.New() })
}
