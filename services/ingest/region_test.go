package ingest_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// TestABucketOfARegion: a collector that would not ask the linearizer, or would ask it for another region, does not serve over it.
func TestABucketOfARegion(t *testing.T) {
	rec := regions.Record{Region: "eu", Number: 3, ID: claims.ID{1}, Regions: []claims.Region{"eu", "us"}, Cluster: 7}
	run := func(body []byte, change func(*ingest.Config)) (*ingest.Service, error) {
		s := mem.New(time.Now)
		if body != nil {
			if _, err := s.Create(t.Context(), layout.RegionsKey, body, objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		cfg := testConfig()
		change(&cfg)
		c, err := ingest.New(cfg, ingest.Deps{Store: s, Telemetry: telemetry.Discard()})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Run(bound(t)) }()
		for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			select {
			case err := <-ended:
				return c, err
			default:
			}
			if c.NotReady() == nil {
				return c, nil
			}
			var corrupt bool
			if err := c.NotReady(); err != nil {
				corrupt = regions.Kind.Is(err)
			}
			if corrupt {
				return c, c.NotReady()
			}
		}
		t.Fatal("neither ready nor ended")
		return nil, nil
	}
	global := func(region string) func(*ingest.Config) {
		return func(c *ingest.Config) {
			c.Acceptance, c.Region, c.Coordinator.Addresses = string(accept.ModeGlobal), region, []string{"127.0.0.1:1"}
		}
	}
	plain := func(*ingest.Config) {}
	var e *ingest.RegionError
	if _, err := run(rec.Marshal(), plain); !errors.As(err, &e) || e.Region != "eu" {
		t.Errorf("s3_manifest: %v", err)
	}
	// A linearizer that was dissolved has given its bucket back.
	ended := rec
	ended.Regions, ended.Dissolved = []claims.Region{"eu"}, true
	if _, err := run(ended.Marshal(), plain); err != nil {
		t.Errorf("s3_manifest over the bucket of a linearizer that was dissolved: %v", err)
	}
	if _, err := run(ended.Marshal(), global("eu")); !errors.As(err, &e) || !e.Dissolved || e.Region != "eu" {
		t.Errorf("global over the bucket of a linearizer that was dissolved: %v", err)
	}
	if _, err := run([]byte("{"), plain); !errors.As(err, &e) {
		t.Errorf("s3_manifest over a damaged record: %v", err)
	}
	if _, err := run(rec.Marshal(), global("us")); !errors.As(err, &e) || e.Ours != "us" {
		t.Errorf("another region: %v", err)
	}
	if _, err := run(rec.Marshal(), global("eu")); err != nil {
		t.Errorf("its own region: %v", err)
	}
	if _, err := run(nil, global("eu")); err != nil {
		t.Errorf("before the first epoch: %v", err)
	}
	if _, err := run([]byte("{"), global("eu")); !regions.Kind.Is(err) {
		t.Errorf("a damaged record: %v", err)
	}
}

func TestSettingsOfARegion(t *testing.T) {
	good := func() ingest.Config {
		c := ingest.DefaultConfig()
		c.Acceptance, c.Region, c.Coordinator.Addresses = "global", "eu", []string{"127.0.0.1:4781"}
		return c
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*ingest.Config){
		"needs region":                func(c *ingest.Config) { c.Region = "" },
		"region: ":                    func(c *ingest.Config) { c.Region = "EU" },
		"needs coordinator.addresses": func(c *ingest.Config) { c.Coordinator.Addresses = nil },
		"coordinator.timeout":         func(c *ingest.Config) { c.Coordinator.Timeout = 0 },
		"take_over must be positive":  func(c *ingest.Config) { c.TakeOver = 0 },
	} {
		c := good()
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if c.Acceptance = "s3_manifest"; c.Validate() != nil {
			t.Errorf("%s without regions: %v", want, c.Validate())
		}
	}
}
