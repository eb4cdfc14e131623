// Package promapi is the Prometheus HTTP API over an answer.Evaluator: same paths,
// parameters, envelope, error types and status codes, plus the object "lightmetrics".
package promapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"

	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
	"lightmetrics.dev/lightmetrics/services/query/internal/regions"
)

// API serves the paths below /api/v1.
type API struct {
	eval    *answer.Evaluator
	version string
	log     *slog.Logger
	m       metrics
}

type metrics struct {
	seconds *prometheus.HistogramVec
	errors  *prometheus.CounterVec
	partial prometheus.Counter
	reasons *prometheus.CounterVec
}

// New makes an API.
func New(eval *answer.Evaluator, version string, log *slog.Logger, reg prometheus.Registerer) *API {
	p := promauto.With(reg)
	a := &API{eval: eval, version: version, log: log, m: metrics{
		seconds: p.NewHistogramVec(prometheus.HistogramOpts{Name: "lightmetrics_query_request_seconds",
			Help: "Time of a request of the Prometheus API.", Buckets: prometheus.ExponentialBuckets(.001, 4, 9)}, []string{"path"}),
		errors: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_errors_total",
			Help: "Requests that were answered with an error, by its type."}, []string{"type"}),
		partial: p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_partial_answers_total",
			Help: "Answers that were marked partial."}),
		reasons: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_partial_reasons_total",
			Help: "Reasons that partial answers gave; an answer may give several."}, []string{"reason"}),
	}}
	for _, t := range []errorType{unavailable, timeout} {
		a.m.errors.WithLabelValues(t.name) // alerts see the first one
	}
	for _, code := range answer.Reasons() {
		a.m.reasons.WithLabelValues(code)
	}
	return a
}

// maxBody bounds the form of a POST.
const maxBody = 4 << 20

// Register adds the paths.
func (a *API) Register(mux *http.ServeMux) {
	both := []string{http.MethodGet, http.MethodPost}
	get := both[:1]
	for _, h := range []struct {
		path    string
		methods []string
		fn      func(http.ResponseWriter, *http.Request) error
	}{
		{"/api/v1/query", both, a.query},
		{"/api/v1/query_range", both, a.queryRange},
		{"/api/v1/query_exemplars", both, a.exemplars},
		{"/api/v1/format_query", both, a.formatQuery},
		{"/api/v1/series", both, a.series},
		{"/api/v1/labels", both, a.labelNames},
		{"/api/v1/label/{name}/values", get, a.labelValues},
		{"/api/v1/metadata", get, a.metadata},
		{"/api/v1/status/buildinfo", get, a.buildInfo},
	} {
		seconds := a.m.seconds.WithLabelValues(h.path)
		handler := func(w http.ResponseWriter, r *http.Request) {
			timer := prometheus.NewTimer(seconds)
			defer timer.ObserveDuration()
			// ParseForm reads the whole body, so the bound must be there before.
			r.Body = web.LimitBody(w, r.Body, maxBody)
			if err := r.ParseForm(); err != nil {
				a.fail(w, badBody(err))
				return
			}
			if err := h.fn(w, r); err != nil {
				a.fail(w, err)
			}
		}
		for _, m := range h.methods {
			mux.HandleFunc(m+" "+h.path, handler)
		}
		allow := strings.Join(append([]string{http.MethodHead}, h.methods...), ", ")
		// The mux would answer other methods with plain text; clients of the API expect its JSON.
		mux.HandleFunc(h.path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allow)
			a.fail(w, &apiError{wrongMethod, fmt.Errorf("%.32q is not for %s; %s is", r.Method, r.URL.Path, allow)})
		})
	}
	mux.HandleFunc("/api/v1/", func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, &apiError{notFound, errors.New("no such path: " + r.URL.Path)})
	})
}

func (a *API) query(w http.ResponseWriter, r *http.Request) error {
	limit, err := limitParam(r)
	if err != nil {
		return err
	}
	at, err := timeParam(r, "time", a.eval.Now())
	if err != nil {
		return err
	}
	return a.evaluate(w, r, limit, func(ctx context.Context, s *answer.Session, o answer.Options) (answer.Result, error) {
		return s.Instant(ctx, r.FormValue("query"), at, o)
	})
}

func (a *API) queryRange(w http.ResponseWriter, r *http.Request) error {
	limit, err := limitParam(r)
	if err != nil {
		return err
	}
	start, err := requiredTime(r, "start")
	if err != nil {
		return err
	}
	end, err := requiredTime(r, "end")
	if err != nil {
		return err
	}
	step, err := parseDuration(r.FormValue("step"))
	if err != nil {
		return badParam("step", err)
	}
	if err := a.eval.CheckRange(start, end, step); err != nil {
		return err
	}
	return a.evaluate(w, r, limit, func(ctx context.Context, s *answer.Session, o answer.Options) (answer.Result, error) {
		return s.Range(ctx, r.FormValue("query"), start, end, step, o)
	})
}

var errTruncated = errors.New("results truncated due to limit")

type evaluation func(context.Context, *answer.Session, answer.Options) (answer.Result, error)

func (a *API) evaluate(w http.ResponseWriter, r *http.Request, limit int, fn evaluation) error {
	ctx, cancel, err := a.deadline(r)
	if err != nil {
		return err
	}
	defer cancel()
	lookback, err := durationParam(r, "lookback_delta")
	if err != nil {
		return err
	}
	statsParam := r.FormValue("stats")
	out := a.body()
	defer out.release()
	s, err := a.open(ctx, r)
	if err != nil {
		return err
	}
	defer s.Close()
	res, err := fn(ctx, s, answer.Options{Lookback: lookback, Stats: statsParam != "", PerStepStats: statsParam == "all"})
	if err != nil {
		var qe *answer.QueryError
		if errors.As(err, &qe) {
			return badParam("query", err)
		}
		return err
	}
	// Cut before it is written, so that the rest costs no memory.
	if limit > 0 && truncate(&res, limit) {
		res.Warnings.Add(errTruncated)
	}
	out.b = append(appendString(append(out.b, `{"resultType":`...), string(res.Value.Type())), `,"result":`...)
	if err := out.value(res.Value, s.Check); err != nil {
		return err
	}
	if statsParam != "" {
		text, err := json.Marshal(stats.NewQueryStats(res.Stats))
		if err != nil {
			return &apiError{internal, err}
		}
		out.b = append(append(out.b, `,"stats":`...), text...)
		if st := s.Published(); st != nil {
			if text, err = json.Marshal(st); err != nil {
				return &apiError{internal, err}
			}
			// Prometheus' own object is closed by a brace, which moves behind our member.
			out.b = append(append(append(out.b[:len(out.b)-1], `,"published":`...), text...), '}')
		}
	}
	out.b = append(out.b, '}')
	// The slot and the snapshot are given back before the answer is sent: a slow client must not hold them.
	c, err := completenessOf(s, r)
	if err != nil {
		return err
	}
	s.Close()
	a.succeed(w, out, r.FormValue("query"), res.Warnings, c)
	return nil
}

// open waits until what the request asks to see is visible, and opens a session.
func (a *API) open(ctx context.Context, r *http.Request) (*answer.Session, error) {
	fresh, err := freshParam(r)
	if err != nil {
		return nil, err
	}
	scope, err := regionsParam(a.eval, r)
	if err != nil {
		return nil, err
	}
	// A wrong value must not cost a query.
	if _, err := wholeParam(r); err != nil {
		return nil, err
	}
	// Before a slot is taken: a query that waits for others' data must not keep those from running that need none.
	unknown, err := a.eval.AwaitIn(ctx, fresh, scope)
	if err != nil {
		return nil, err
	}
	return a.eval.OpenIn(ctx, answer.In{Scope: scope, Caller: regions.CallerFrom(r.Context()), Strong: fresh.Strong, Tokens: fresh.Tokens, Unknown: unknown})
}

// completeness of what a session has read; an error where the request wants it whole and it is not.
func completenessOf(s *answer.Session, r *http.Request) (*answer.Completeness, error) {
	c := s.Completeness()
	if want, err := wholeParam(r); err != nil {
		return nil, err
	} else if want {
		return &c, c.Whole()
	}
	return &c, nil
}

// deadline applies the parameter timeout; which is at most the evaluator's own limit.
func (a *API) deadline(r *http.Request) (context.Context, context.CancelFunc, error) {
	d, err := durationParam(r, "timeout")
	if err != nil {
		return nil, nil, err
	}
	limit := a.eval.Limits().Timeout
	// A timeout of 0 that is given means 0, as in Prometheus; only an absent one means the limit.
	if d <= 0 && r.FormValue("timeout") == "" || d > limit {
		d = limit
	}
	ctx, cancel := context.WithTimeout(r.Context(), d)
	return ctx, cancel, nil
}

func truncate(res *answer.Result, limit int) bool {
	switch v := res.Value.(type) {
	case promql.Matrix:
		if len(v) > limit {
			res.Value = v[:limit]
			return true
		}
	case promql.Vector:
		if len(v) > limit {
			res.Value = v[:limit]
			return true
		}
	}
	return false
}

func (a *API) formatQuery(w http.ResponseWriter, r *http.Request) error {
	expr, err := a.eval.Parse(r.FormValue("query"))
	if err != nil {
		return badParam("query", err)
	}
	a.small(w, appendString(nil, expr.Pretty(0)))
	return nil
}

// exemplars: frames carry none yet, so the list is empty; the parameters are checked all the same.
func (a *API) exemplars(w http.ResponseWriter, r *http.Request) error {
	start, err := timeParam(r, "start", minTime)
	if err != nil {
		return err
	}
	end, err := timeParam(r, "end", maxTime)
	if err != nil {
		return err
	}
	if end.Before(start) {
		return &apiError{badData, errors.New("end timestamp must not be before start timestamp")}
	}
	if _, err := a.eval.Parse(r.FormValue("query")); err != nil {
		return &apiError{badData, err}
	}
	a.small(w, []byte("[]"))
	return nil
}

// selection is what /series, /labels and /label/…/values share.
type selection struct {
	start, end time.Time
	limit      int
	matchers   [][]*labels.Matcher
}

func (a *API) selection(r *http.Request) (s selection, err error) {
	if s.limit, err = limitParam(r); err != nil {
		return s, err
	}
	// Without a range: what is kept, so that the answer is not about what never was.
	if s.start, err = timeParam(r, "start", time.Time{}); err != nil {
		return s, err
	}
	if s.end, err = timeParam(r, "end", maxTime); err != nil {
		return s, err
	}
	s.matchers, err = matchersParam(a.eval, r)
	return s, err
}

// with opens a session and a querier over the selection's range. fn writes the data.
func (a *API) with(w http.ResponseWriter, r *http.Request, sel selection, fn func(context.Context, storage.Querier, *body) (annotations.Annotations, error)) error {
	ctx, cancel := context.WithTimeout(r.Context(), a.eval.Limits().Timeout)
	defer cancel()
	out := a.body()
	defer out.release()
	s, err := a.open(ctx, r)
	if err != nil {
		return err
	}
	defer s.Close()
	start := s.Snapshot.From
	if !sel.start.IsZero() {
		start = timestamp.FromTime(sel.start)
	}
	var notes annotations.Annotations
	if err := s.Read(ctx, func() error {
		q, err := s.Querier(start, timestamp.FromTime(sel.end))
		if err != nil {
			return err
		}
		defer q.Close()
		// Read may call this function twice; what a first attempt wrote is void.
		out.restart()
		if notes, err = fn(ctx, q, out); err != nil {
			return err
		}
		return out.grown()
	}); err != nil {
		return err
	}
	c, err := completenessOf(s, r)
	if err != nil {
		return err
	}
	s.Close()
	a.succeed(w, out, "", notes, c)
	return nil
}

func (a *API) series(w http.ResponseWriter, r *http.Request) error {
	if len(r.Form["match[]"]) == 0 {
		return &apiError{badData, errors.New("no match[] parameter provided")}
	}
	sel, err := a.selection(r)
	if err != nil {
		return err
	}
	return a.with(w, r, sel, func(ctx context.Context, q storage.Querier, out *body) (annotations.Annotations, error) {
		hints := &storage.SelectHints{Func: "series", DisableTrimming: true}
		sets := make([]storage.SeriesSet, len(sel.matchers))
		for i, ms := range sel.matchers {
			// Only several sets must be sorted to be merged, and only a part of them must be the same part each time.
			sets[i] = q.Select(ctx, len(sets) > 1 || sel.limit > 0, hints, ms...)
		}
		var notes annotations.Annotations
		set := storage.NewMergeSeriesSet(sets, 0, storage.ChainedSeriesMerge)
		out.b = append(out.b, '[')
		n := 0
		for set.Next() {
			if err := errors.Join(ctx.Err(), out.grown()); err != nil {
				return nil, err
			}
			if sel.limit > 0 && n == sel.limit {
				notes.Add(errTruncated)
				break
			}
			if n > 0 {
				out.b = append(out.b, ',')
			}
			n++
			out.b = appendLabels(out.b, set.At().Labels())
		}
		out.b = append(out.b, ']')
		return notes, set.Err()
	})
}

func (a *API) labelNames(w http.ResponseWriter, r *http.Request) error {
	return a.names(w, r, func(ctx context.Context, q storage.Querier, ms ...*labels.Matcher) ([]string, error) {
		list, _, err := q.LabelNames(ctx, nil, ms...)
		return list, err
	})
}

func (a *API) labelValues(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if strings.HasPrefix(name, "U__") {
		// Names that no URL path can hold come escaped, as in Prometheus.
		name = model.UnescapeName(name, model.ValueEncodingEscaping)
	}
	if !model.UTF8Validation.IsValidLabelName(name) {
		return &apiError{badData, errors.New("invalid label name: " + strconv.Quote(name))}
	}
	return a.names(w, r, func(ctx context.Context, q storage.Querier, ms ...*labels.Matcher) ([]string, error) {
		list, _, err := q.LabelValues(ctx, name, nil, ms...)
		return list, err
	})
}

func (a *API) names(w http.ResponseWriter, r *http.Request, read func(context.Context, storage.Querier, ...*labels.Matcher) ([]string, error)) error {
	sel, err := a.selection(r)
	if err != nil {
		return err
	}
	if len(sel.matchers) == 0 {
		// One selection without matchers is everything.
		sel.matchers = [][]*labels.Matcher{nil}
	}
	return a.with(w, r, sel, func(ctx context.Context, q storage.Querier, out *body) (annotations.Annotations, error) {
		var all []string
		for _, ms := range sel.matchers {
			list, err := read(ctx, q, ms...)
			if err != nil {
				return nil, err
			}
			all = append(all, list...)
		}
		slices.Sort(all)
		all = slices.Compact(all)
		var notes annotations.Annotations
		if sel.limit > 0 && len(all) > sel.limit {
			all = all[:sel.limit]
			notes.Add(errTruncated)
		}
		out.b = appendList(out.b, all)
		return notes, nil
	})
}

var typeNames = map[series.Type]string{
	series.Unknown: "unknown", series.Gauge: "gauge", series.Counter: "counter", series.DeltaCounter: "counter",
	series.HistogramCumulative: "histogram", series.HistogramDelta: "histogram", series.HistogramGauge: "gaugehistogram",
	series.Info: "info",
}

type metadata struct {
	Type string `json:"type"`
	Unit string `json:"unit"`
	Help string `json:"help"`
}

func (a *API) metadata(w http.ResponseWriter, r *http.Request) error {
	limit, perMetric := -1, -1
	for name, to := range map[string]*int{"limit": &limit, "limit_per_metric": &perMetric} {
		if v := r.FormValue(name); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				return &apiError{badData, errors.New(name + " must be a number")}
			}
			*to = n
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.eval.Limits().Timeout)
	defer cancel()
	body := a.body()
	defer body.release()
	s, err := a.open(ctx, r)
	if err != nil {
		return err
	}
	defer s.Close()
	list, err := metadataOf(ctx, s, r.FormValue("metric"))
	if err != nil {
		return err
	}
	out := map[string][]metadata{}
	for _, m := range list {
		have, ok := out[m.Name]
		// A metric that is in the answer already may still get further entries.
		if !ok && limit >= 0 && len(out) >= limit || perMetric > 0 && len(have) >= perMetric {
			continue
		}
		if md := (metadata{Type: typeNames[m.Type], Unit: m.Unit, Help: m.Help}); !slices.Contains(have, md) {
			out[m.Name] = append(have, md)
		}
	}
	data, err := json.Marshal(out)
	if err != nil {
		return &apiError{internal, err}
	}
	body.b = append(body.b, data...)
	if err := body.grown(); err != nil {
		return err
	}
	c, err := completenessOf(s, r)
	if err != nil {
		return err
	}
	s.Close()
	a.succeed(w, body, "", nil, c)
	return nil
}

// metadataOf is what metrics mean in the regions of a session: where they differ, each has an entry, those of this region
// first.
func metadataOf(ctx context.Context, s *answer.Session, metric string) (list []live.Metadata, err error) {
	if s.Own() {
		if list, err = s.Snapshot.Metadata(ctx, metric); err != nil {
			return nil, err
		}
	}
	if s.Elsewhere() == nil {
		return list, nil
	}
	others, err := s.Elsewhere().Metadata(ctx, metric)
	if err != nil {
		return nil, err
	}
	for _, m := range others {
		list = append(list, live.Metadata{Name: m.GetName(), Type: series.Type(m.GetType()), Unit: m.GetUnit(), Help: m.GetHelp()})
	}
	slices.SortStableFunc(list, func(a, b live.Metadata) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// PromQLVersion is the Prometheus release whose engine answers; clients choose features by it.
const PromQLVersion = "3.15.0"

func (a *API) buildInfo(w http.ResponseWriter, _ *http.Request) error {
	data, err := json.Marshal(map[string]string{
		"version": PromQLVersion, "revision": "lightmetrics " + a.version, "branch": "", "buildUser": "", "buildDate": "",
		"goVersion": runtime.Version(),
	})
	if err != nil {
		return &apiError{internal, err}
	}
	a.small(w, data)
	return nil
}

// small sends an answer that nothing was read for.
func (a *API) small(w http.ResponseWriter, data []byte) {
	out := a.body()
	defer out.release()
	out.b = append(out.b, data...)
	a.succeed(w, out, "", nil, nil)
}
