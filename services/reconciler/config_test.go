package reconciler

import (
	"strings"
	"testing"
	"time"
)

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"workers":                func(c *Config) { c.Workers = 0 },
		"queue.capacity":         func(c *Config) { c.Queue.Capacity = -1 },
		"queue.retry_max":        func(c *Config) { c.Queue.RetryMax = time.Nanosecond },
		"derived":                func(c *Config) { c.Derived = "both" },
		"journal.poll_interval":  func(c *Config) { c.Journal.Polling.Interval = 0 },
		"journal.idle_interval":  func(c *Config) { c.Journal.IdleInterval = time.Millisecond },
		"journal.fence_after":    func(c *Config) { c.Journal.FenceAfter = 0 },
		"scrub.period":           func(c *Config) { c.Scrub.Period = -1 },
		"scrub.rate":             func(c *Config) { c.Scrub.Rate = 0 },
		"scrub.bytes_per_second": func(c *Config) { c.Scrub.Bytes = -1 },
		"scrub.verify":           func(c *Config) { c.Scrub.Verify = "head" },
		"audit.rate":             func(c *Config) { c.Audit.Rate = 0 },
		"audit.inventory":        func(c *Config) { c.Audit.Inventory.Prefix = "lists" },
		"audit.inventory.bucket": func(c *Config) { c.Audit.Inventory.Bucket = "lists" },
		"gc.inventory":           func(c *Config) { c.GC.Inventory = true },
		"gc.requests_per_day":    func(c *Config) { c.GC.Budget = 9999 },
		"audit.shards":           func(c *Config) { c.Audit.Shards = 129 },
		"auth: mode":             func(c *Config) { c.Auth.Mode = "maybe" },
		"tls":                    func(c *Config) { c.TLS.CertFile = "x" },
		"auth.mode none":         func(c *Config) { c.GRPC.Listen = "0.0.0.0:4771" },
		"tokens need tls.cert_file": func(c *Config) {
			c.HTTP.Listen, c.Auth.Mode, c.Auth.PrincipalsFile = ":4770", "token", "p.yaml"
		},
		"http.hosts":           func(c *Config) { c.HTTP.Hosts = []string{"http://x"} },
		"http.max_connections": func(c *Config) { c.HTTP.MaxConnections = 1 },
		"grpc.max_connections": func(c *Config) { c.GRPC.MaxConnections = 0 },
		"pprof": func(c *Config) {
			c.HTTP.Listen, c.Pprof, c.Auth.AllowInsecure = ":4770", true, true
		},
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error about %q, got %v", want, err)
		}
	}
	c := DefaultConfig()
	c.HTTP.Listen, c.Auth.AllowInsecure = "0.0.0.0:4770", true
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
