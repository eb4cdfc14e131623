package badinput

import (
	"bytes"
	"compress/gzip"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/input/inputtest"
	"lightmetrics.dev/lightmetrics/agent/input/scrape"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

type scrapeCase struct {
	named    `yaml:",inline"`
	Body     string `yaml:"body"`
	Recipe   string `yaml:"recipe"`
	Type     string `yaml:"type"` // Content-Type; open is OpenMetrics
	Encoding string `yaml:"encoding"`
	Gzip     bool   `yaml:"gzip"` // compress the body, and say so
	Code     int    `yaml:"code"`
	// Samples that hold; Error is in the target's last error, and then no sample counts.
	Samples int    `yaml:"samples"`
	Error   string `yaml:"error"`
}

// TestScrapes lets an agent's scraper read bad targets.
func TestScrapes(t *testing.T) {
	boundMemory(t, 256<<20)
	for _, k := range load[scrapeCase](t, "scrape") {
		t.Run(k.Name, func(t *testing.T) {
			body := []byte(k.Body)
			if k.Recipe != "" {
				body = expand(t, k.Recipe, nil)
			}
			enc := k.Encoding
			if k.Gzip {
				var b bytes.Buffer
				z := gzip.NewWriter(&b)
				if _, err := z.Write(body); err != nil {
					t.Fatal(err)
				}
				if err := z.Close(); err != nil {
					t.Fatal(err)
				}
				body, enc = b.Bytes(), "gzip"
			}
			bad := true
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if !bad {
					_, _ = w.Write([]byte("good 1\n"))
					return
				}
				typ := k.Type
				if typ == "open" {
					typ = "application/openmetrics-text; version=1.0.0; charset=utf-8"
				}
				w.Header().Set("Content-Type", or(typ, "text/plain; version=0.0.4"))
				if enc != "" {
					w.Header().Set("Content-Encoding", enc)
				}
				if k.Code != 0 {
					w.WriteHeader(k.Code)
				}
				_, _ = w.Write(body)
			}))
			defer srv.Close()
			var got input.Batch
			sink := inputtest.Sink(func(in input.Batch) bool { got = in; return true })
			s, err := scrape.New(scrape.Target{Job: "j", URL: config.URL(srv.URL + "/metrics"), SampleLimit: 1000}.WithDefaults(10*time.Second),
				input.Env{Log: quietTelemetry().Log, Now: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			s.Scrape(context.Background(), sink)
			st := s.Status()
			if st.Up != (k.Error == "") || !strings.Contains(st.LastError, k.Error) || st.Samples != k.Samples {
				t.Errorf("up %t, %d samples, error %q, want %d samples, error %q", st.Up, st.Samples, st.LastError, k.Samples, k.Error)
			}
			if len(got.Samples) != st.Samples+3 { // up, duration and count are told as well
				t.Errorf("%d samples are pushed", len(got.Samples))
			}
			bad = false
			if s.Scrape(context.Background(), sink); !s.Status().Up {
				t.Errorf("a good target afterwards: %s", s.Status().LastError)
			}
		})
	}
	wantNoPanics(t)
}
