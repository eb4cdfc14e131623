package query

import (
	"strings"
	"testing"
)

func TestExposureIsRefused(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.HTTP.Listen = "0.0.0.0:4760" },
		func(c *Config) { c.GRPC.Listen = ":4761" },
		func(c *Config) {
			c.HTTP.Listen, c.Auth.Mode, c.Auth.PrincipalsFile = ":4760", "token", "p.yaml" // in the clear
		},
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "off loopback") && !strings.Contains(err.Error(), "for loopback") {
			t.Errorf("http %s, grpc %s, auth %s: %v", c.HTTP.Listen, c.GRPC.Listen, c.Auth.Mode, err)
		}
		c.Auth.AllowInsecure = true
		if err := c.Validate(); err != nil {
			t.Errorf("on purpose: %v", err)
		}
	}
}
