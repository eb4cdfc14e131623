package objectstore

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/redundancy"
)

//go:embed status.html
var statusText string

var statusTemplate = template.Must(template.New("status").Funcs(template.FuncMap{
	"bytes": byteText, "percent": percentText, "when": whenText, "seconds": secondsText, "placeClass": placeClass,
}).Parse(statusText))

// mostRows bounds the lists of the page: buckets and damages may be many. The JSON paths have all.
const mostRows = 200

// statusData is what the page shows.
type statusData struct {
	Version, Now string
	NotReady     string // why; empty when it is ready
	Drives       Drives
	// Redundancy is nil without places; RedundancyError is why it cannot be told.
	Redundancy      *RedundancyStatus
	RedundancyError string
	Usage           []engine.Usage
	Keys            []engine.KeyUsage
	Rewrite         int64
	Uncertain       string
	Damages         []engine.Damage
	// MoreBuckets and MoreDamages are left off.
	MoreBuckets, MoreDamages int
}

func (s *Service) statusRoute(eng *engine.Engine, m *metrics) web.Route {
	return web.Route{Pattern: "GET /status", About: "a page with all of it: drives, places, redundancy, buckets, keys, damage", Roles: []web.Role{web.RoleOperator},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, s.status(eng, m)) })}
}

func (s *Service) status(eng *engine.Engine, m *metrics) statusData {
	d := statusData{Version: telemetry.Version(), Now: s.deps.Now().UTC().Format(time.RFC3339), Drives: s.drives.status(), Keys: eng.KeyUsage()}
	if err := ready(eng); err != nil {
		d.NotReady = err.Error()
	}
	if err := eng.Uncertain(); err != nil {
		d.Uncertain = err.Error()
	}
	if s.cfg.Encryption.RewriteRate > 0 {
		d.Rewrite = eng.StaleBytes()
	}
	if keeper := m.keeping.get(); keeper != nil {
		if st, err := keeper.Status(); err != nil {
			d.RedundancyError = err.Error()
		} else {
			d.Redundancy = &st
		}
	}
	d.Usage, d.MoreBuckets = first(eng.Usage())
	d.Damages, d.MoreDamages = first(eng.Damages())
	return d
}

// first gives the rows that fit on the page, and how many do not.
func first[T any](list []T) ([]T, int) {
	n := min(len(list), mostRows)
	return list[:n], len(list) - n
}

func writeStatus(w http.ResponseWriter, d statusData) {
	var b bytes.Buffer
	// Into a buffer, so that an error can still become a status instead of half a page.
	if err := statusTemplate.Execute(&b, d); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(b.Bytes()) // an error means that the client has gone
}

// byteText writes a number of bytes for people; a dash for one that is not known.
func byteText(n int64) string {
	const units = "KMGTPE"
	if n < 0 {
		return "–"
	}
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1024, 0
	for v >= 999.5 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	return fmt.Sprintf("%.3g %ciB", v, units[unit])
}

func percentText(part, whole int64) string {
	return fmt.Sprintf("%.0f%%", 100*float64(part)/float64(max(whole, 1)))
}

func whenText(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format(time.RFC3339)
}

func secondsText(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

// placeClass is how a place's state looks.
func placeClass(p redundancy.PlaceStatus) string {
	switch p.Is() {
	case "up":
		return "ok"
	case "away", "full":
		return "bad"
	}
	return "dim"
}
