package reconciler

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
)

// FuzzWebhook: without the secret nothing is looked at; with it, what is queued is what
// the body names, all else is refused with a reason, and nothing is written.
func FuzzWebhook(f *testing.F) {
	good := event(layout.Accepted(batch("a", 0, 1)))
	for _, b := range [][]byte{good, good[:len(good)-1], append(bytes.Clone(good), 0), event("x"), {}, []byte("null"), []byte(`{"Records":[{}]}`),
		[]byte(`{"Records":[],"records":[{"s3":null}]}`), bytes.Repeat([]byte("["), 5000)} {
		f.Add(b, "Bearer s3cret")
	}
	for _, a := range []string{"", "s3cret", "Bearer ", "bearer  s3cret ", "Basic s3cret", "Bearer s3cret\x00"} {
		f.Add(good, a)
	}
	store := newStore()
	cfg := quiet()
	cfg.Events.Secret, cfg.Events.MaxBody = "s3cret", 4096
	s, err := New(cfg, Deps{Store: store, Telemetry: telemetry.Discard()})
	must(f, err)
	keys := func(t testing.TB) map[string]string {
		all := map[string]string{}
		must(t, storetest.Each(bg, store, "", func(i objstore.Info) error { all[i.Key] = i.ETag; return nil }))
		return all
	}
	before := keys(f)
	f.Fuzz(func(t *testing.T, body []byte, auth string) {
		r := httptest.NewRequest(http.MethodPost, "/v1/events", bytes.NewReader(body))
		r.Header["Authorization"] = []string{auth}
		w := httptest.NewRecorder()
		s.events(w, r)
		var a eventsAnswer
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			t.Fatalf("%d %q: %v", w.Code, w.Body, err)
		}
		named, ignored, bad := reconcile.ParseEvent(body, "")
		want := http.StatusOK
		switch {
		case auth != "s3cret" && rpc.BearerToken(auth) != "s3cret":
			want = http.StatusUnauthorized
		case len(body) > 4096:
			want = http.StatusRequestEntityTooLarge
		case bad != nil:
			want = http.StatusBadRequest
		case a.Dropped > 0:
			want = http.StatusServiceUnavailable
		}
		taken := a.Queued + a.Known + a.Dropped
		if w.Code != want || (want == http.StatusOK) != (a.Error == "") {
			t.Fatalf("%d %+v, want %d", w.Code, a, want)
		}
		if looked := want == http.StatusOK || want == http.StatusServiceUnavailable; looked && (taken != len(named) || a.Ignored != ignored) || !looked && taken+a.Ignored != 0 {
			t.Fatalf("%+v, want %d and %d ignored", a, len(named), ignored)
		}
		if !maps.Equal(before, keys(t)) {
			t.Fatal("something was written")
		}
	})
}
