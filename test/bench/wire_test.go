package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/test/peers"
)

// TestAnswersAreCompared: what differs is said, and what systems may do differently is not.
func TestAnswersAreCompared(t *testing.T) {
	vector := func(results string) string {
		return `{"status":"success","data":{"resultType":"vector","result":[` + results + `]}}`
	}
	one := vector(`{"metric":{"__name__":"m","a":"1"},"value":[10,"0.3"]}`)
	for name, c := range map[string]struct {
		a, b      string
		anyLabels bool
		want      string // a part of the difference
	}{
		"equal":                    {one, one, false, ""},
		"another sum":              {one, vector(`{"metric":{"a":"1","__name__":"m"},"value":[10,"0.30000000000000004"]}`), false, ""},
		"another value":            {one, vector(`{"metric":{"__name__":"m","a":"1"},"value":[10,"0.3001"]}`), false, "0.3001"},
		"another time":             {one, vector(`{"metric":{"__name__":"m","a":"1"},"value":[11,"0.3"]}`), false, "{11 0.3}"},
		"another series":           {one, vector(`{"metric":{"__name__":"m","a":"2"},"value":[10,"0.3"]}`), false, "without"},
		"a series more":            {one, vector(`{"metric":{"__name__":"m","a":"1"},"value":[10,"0.3"]},{"metric":{"b":"1"},"value":[10,"1"]}`), false, "2 series, not 1"},
		"a name that is kept":      {vector(`{"metric":{"a":"1"},"value":[10,"0.3"]}`), one, false, ""},
		"a name that is lost":      {one, vector(`{"metric":{"a":"1"},"value":[10,"0.3"]}`), false, "without"},
		"any of equals":            {one, vector(`{"metric":{"__name__":"m","a":"2"},"value":[10,"0.3"]}`), true, ""},
		"lists in another order":   {`{"status":"success","data":["a","b"]}`, `{"status":"success","data":["b","a"]}`, false, ""},
		"lists of label sets":      {`{"status":"success","data":[{"a":"1","b":"2"}]}`, `{"status":"success","data":[{"b":"2","a":"1"}]}`, false, ""},
		"a list with another name": {`{"status":"success","data":["a","b"]}`, `{"status":"success","data":["a"]}`, false, "1 names, not 2"},
		"a point less": {
			`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"],[2,"1"]]}]}}`,
			`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"]]}]}}`, false, "1 points of {}, not 2"},
	} {
		a, errA := readAnswer([]byte(c.a))
		b, errB := readAnswer([]byte(c.b))
		if errA != nil || errB != nil {
			t.Errorf("%s: %v, %v", name, errA, errB)
			continue
		}
		if got := a.differs(b, c.anyLabels); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for _, partial := range []string{`{"status":"success","data":[],"lightmetrics":{"partial":true}}`, `{"status":"success","data":[],"isPartial":true}`, `{"status":"error"}`} {
		if _, err := readAnswer([]byte(partial)); err == nil {
			t.Errorf("%s is no answer to compare", partial)
		}
	}
	if a, err := readAnswer([]byte(`{"status":"success","data":{"resultType":"vector","result":[]}}`)); err != nil || !a.empty() {
		t.Errorf("%v, %v", a, err)
	}
}

// TestRemoteWriterSendsWhatTheFrameHas: peers get the same samples, with the label that ours has by itself.
func TestRemoteWriterSendsWhatTheFrameHas(t *testing.T) {
	var got prompb.WriteRequest
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		raw, err := snappy.Decode(nil, body)
		if err != nil {
			t.Error(err)
		}
		got.Reset()
		if err := got.Unmarshal(raw); err != nil {
			t.Error(err)
		}
		if len(got.Timeseries[0].Samples) > 2 {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer srv.Close()
	h := tsbs.Generate(1, 1, 10).Hosts()[0]
	w := newRemoteWriter(&peers.Monitor{Addr: strings.TrimPrefix(srv.URL, "http://"), Write: "/w"}, srv.Client(), h)
	if err := w.send(t.Context(), 4, 2); err != nil {
		t.Fatal(err)
	}
	if len(got.Timeseries) != tsbs.SeriesPerHost {
		t.Fatalf("%d series", len(got.Timeseries))
	}
	for i, ts := range got.Timeseries {
		s := h.Series[i]
		byName := func(a, b prompb.Label) int { return strings.Compare(a.Name, b.Name) }
		isAgent := func(l prompb.Label) bool { return l.Name == agentLabel && l.Value == h.Name }
		if !slices.IsSortedFunc(ts.Labels, byName) || !slices.ContainsFunc(ts.Labels, isAgent) || len(ts.Labels) != len(s.Labels)+1 {
			t.Fatalf("labels %v", ts.Labels)
		}
		x := ts.Samples
		if len(x) != 2 || x[0].Timestamp != s.Timestamps[4] || x[0].Value != s.Values[4] || x[1].Timestamp != s.Timestamps[5] || x[1].Value != s.Values[5] {
			t.Fatalf("samples %v", ts.Samples)
		}
	}
	if err := w.send(t.Context(), 0, 3); err == nil {
		t.Error("a refused request is no error")
	}
}

// TestChainDataIsOfTwoHoursThatAreMerged: both hours are over, have samples, and are one span of compaction.
func TestChainDataIsOfTwoHoursThatAreMerged(t *testing.T) {
	for _, rows := range []int{1, 6, 60} {
		w, _, err := chainData(&env{quick: true}, rows)
		if err != nil {
			t.Fatal(err)
		}
		times := w.hosts[0].Series[0].Timestamps
		middle := w.from.Add(time.Hour).UnixMilli()
		if w.steps%rows != 0 || len(times) != w.steps || w.samples() != len(w.hosts)*tsbs.SeriesPerHost*w.steps || w.from.Unix()%7200 != 0 || w.to.After(time.Now()) {
			t.Errorf("%d rows: %+v", rows, w)
		}
		// A sample on the stroke is of the hour before.
		if first, last := times[0], times[len(times)-1]; first <= w.from.UnixMilli() || first > middle || last <= middle || last > w.to.UnixMilli() {
			t.Errorf("%d rows: %d to %d", rows, first, last)
		}
	}
}

// TestQueriedDataEndsWithTheHour: times increase, and the last two hours have a sample each step.
func TestQueriedDataEndsWithTheHour(t *testing.T) {
	w := newQueriedData(&env{quick: true})
	times := w.hosts[0].Series[0].Timestamps
	for i := 1; i < len(times); i++ {
		if times[i] <= times[i-1] {
			t.Fatalf("%d behind %d", times[i], times[i-1])
		}
	}
	live := w.end.Add(-liveSpan).UnixMilli()
	if times[len(times)-1] != w.end.UnixMilli() || times[w.old-1] != live || times[w.old] != live+tsbs.StepMS || w.rows-w.old != int(liveSpan.Milliseconds()/tsbs.StepMS) {
		t.Errorf("%d rows, %d of them old, %d to %d", w.rows, w.old, times[0], times[len(times)-1])
	}
	for _, q := range httpQueries(w) {
		if !strings.HasPrefix(q.path, "/api/v1/") || strings.Contains(q.params.Encode(), "%21") { // of a format without its argument
			t.Errorf("%s: %s?%s", q.name, q.path, q.params.Encode())
		}
	}
}

func TestUseIsOfAllLivesOfAProcess(t *testing.T) {
	u := use{"a": {cpu: 5, peak: 10}, "b": {cpu: 1, peak: 1}}
	ended := use{"a": {cpu: 2, peak: 30}}
	got := u.plus(ended).minus(use{"a": {cpu: 1, peak: 9}})
	if got["a"].cpu != 6 || got["a"].peak != 30 || got.cpu() != 7 {
		t.Errorf("%v", got)
	}
}

// TestCostsAreOneTable: loaded and idle stand beside each other, with a month of the example fleet.
func TestCostsAreOneTable(t *testing.T) {
	got := costTable([]Result{
		{Name: "requests/1-collectors/100-boots/500-samples/all-services", Value: 6200},
		{Name: "requests/1-collectors/100-boots/500-samples/cost", Value: 24},
		{Name: "idle/100-boots", Value: 0.25, Unit: "$/day"},
		{Name: "idle/each-boot", Value: 0, Unit: "requests/day"},
	})
	for _, want := range []string{
		"| 1 collectors, 100 boots, 500 samples | 6.2 | 24.00 | | 69 | 2101 |",
		"| nothing comes, 100 boots | | | 0.25 | | 7.60 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "each boot") {
		t.Errorf("requests are not dollars:\n%s", got)
	}
	if got := costTable([]Result{{Name: "store/x"}}); got != "" {
		t.Errorf("%q", got)
	}
}

// TestPageIsReadBack: the figures of docs/benchmarks.md are kept by a run that takes others.
func TestPageIsReadBack(t *testing.T) {
	const page = "../../docs/benchmarks.md"
	before, err := readPage(page)
	if err != nil || len(before) < 100 {
		t.Fatalf("%d figures, %v", len(before), err)
	}
	file := filepath.Join(t.TempDir(), "b.md")
	m := machine{cores: 2, pairs: 7, date: time.Unix(0, 0)}
	if err := writeDoc(file, m, before, nil); err != nil {
		t.Fatal(err)
	}
	after, err := readPage(file)
	if err != nil || !slices.Equal(before, after) {
		t.Fatalf("%d figures of %d, %v", len(after), len(before), err)
	}
	rows := func(file string) (out []string) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.Count(line, "|") > pageColumns {
				out = append(out, line)
			}
		}
		return out
	}
	if want, got := rows(page), rows(file); !slices.Equal(want, got) {
		for i := range want {
			if i >= len(got) || got[i] != want[i] {
				t.Fatalf("row %d of %d was\n%swant\n%s", i, len(want), got[min(i, len(got)-1)], want[i])
			}
		}
	}
}
