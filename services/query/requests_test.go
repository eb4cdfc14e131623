package query_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/services/query"
)

func TestBadRequests(t *testing.T) {
	n := start(t, newAuthority(t), nil)
	for _, c := range []struct {
		path   string
		params []string
		code   int
		typ    string
		text   string
	}{
		{"/api/v1/query", []string{"query", ""}, 400, "bad_data", `invalid parameter "query"`},
		{"/api/v1/query", []string{"query", "up("}, 400, "bad_data", `invalid parameter "query"`},
		{"/api/v1/query", []string{"query", "up", "time", "yesterday"}, 400, "bad_data", `invalid parameter "time"`},
		{"/api/v1/query", []string{"query", "up", "time", "NaN"}, 400, "bad_data", `invalid parameter "time"`},
		{"/api/v1/query", []string{"query", "up", "limit", "-1"}, 400, "bad_data", `invalid parameter "limit"`},
		{"/api/v1/query", []string{"query", "up", "timeout", "x"}, 400, "bad_data", `invalid parameter "timeout"`},
		{"/api/v1/query", []string{"query", "up", "lookback_delta", "x"}, 400, "bad_data", `lookback_delta`},
		{"/api/v1/query", []string{"query", `label_replace(up, "a", "b", "c", "(")`}, 422, "execution", "regular expression"},
		{"/api/v1/query_range", []string{"query", "up", "start", "0", "end", "1"}, 400, "bad_data", `"step"`},
		{"/api/v1/query_range", []string{"query", "up", "start", "0", "end", "1", "step", "0"}, 400, "bad_data", "zero or negative"},
		{"/api/v1/query_range", []string{"query", "up", "start", "2", "end", "1", "step", "1"}, 400, "bad_data", "must not be before"},
		{"/api/v1/query_range", []string{"query", "up", "start", "0", "end", "100000", "step", "1"}, 400, "bad_data", "limits.points"},
		{"/api/v1/query_range", []string{"query", `"text"`, "start", "0", "end", "1", "step", "1"}, 400, "bad_data", "invalid expression type"},
		{"/api/v1/series", nil, 400, "bad_data", "no match[] parameter"},
		{"/api/v1/series", []string{"match[]", `{a=~".*"}`}, 400, "bad_data", "non-empty matcher"},
		{"/api/v1/series", []string{"match[]", `{`}, 400, "bad_data", "match[]"},
		{"/api/v1/series", []string{"match[]", `{a=~"` + strings.Repeat("x{1000}", 200) + `"}`}, 400, "bad_data", "regular expressions"},
		{"/api/v1/labels", []string{"start", "x"}, 400, "bad_data", `"start"`},
		{"/api/v1/metadata", []string{"limit", "x"}, 400, "bad_data", "limit must be a number"},
		{"/api/v1/format_query", []string{"query", "a+"}, 400, "bad_data", `"query"`},
		{"/api/v1/query_exemplars", []string{"query", "up", "start", "2", "end", "1"}, 400, "bad_data", "must not be before"},
		{"/api/v1/nothing", nil, 404, "not_found", "/api/v1/nothing"},
	} {
		e := n.get(c.path, c.params...)
		if e.code != c.code || e.Status != "error" || e.ErrorType != c.typ || !strings.Contains(e.Error, c.text) {
			t.Errorf("%s %v: %d %s %q, want %d %s %q", c.path, c.params, e.code, e.ErrorType, e.Error, c.code, c.typ, c.text)
		}
	}
}

func TestPostAndFormat(t *testing.T) {
	n := start(t, newAuthority(t), nil)
	resp, err := http.PostForm(n.url+"/api/v1/query", url.Values{"query": {"1+1"}, "time": {"5"}})
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if !strings.HasPrefix(string(body), `{"status":"success","data":{"resultType":"scalar","result":[5,"2"]},"lightmetrics":{`) {
		t.Errorf("POST gave %s", body)
	}
	if e := n.get("/api/v1/format_query", "query", "sum( up )by(a)"); string(e.Data) != `"sum by (a) (up)"` {
		t.Errorf("format gave %s", e.Data)
	}
}

func TestLimitsNameThemselves(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	for i := range 5 {
		at := now.Add(time.Duration(i-5) * time.Second)
		a.accept(a.build(host, uint64(1+3*i), at, point{"a", 1, at}, point{"b", 1, at}, point{"c", 1, at}))
	}
	n := start(t, a, func(c *query.Config) { c.Limits.Series, c.Limits.Samples = 2, 7 })
	<-n.Complete()
	if e := n.get("/api/v1/query", "query", `count({job="node"})`); e.code != 422 || !strings.Contains(e.Error, "limits.series of 2") {
		t.Errorf("series: %d %q", e.code, e.Error)
	}
	if e := n.get("/api/v1/query", "query", `{__name__=~"a|b"}[1m]`); e.code != 422 || !strings.Contains(e.Error, "limits.samples of 7") {
		t.Errorf("samples: %d %q", e.code, e.Error)
	}
}
