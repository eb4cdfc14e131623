package ingest

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

type pageData struct {
	Version, Now, Collector string
	// NotReady is why batches are refused; empty if they are not.
	NotReady   string
	Acceptance string
	Authority  string // empty before the first probe
	BoundTo    string
	Renamed    []string
	// Policy is a policyFinding's state, Wanted the setting.
	Policy, Wanted string
	Violations     []string
	Probed         string
	// Journal is since when the journal can't be written, and why; empty if it can.
	Journal string
	// Waiting are batches that wait for the journal, Unlanded those that are on this disk alone.
	Waiting, Unlanded int
	Streams           int64
	InFlight          int64
}

// page is the status page.
func (s *Service) page(w http.ResponseWriter, _ *http.Request) {
	d := pageData{
		Version: telemetry.Version(), Now: s.now().UTC().Format(time.RFC3339), Collector: s.collectorID, Acceptance: s.cfg.Acceptance,
		Policy: "unknown", Wanted: s.cfg.Store.BucketPolicy, Streams: s.streams.Load(), InFlight: s.inFlight.Load(),
	}
	d.Unlanded = s.unlanded()
	if c := s.writing.Load(); c != nil {
		d.Waiting = c.Waiting()
		if since, err := c.Failing(); err != nil {
			d.Journal = "it fails since " + since.UTC().Format(time.RFC3339) + ": " + err.Error()
		}
	}
	if err := s.NotReady(); err != nil {
		d.NotReady = err.Error()
	}
	if f := s.found.Load(); f != nil {
		d.Authority, d.Renamed, d.Probed = f.authority.AuthorityID, f.authority.Renamed, f.at.UTC().Format(time.RFC3339)
		d.Policy, d.Violations = f.policy.state, f.policy.violations
		if f.authority.Place != (objstore.Place{}) {
			d.BoundTo = f.authority.Place.String()
		}
	}
	var b bytes.Buffer
	// Into a buffer, so that an error can still become a status instead of half a page.
	if err := pageTemplate.Execute(&b, d); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	_, _ = w.Write(b.Bytes()) // an error means that the client has gone
}
