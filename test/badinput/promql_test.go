package badinput

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/services/query"
)

type promqlCase struct {
	named  `yaml:",inline"`
	M      string            `yaml:"m"`
	Path   string            `yaml:"path"` // below /api/v1/, default query
	Q      map[string]string `yaml:"q"`    // parameters; <n>*text repeats, with # around 1
	Raw    string            `yaml:"raw"`  // query string as it stands
	Body   string            `yaml:"body"`
	Type   string            `yaml:"type"` // Content-Type of the body
	Status int               `yaml:"status"`
	Error  string            `yaml:"error"` // errorType
}

func repeated(t testing.TB, s string) string {
	if n, rest, ok := strings.Cut(s, "*"); ok && n != "" && strings.Trim(n, "0123456789") == "" && len(rest) > 0 && rest[0] != ' ' {
		if open, end, ok := strings.Cut(rest, "#"); ok { // around a number
			return strings.Repeat(open, int(number(t, n))) + "1" + strings.Repeat(end, int(number(t, n)))
		}
		return strings.Repeat(rest, int(number(t, n)))
	}
	return s
}

// TestPromQL asks the query service bad questions over a batch that a collector accepted.
func TestPromQL(t *testing.T) {
	store := memStore()
	startCollector(t, store).wantHealthy(t)
	cfg := query.DefaultConfig()
	cfg.HTTP.Listen, cfg.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Limits.Timeout = 3 * time.Second
	cfg.Limits.Samples = 1_000_000
	s, err := query.New(cfg, query.Deps{Store: store, Telemetry: quietTelemetry()})
	if err != nil {
		t.Fatal(err)
	}
	runService(t, s.Run, s.Ready())
	<-s.Complete()
	base := "http://" + s.HTTPAddr()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	boundMemory(t, 256<<20)
	before := listing(t, store)
	for _, k := range load[promqlCase](t, "promql") {
		t.Run(k.Name, func(t *testing.T) {
			q := url.Values{}
			for n, v := range k.Q {
				q.Set(n, repeated(t, v))
			}
			target := base + "/api/v1/" + or(k.Path, "query")
			body := repeated(t, k.Body)
			form := q.Encode()
			switch {
			case k.Raw != "":
				target += "?" + k.Raw
			case k.M == http.MethodPost && k.Body == "" && len(q) > 0:
				body = form
			case len(q) > 0 && len(form) > 30_000:
				k.M, body = http.MethodPost, form
			case len(q) > 0:
				target += "?" + form
			}
			req, err := http.NewRequest(or(k.M, http.MethodGet), target, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if body != "" {
				req.Header.Set("Content-Type", or(k.Type, "application/x-www-form-urlencoded"))
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
			if err != nil {
				t.Fatal(err)
			}
			var a struct{ Status, ErrorType, Error string }
			_ = json.Unmarshal(text, &a) // compared below
			if resp.StatusCode != k.Status || a.ErrorType != k.Error || (k.Error != "") != (a.Status == "error") {
				t.Errorf("got %s %.300s, want %d %s", resp.Status, text, k.Status, k.Error)
			}
		})
	}
	wantUnchanged(t, store, before)
	wantNoPanics(t)
	resp, err := client.Get(base + "/api/v1/query?query=vector(1)")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("a good query: %s", resp.Status)
	}
}
