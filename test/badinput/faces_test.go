package badinput

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/query"
	"lightmetrics.dev/lightmetrics/services/reconciler"
)

// faceCase is a request as bytes to one of the HTTP faces that the classes http and s3
// do not cover by such bytes. The request is the face's usual one, less the headers drop,
// with the line, headers h and body that the case says; or raw.
type faceCase struct {
	named  `yaml:",inline"`
	Face   string   `yaml:"face"` // reconciler, query, store, admin
	Line   string   `yaml:"line"` // {path} is the usual path
	H      []string `yaml:"h"`
	Drop   string   `yaml:"drop"`
	Body   string   `yaml:"body"`   // {good} is the usual body
	Raw    string   `yaml:"raw"`    // {good} is a whole usual request
	Repeat int      `yaml:"repeat"` // {fill} is so many bytes of "a", {headers} so many headers
	Status int      `yaml:"status"` // 0: closed without an answer
	// Closed: nothing behind the first answer is read as a request.
	Closed bool `yaml:"closed"`
}

type face struct {
	addr, method, path, body, kind string
}

func (k faceCase) bytes(f face) []byte {
	var headers strings.Builder
	for i := range k.Repeat {
		fmt.Fprintf(&headers, "X-Name-%d-%s: v\r\n", i, strings.Repeat("x", i%7))
	}
	usual := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", f.method, f.path, f.kind, len(f.body), f.body)
	fill := func(s, good string) string {
		return strings.NewReplacer("{good}", good, "{path}", f.path, "{method}", f.method, "{kind}", f.kind, "{len}", itoa(len(f.body)),
			"{fill}", strings.Repeat("a", k.Repeat), "{headers}", strings.TrimSuffix(headers.String(), "\r\n"), "{ff}", "\xff").Replace(s)
	}
	if k.Raw != "" {
		return []byte(fill(k.Raw, usual))
	}
	body := f.body
	if k.Body != "" {
		body = fill(k.Body, f.body)
	}
	var b bytes.Buffer
	b.WriteString(fill(or(k.Line, "{method} {path} HTTP/1.1"), "") + "\r\n")
	for _, h := range []string{"Host: localhost", "Content-Type: " + f.kind, "Content-Length: " + itoa(len(body))} {
		if name, _, _ := strings.Cut(h, ":"); !strings.Contains(k.Drop, name) {
			b.WriteString(h + "\r\n")
		}
	}
	for _, h := range k.H {
		b.WriteString(fill(h, "") + "\r\n")
	}
	b.WriteString("\r\n" + body)
	return b.Bytes()
}

// TestFaces sends the same bad HTTP to every face but the collector's.
func TestFaces(t *testing.T) {
	store := memStore()
	startCollector(t, store, func(c *ingest.Config) { c.Journal.Idle = time.Hour }).wantHealthy(t)
	faces := map[string]face{}
	rc := reconciler.DefaultConfig()
	rc.HTTP.Listen, rc.GRPC.Listen, rc.AuthorityID = "127.0.0.1:0", "127.0.0.1:0", authority
	rc.Repairs.Interval, rc.Ledgers.SaveInterval = time.Hour, 10*time.Millisecond
	rc.Journal.Polling.Interval, rc.Journal.Folding.Interval, rc.Journal.Retention = 10*time.Millisecond, 10*time.Millisecond, time.Hour
	r, err := reconciler.New(rc, reconciler.Deps{Store: store, Telemetry: quietTelemetry()})
	if err != nil {
		t.Fatal(err)
	}
	runService(t, r.Run, r.Ready())
	faces["reconciler"] = face{r.HTTPAddr(), "GET", "/v1/ledgers", "{}", "application/json"}
	qc := query.DefaultConfig()
	qc.HTTP.Listen, qc.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
	q, err := query.New(qc, query.Deps{Store: store, Telemetry: quietTelemetry()})
	if err != nil {
		t.Fatal(err)
	}
	runService(t, q.Run, q.Ready())
	<-q.Complete()
	faces["query"] = face{q.HTTPAddr(), "POST", "/api/v1/query", "query=vector(1)", "application/x-www-form-urlencoded"}
	o := startObjectStore(t)
	bucket := o.open(t)
	faces["store"] = face{o.Addr(), "PUT", "/bucket-one/new", "body", "text/plain"}
	faces["admin"] = face{o.AdminAddr(), "GET", "/-/healthy", "", "text/plain"}

	eventually(t, "the reconciler has nothing left to write", func() bool { return reconciled(t, store) })
	boundMemory(t, 128<<20)
	before, inBucket := listing(t, store), listing(t, bucket)
	for _, k := range load[faceCase](t, "faces") {
		t.Run(k.Name, func(t *testing.T) {
			f, ok := faces[k.Face]
			if !ok {
				t.Fatalf("face %q", k.Face)
			}
			req := k.bytes(f)
			method, _, _ := strings.Cut(string(req), " ")
			status, body, closed := rawAnswer(t, f.addr, method, req, k.Closed)
			if status != k.Status {
				t.Errorf("got %d, want %d: %.200s", status, k.Status, body)
			}
			if k.Closed && !closed {
				t.Error("what followed was answered as a request")
			}
		})
	}
	wantUnchanged(t, store, before)
	wantUnchanged(t, bucket, inBucket)
	wantNoPanics(t)
	for name, want := range map[string]int{"reconciler": 200, "query": 200, "store": 403, "admin": 200} {
		f := faces[name]
		if status, _, _ := rawAnswer(t, f.addr, f.method, faceCase{}.bytes(f), false); status != want {
			t.Errorf("%s: the usual request gets %d, want %d", name, status, want)
		}
	}
}

// reconciled says that the journal is folded to its end, and that the ledgers' checkpoint says so: from then on a
// reconciler writes nothing until something new comes.
func reconciled(t testing.TB, store objstore.Store) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	head, _, err := journal.ReadHead(ctx, store)
	if err != nil {
		t.Fatal(err)
	}
	for key := range listing(t, store) {
		run, n, err := layout.ParseJournalSegment(key)
		if err != nil {
			continue
		}
		if r := head.Run(run); r == nil || n >= r.Folded {
			return false
		}
	}
	saved, err := ledgers.LoadCheckpoint(ctx, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := head.Positions()
	return len(at.Runs) > 0 && saved.Positions.Head == at.Head && slices.Equal(saved.Positions.Runs, at.Runs)
}
