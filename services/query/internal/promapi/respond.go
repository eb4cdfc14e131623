package promapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/annotations"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
)

// errorType is Prometheus' errorType with its HTTP status.
type errorType struct {
	name   string
	status int
}

const statusClientClosed = 499 // as nginx and Prometheus have it

var (
	badData     = errorType{"bad_data", http.StatusBadRequest}
	execution   = errorType{"execution", http.StatusUnprocessableEntity}
	canceled    = errorType{"canceled", statusClientClosed}
	timeout     = errorType{"timeout", http.StatusServiceUnavailable}
	internal    = errorType{"internal", http.StatusInternalServerError}
	unavailable = errorType{"unavailable", http.StatusServiceUnavailable}
	notFound    = errorType{"not_found", http.StatusNotFound}
	wrongMethod = errorType{"method_not_allowed", http.StatusMethodNotAllowed}
	slowBody    = errorType{"timeout", http.StatusRequestTimeout}
	largeBody   = errorType{"bad_data", http.StatusRequestEntityTooLarge}
	// Prometheus has no names of its own for what a proxy before it refuses.
	unauthorized = errorType{"unauthorized", http.StatusUnauthorized}
	forbidden    = errorType{"forbidden", http.StatusForbidden}
)

type apiError struct {
	typ errorType
	err error
}

func (e *apiError) Error() string { return e.err.Error() }
func (e *apiError) Unwrap() error { return e.err }

func badParam(name string, err error) error {
	return &apiError{badData, fmt.Errorf("invalid parameter %q: %w", name, err)}
}

// badBody is the answer to a form that can't be read: how the body came, or what it says.
func badBody(err error) *apiError {
	var large *http.MaxBytesError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded): // its text names the connection
		return &apiError{slowBody, errors.New("the body took too long to arrive")}
	case errors.As(err, &large):
		return &apiError{largeBody, err}
	}
	return &apiError{badData, err}
}

// classify maps an error to its type.
func classify(err error) errorType {
	var (
		api   *apiError
		query *answer.QueryError
		limit *promstore.LimitError
		busy  *answer.BusyError
		full  *answer.MemoryError
		late  *follow.NotVisibleError
		none  *follow.UnknownTokenError
		part  *answer.IncompleteError
		eqc   promql.ErrQueryCanceled
		eqt   promql.ErrQueryTimeout
		es    promql.ErrStorage
	)
	// The order matters: an error of the engine may wrap one of ours, which says more.
	switch {
	case errors.As(err, &api):
		return api.typ
	case errors.As(err, &query), errors.As(err, &none):
		return badData
	case errors.As(err, &limit):
		return execution
	case errors.As(err, &busy), errors.As(err, &full), errors.As(err, &late), errors.As(err, &part):
		return unavailable
	case errors.As(err, &eqc):
		return canceled
	case errors.As(err, &eqt), errors.Is(err, context.DeadlineExceeded):
		return timeout
	case errors.As(err, &es):
		return internal
	case errors.Is(err, context.Canceled):
		return canceled
	}
	return execution
}

// ReasonPartial is that of a query whose answer must be complete and would not be.
const ReasonPartial = "ANSWER_PARTIAL"

// text is the message of an error. The API has no field for reasons, so those that clients act on stand before it.
func text(err error) string {
	var (
		late *follow.NotVisibleError
		none *follow.UnknownTokenError
		part *answer.IncompleteError
	)
	switch {
	case errors.As(err, &part):
		return ReasonPartial + ": " + err.Error()
	case errors.As(err, &late):
		return follow.ReasonNotVisible + ": " + err.Error()
	case errors.As(err, &none):
		return follow.ReasonTokenUnknown + ": " + err.Error()
	}
	return err.Error()
}

func (a *API) fail(w http.ResponseWriter, err error) {
	t := classify(err)
	a.m.errors.WithLabelValues(t.name).Inc()
	b := appendString([]byte(`{"status":"error","errorType":`), t.name)
	b = append(appendString(append(b, `,"error":`...), text(err)), '}')
	w.Header().Set("Content-Type", "application/json")
	// Only what may succeed soon asks for another attempt.
	if t == unavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(t.status)
	_, _ = w.Write(b) // the client went away: nothing to do
}

// Refuse answers a caller without valid credentials, or without the role.
func (a *API) Refuse(w http.ResponseWriter, _ *http.Request, err error) {
	var denied *rpc.DeniedError
	if errors.As(err, &denied) {
		a.fail(w, &apiError{forbidden, err})
		return
	}
	rpc.Challenge(w)
	a.fail(w, &apiError{unauthorized, err})
}

// maxAnnotations bounds warnings and infos of an answer, each, as in Prometheus.
const maxAnnotations = 10

// completeness is the object "lightmetrics" of every answer.
type completeness struct {
	Partial         bool     `json:"partial"`
	CompleteThrough string   `json:"complete_through,omitempty"`
	Reasons         []string `json:"reasons,omitempty"`
	// Missing has one for each of the reasons.
	Missing        []missingJSON `json:"missing,omitempty"`
	Notes          []string      `json:"notes,omitempty"`
	AgentsWithGaps int           `json:"agents_with_gaps"`
	// Regions that were asked, where there are several.
	Regions []regionJSON `json:"regions,omitempty"`
}

// regionJSON says what of one region is in the answer.
type regionJSON struct {
	Region string `json:"region"`
	// Answered: it is in the answer; else Reason and Detail say why not.
	Answered bool   `json:"answered"`
	Reason   string `json:"reason,omitempty"`
	Detail   string `json:"detail,omitempty"`
	// As for the whole answer.
	Partial         bool          `json:"partial"`
	CompleteThrough string        `json:"complete_through,omitempty"`
	Reasons         []string      `json:"reasons,omitempty"`
	Missing         []missingJSON `json:"missing,omitempty"`
	Notes           []string      `json:"notes,omitempty"`
}

func regionsOf(list []answer.Region) (out []regionJSON) {
	for _, r := range list {
		j := regionJSON{Region: r.Name, Reason: string(r.Reason), Detail: r.Detail, Partial: true}
		if c := r.Completeness; c != nil {
			j.Answered, j.Partial = true, c.Partial
			if !c.CompleteThrough.IsZero() {
				j.CompleteThrough = c.CompleteThrough.UTC().Format(time.RFC3339Nano)
			}
			for _, x := range c.Reasons {
				j.Reasons, j.Missing = append(j.Reasons, x.String()), append(j.Missing, missingOf(x))
			}
			for _, n := range c.Notes {
				j.Notes = append(j.Notes, n.String())
			}
		}
		out = append(out, j)
	}
	return out
}

// plain reports that nothing is missing and nothing noted, as in nearly all answers.
func (c *completeness) plain() bool {
	return len(c.Reasons) == 0 && len(c.Missing) == 0 && len(c.Notes) == 0 && len(c.Regions) == 0
}

// appendPlain appends what json.Marshal gives of plain completeness.
func (c *completeness) appendPlain(b []byte) []byte {
	b = strconv.AppendBool(append(b, `{"partial":`...), c.Partial)
	if c.CompleteThrough != "" {
		b = appendString(append(b, `,"complete_through":`...), c.CompleteThrough)
	}
	return append(strconv.AppendInt(append(b, `,"agents_with_gaps":`...), int64(c.AgentsWithGaps), 10), '}')
}

// missingJSON says how much is missing for one reason, as far as that is known.
type missingJSON struct {
	Code    string `json:"code"`
	Batches int    `json:"batches,omitempty"`
	AtLeast bool   `json:"at_least,omitempty"`
	// Hours are ranges of whole hours, from the start of the first to the end of the last.
	Hours      [][2]time.Time `json:"hours,omitempty"`
	MoreHours  int            `json:"more_hours,omitempty"`
	Shards     []uint32       `json:"shards,omitempty"`
	MoreShards int            `json:"more_shards,omitempty"`
}

func missingOf(r answer.Reason) missingJSON {
	m := r.Missing
	out := missingJSON{Code: r.Code, Batches: m.Batches, AtLeast: m.AtLeast, MoreHours: m.MoreHours, Shards: m.Shards, MoreShards: m.MoreShards}
	for _, h := range m.Hours {
		out.Hours = append(out.Hours, [2]time.Time{h.Start(), h.End()})
	}
	return out
}

// succeed ends the answer and writes it. c may be nil. No session may be open: the client
// decides how long this takes.
func (a *API) succeed(w http.ResponseWriter, o *body, query string, notes annotations.Annotations, c *answer.Completeness) {
	warnings, infos := notes.AsStrings(query, maxAnnotations, maxAnnotations)
	// The engine collects annotations in a map; sorted, equal answers are equal bytes.
	slices.Sort(warnings)
	slices.Sort(infos)
	b := o.b
	if c != nil {
		reasons := make([]string, len(c.Reasons))
		var lacking []missingJSON
		for i, r := range c.Reasons {
			reasons[i] = r.String()
			a.m.reasons.WithLabelValues(r.Code).Inc()
			lacking = append(lacking, missingOf(r))
			warnings = append(warnings, "partial answer: "+reasons[i])
		}
		noted := make([]string, len(c.Notes))
		for i, n := range c.Notes {
			noted[i] = n.String()
			warnings = append(warnings, noted[i])
		}
		for _, g := range c.Gaps {
			if n := len(g.Gaps); n > 0 {
				infos = append(infos, fmt.Sprintf("%s has %d gaps in its sequence, the first is %d-%d", g.Boot, n, g.Gaps[0].Start, g.Gaps[0].End))
			}
			if n := len(g.Overlaps); n > 0 {
				infos = append(infos, fmt.Sprintf("%s has %d overlaps in its sequence, the first is %d-%d; each number is counted once", g.Boot, n, g.Overlaps[0].Start, g.Overlaps[0].End))
			}
		}
		j := completeness{Partial: c.Partial, Reasons: reasons, Missing: lacking, Notes: noted, AgentsWithGaps: c.AgentsWithGaps, Regions: regionsOf(c.Regions)}
		if !c.CompleteThrough.IsZero() {
			j.CompleteThrough = c.CompleteThrough.UTC().Format(time.RFC3339Nano)
		}
		b = append(b, `,"lightmetrics":`...)
		if j.plain() {
			b = j.appendPlain(b)
		} else {
			text, err := json.Marshal(j)
			if err != nil {
				a.fail(w, &apiError{internal, err})
				return
			}
			b = append(b, text...)
		}
		if c.Partial {
			a.m.partial.Inc()
		}
	}
	b = appendStrings(b, "warnings", warnings)
	b = appendStrings(b, "infos", infos)
	b = append(b, '}')
	o.b = b
	w.Header().Set("Content-Type", "application/json")
	// Else a longer answer is sent in chunks. Compressing takes this away again.
	w.Header().Set("Content-Length", strconv.Itoa(o.len()))
	_, _ = o.WriteTo(w) // the client went away: nothing to do
}

func appendStrings(b []byte, name string, list []string) []byte {
	if len(list) == 0 {
		return b
	}
	b = append(append(append(b, `,"`...), name...), `":`...)
	return appendList(b, list)
}

func appendList(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}
