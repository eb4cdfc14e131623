package mem_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/publish"
	"lightmetrics.dev/lightmetrics/pkg/publish/mem"
	"lightmetrics.dev/lightmetrics/pkg/publish/refstest"
)

func TestConformance(t *testing.T) {
	refstest.Run(t, func(*testing.T) publish.Refs { return mem.New() })
}
