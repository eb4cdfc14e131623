package query

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"html/template"
	"net/http"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
	"lightmetrics.dev/lightmetrics/services/query/internal/regions"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"ns": func(ns int64) string {
		if ns == 0 {
			return "never"
		}
		return time.Unix(0, ns).UTC().Format(time.RFC3339)
	},
	"short": func(s string) string { return s[:min(len(s), 12)] },
}).Parse(pageText))

// Bounds of what the page shows.
const (
	pageAgents    = 200
	pageConflicts = 50
	pageClashes   = 20
	// pageTimeout bounds the page's reads from the store.
	pageTimeout = 3 * time.Second
)

type pageData struct {
	Version        string
	Now            string
	C              answer.Completeness
	Through        string
	Age            string // of the poll that proved it
	Head           uint64
	OpenRuns       int
	Stats          live.Stats
	Status         follow.Status
	Agents         []follow.Agent
	Conflicts      []*queryv1.IdentityConflict
	ConflictsError string
	MoreAgents     bool
	MoreConflicts  bool
	Clashes        []resolution.Clash
	ClashesError   string
	MoreClashes    bool
	Regions        []answer.Region
}

// page is the status page.
func (s *Service) page(w http.ResponseWriter, r *http.Request) {
	st := s.follow.Status()
	d := pageData{
		Version: telemetry.Version(), Now: s.now().UTC().Format(time.RFC3339),
		C: s.eval.Completeness(st), Through: "nothing yet", Stats: s.live.Stats(), Status: st,
		Agents: s.follow.Agents("", identity.Boot{}, pageAgents+1),
	}
	d.Head, d.OpenRuns = s.follow.Journal()
	if !st.Since.IsZero() {
		d.Age = max(0, s.now().Sub(st.Since)).Round(time.Millisecond).String()
	}
	if !st.CompleteThrough.IsZero() {
		d.Through = st.CompleteThrough.UTC().Format(time.RFC3339)
	}
	if d.MoreAgents = len(d.Agents) > pageAgents; d.MoreAgents {
		d.Agents = d.Agents[:pageAgents]
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	d.Regions = s.regions(r.Context(), st)
	list, next, err := conflicts(ctx, s.store, layout.QuarantinePrefix, "", pageConflicts)
	if err != nil {
		// The page is what people open when something is wrong, so it shows what it can.
		d.ConflictsError = err.Error()
	}
	d.Conflicts, d.MoreConflicts = list, next != ""
	if d.Clashes, d.MoreClashes, err = clashes(ctx, s.store); err != nil {
		d.ClashesError = err.Error()
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

// regions says how each region stands; nothing where there is one.
func (s *Service) regions(ctx context.Context, st follow.Status) []answer.Region {
	scope, err := s.eval.Scope([]string{regions.All})
	if err != nil {
		return nil
	}
	// Their own time: a region that is late must not take that of what follows.
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	q, done := s.eval.Ask(ctx, answer.In{Scope: scope, Caller: regions.CallerFrom(ctx)})
	defer done()
	if q == nil {
		return nil
	}
	// A region's error is part of the completeness; the end of ctx leaves out those that did not answer.
	_ = q.Probe(ctx)
	return s.eval.CompletenessIn(scope, func() answer.Completeness { return s.eval.Completeness(st) }, q).Regions
}

// clashes reads the first records of spools that used a boot id of another one. For a record that can't be read it lists
// what the key says.
func clashes(ctx context.Context, store objstore.Reader) (out []resolution.Clash, more bool, err error) {
	page, err := store.List(ctx, objstore.ListOptions{Prefix: layout.ClashPrefix, Limit: pageClashes})
	if err != nil {
		return nil, false, err
	}
	for _, o := range page.Objects {
		boot, _, err := layout.ParseClash(o.Key)
		if err != nil {
			continue // a foreign key; fsck reports it
		}
		body, _, err := store.Get(ctx, o.Key, objstore.GetOptions{Limit: int64(resolution.ClashKind.MaxBytes)})
		if err != nil && !errors.Is(err, objstore.ErrNotFound) && !objstore.Unreadable(err) {
			return out, page.Next != "", err
		}
		c, err := resolution.ParseClash(o.Key, body)
		if err != nil {
			c = resolution.Clash{AgentID: boot.Agent, BootID: boot.Boot, SpoolID: "unreadable"}
		}
		out = append(out, c)
	}
	return out, page.Next != "", nil
}
