package ingest_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

func TestAdminPaths(t *testing.T) {
	for _, own := range []bool{false, true} {
		c := start(t, newStore(), func(c *ingest.Config) {
			c.Store.SecretAccessKey = config.Secret("never-printed")
			if own {
				c.Admin.Listen = "127.0.0.1:0"
			}
		})
		if a := c.post(t, encode(t, boot, 0, 10, 0), nil); a.code != 200 {
			t.Fatalf("%+v", a)
		}
		for path, want := range map[string]string{
			"/metrics":   `lightmetrics_ingest_batches_total{outcome="accepted",reason=""} 1`,
			"/-/healthy": "ok", "/-/ready": "ready", "/config": `"limits.in_flight_bytes": "64MiB"`,
		} {
			resp, err := http.Get("http://" + c.AdminAddr() + path)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || !strings.Contains(string(b), want) || strings.Contains(string(b), "never-printed") {
				t.Errorf("%s: %s, %v: %.2000s", path, resp.Status, err, b)
			}
		}
		if own {
			if code := get(t, "http://"+c.HTTPAddr()+"/metrics"); code != 404 {
				t.Errorf("/metrics on the HTTP port: %d", code)
			}
		}
		if (c.AdminAddr() != c.HTTPAddr()) != own {
			t.Errorf("admin on %s, HTTP on %s", c.AdminAddr(), c.HTTPAddr())
		}
	}
}
