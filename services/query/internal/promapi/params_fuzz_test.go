package promapi

import (
	"errors"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
)

// FuzzParams: parameters are read, or refused as bad_data; a time lies in Prometheus' range.
func FuzzParams(f *testing.F) {
	for _, s := range []string{"0", "1.5", "-1e300", "9223372036854775807", "2026-01-01T00:00:00Z", minTimeText, maxTimeText, "NaN", "+Inf", "0x1p62", "1_0", ""} {
		f.Add(s, "15s", "10", `{a="b"}`)
	}
	f.Add("1", "1e300", "-1", `{__name__=~".*"}`)
	f.Add("1", "292y", "9223372036854775808", `up{`)
	p := parser.NewParser(parser.Options{})
	f.Fuzz(func(t *testing.T, at, step, limit, match string) {
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{RawQuery: url.Values{
			"time": {at}, "step": {step}, "limit": {limit}, "match[]": {match}}.Encode()}}
		want := func(err error) {
			var api *apiError
			if err != nil && (!errors.As(err, &api) || api.typ != badData) {
				t.Fatalf("%v", err)
			}
		}
		when, err := timeParam(r, "time", time.Unix(0, 0))
		want(err)
		if err == nil && (when.Before(minTime) || when.After(maxTime)) {
			t.Fatalf("%q is %v", at, when)
		}
		_, err = durationParam(r, "step")
		want(err)
		n, err := limitParam(r)
		want(err)
		if n < 0 {
			t.Fatalf("limit %d of %q", n, limit)
		}
		_, err = matchersParam(&answer.Evaluator{Parser: p}, r)
		want(err)
	})
}
