package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/client"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/query"
	"lightmetrics.dev/lightmetrics/services/reconciler"
)

// rarePolls is a query node that polls once an hour, so that only a token, or a hint of what it watches, makes it see
// what is new.
func rarePolls(t *testing.T, watch ...string) *query.Service {
	t.Helper()
	c := query.DefaultConfig()
	c.Follow.Watch = watch
	c.HTTP.Listen, c.GRPC.Listen, c.Follow.PollInterval, c.Follow.IdleInterval, c.StaleAfter = "127.0.0.1:0", "127.0.0.1:0", time.Hour, time.Hour, 3*time.Hour
	s, err := query.New(c, query.Deps{Store: bucket, Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, s)
	<-s.Ready()
	<-s.Complete()
	return s
}

// serve runs a service until the end of the test.
func serve(t *testing.T, s interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestHintsShortenWaits: a node that polls once an hour sees each batch at once when it watches the collector, and when it
// watches a reconciler that the collector notifies.
func TestHintsShortenWaits(t *testing.T) {
	rc := reconciler.DefaultConfig()
	rc.GRPC.Listen, rc.HTTP.Listen = "127.0.0.1:0", "127.0.0.1:0"
	rc.Journal.Polling.Interval, rc.Journal.IdleInterval = time.Hour, time.Hour
	r, err := reconciler.New(rc, reconciler.Deps{Store: bucket, Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, r)
	<-r.Ready()
	ic := ingest.DefaultConfig()
	ic.GRPC.Listen, ic.HTTP.Listen, ic.ID, ic.Notify.Addresses = "127.0.0.1:0", "127.0.0.1:0", "hinting", []string{r.GRPCAddr()}
	in, err := ingest.New(ic, ingest.Deps{Store: bucket, Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, in)
	<-in.Ready()
	w := open(t, client.Memory, client.Options{Agent: "hinted", Collectors: []string{in.GRPCAddr()}})
	n := &client.Series{Name: "hinted", Type: client.Gauge}
	for name, address := range map[string]string{"collector": in.GRPCAddr(), "reconciler": r.GRPCAddr()} {
		q, err := client.DialQuery(rarePolls(t, address).GRPCAddr(), client.Credentials{})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		for i := range 5 {
			value := float64(len(name)*10 + i)
			if err := errors.Join(w.Append(bound(t), n.Now(value)), w.Flush(bound(t))); err != nil {
				t.Fatal(err)
			}
			for ctx := bound(t); ; time.Sleep(time.Millisecond) {
				a, err := q.Instant(ctx, "hinted", time.Time{})
				if err != nil {
					t.Fatalf("%s, batch %d: %v", name, i, err)
				}
				if len(a.Series) == 1 && a.Series[0].Points[0].Value == value {
					break
				}
			}
		}
	}
}

// TestReadYourWrites: a query with what a Writer has written sees it, in a node that looks for news once an hour, and one
// that asks for everything sees what others wrote as well.
func TestReadYourWrites(t *testing.T) {
	node := rarePolls(t)
	q, err := client.DialQuery(node.GRPCAddr(), client.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	w := open(t, client.Memory, client.Options{Agent: "reads-own", Collectors: []string{collector}})
	if got := w.Written(); len(got.Tokens) != 0 || got.Everything {
		t.Errorf("nothing was written: %+v", got)
	}
	n := &client.Series{Name: "own_writes", Type: client.Gauge}
	write := func(w *client.Writer, v float64) {
		t.Helper()
		if err := errors.Join(w.Append(bound(t), n.Now(v)), w.Flush(bound(t))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		write(w, float64(i))
		a, err := q.InstantAfter(bound(t), w.Written(), `own_writes{agent="reads-own"}`, time.Time{})
		if err != nil || len(a.Series) != 1 || a.Series[0].Points[0].Value != float64(i) || a.Completeness.Partial {
			t.Fatalf("%d: %+v, %v", i, a, err)
		}
	}
	other := open(t, client.Memory, client.Options{Agent: "reads-own-2", Collectors: []string{collector}})
	write(other, 8)
	now := time.Now()
	a, err := q.RangeAfter(bound(t), client.Written{Everything: true}, `own_writes{agent="reads-own-2"}`, now, now, time.Second)
	if err != nil || len(a.Series) != 1 || a.Series[0].Points[0].Value != 8 {
		t.Errorf("everything: %+v, %v", a, err)
	}
	var e *client.Error
	never := client.Written{Tokens: []client.Token{client.Token(strings.Repeat("0", 32) + ":1")}}
	if _, err := q.InstantAfter(bound(t), never, "up", time.Time{}); !errors.As(err, &e) || e.Reason != client.ReasonTokenUnknown || e.Temporary {
		t.Errorf("a token that nobody gave: %v", err)
	}
}

// TestReadYourWritesOverHTTP: the same for programs that have HTTP alone.
func TestReadYourWritesOverHTTP(t *testing.T) {
	node := rarePolls(t)
	batch := fmt.Sprintf(`{"agent": "http-1", "boot": "b-1", "first_seq": 1, "samples": [{"name": "http_writes", "type": "gauge", "time_unix_ms": %d, "value": 3}]}`,
		time.Now().UnixMilli())
	var answer struct {
		Position string `json:"journal_position"`
	}
	resp, err := http.Post("http://"+collectHTTP+"/v1/batches", "application/json", bytes.NewReader([]byte(batch)))
	if err == nil {
		defer resp.Body.Close()
		err = json.NewDecoder(resp.Body).Decode(&answer)
	}
	if err != nil || answer.Position == "" {
		t.Fatalf("%+v, %v", answer, err)
	}
	var got struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	resp, err = http.Get("http://" + node.HTTPAddr() + "/api/v1/query?" + url.Values{"query": {"http_writes"}, "min_token": {answer.Position}}.Encode())
	if err == nil {
		defer resp.Body.Close()
		err = json.NewDecoder(resp.Body).Decode(&got)
	}
	if err != nil || len(got.Data.Result) != 1 || got.Data.Result[0].Value[1] != "3" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestGuideShowsReadingWhatWasWritten: what the guide shows is in the example that runs.
func TestGuideShowsReadingWhatWasWritten(t *testing.T) {
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	want := "\t" + strings.ReplaceAll(strings.TrimSuffix(block(t, "## Read what was written", "go"), "\n"), "\n", "\n\t")
	if !strings.Contains(string(code), want) {
		t.Errorf("example_test.go does not have what the guide shows:\n%s", want)
	}
}
