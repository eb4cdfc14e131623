package reconciler

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// eventsAnswer is the body of the answer to POST /v1/events.
type eventsAnswer struct {
	Queued  int    `json:"queued"`
	Known   int    `json:"known"`
	Ignored int    `json:"ignored"`
	Dropped int    `json:"dropped"`
	Error   string `json:"error,omitempty"`
}

// eventsRoute accepts callers with the webhook's secret. Without a secret it accepts the
// callers that may send hints over gRPC.
func (s *Service) eventsRoute() web.Route {
	r := web.Route{Pattern: "POST /v1/events", About: "webhook for events of the object store", Roles: workers,
		OwnBody: true, Handler: http.HandlerFunc(s.events)}
	if s.cfg.Events.Secret != "" {
		r.Open, r.About = true, r.About+", with its own secret"
	}
	return r
}

// events accepts S3 event JSON. It answers 503 if the queue is full: the sender tries again,
// and events that were queued already are then known.
func (s *Service) events(w http.ResponseWriter, r *http.Request) {
	if !s.eventsAllowed(rpc.Authorization(r.Header)) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		answer(w, http.StatusUnauthorized, eventsAnswer{Error: "missing or wrong Authorization"})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.cfg.Events.MaxBody)))
	if err != nil {
		code := http.StatusBadRequest
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			code = http.StatusRequestEntityTooLarge
		}
		answer(w, code, eventsAnswer{Error: err.Error()})
		return
	}
	keys, ignored, err := reconcile.ParseEvent(body, s.cfg.Events.KeyPrefix)
	if err != nil {
		answer(w, http.StatusBadRequest, eventsAnswer{Error: err.Error()})
		return
	}
	failpoint.Hit("reconciler.events.received.after")
	a := eventsAnswer{Ignored: ignored}
	s.m.hints.WithLabelValues(string(fromEvent), "ignored").Add(float64(ignored))
	for _, k := range keys {
		switch s.hint(k, fromEvent) {
		case offerQueued:
			a.Queued++
		case offerKnown:
			a.Known++
		case offerFull:
			a.Dropped++
		}
	}
	failpoint.Hit("reconciler.events.answer.before")
	code := http.StatusOK
	if a.Dropped > 0 {
		code, a.Error = http.StatusServiceUnavailable, "queue is full"
		w.Header().Set("Retry-After", "1")
	}
	answer(w, code, a)
}

func (s *Service) eventsAllowed(header string) bool {
	want := s.cfg.Events.Secret.Reveal()
	if want == "" {
		return true
	}
	// Hashes have one length, so the time of the comparison says nothing about the secret.
	w := sha256.Sum256([]byte(want))
	for _, got := range []string{header, rpc.BearerToken(header)} {
		if g := sha256.Sum256([]byte(got)); subtle.ConstantTimeCompare(g[:], w[:]) == 1 {
			return true
		}
	}
	return false
}

func answer(w http.ResponseWriter, code int, a eventsAnswer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(a) // the client went away: nothing to do
}
