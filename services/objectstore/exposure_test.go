package objectstore_test

import (
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// TestExposureIsRefused: what is served in the clear stays on loopback, unless it is allowed;
// profiles do in any case.
func TestExposureIsRefused(t *testing.T) {
	for _, c := range []struct {
		change func(*objectstore.Config)
		want   string // empty: taken
	}{
		{func(*objectstore.Config) {}, ""},
		{func(c *objectstore.Config) { c.Listen = "0.0.0.0:4790" }, "listen"},
		{func(c *objectstore.Config) { c.AdminListen = ":4791" }, "admin_listen"},
		{func(c *objectstore.Config) { c.Listen, c.AdminListen, c.AllowInsecure = ":4790", ":4791", true }, ""},
		{func(c *objectstore.Config) { c.AdminListen, c.AllowInsecure, c.Pprof = ":4791", true, true }, "pprof"},
		{func(c *objectstore.Config) { c.Listen, c.AllowInsecure, c.Pprof = ":4790", true, true }, ""},
	} {
		cfg := testConfig(t.TempDir())
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v", cfg.Listen, cfg.AdminListen, err)
		}
	}
}
