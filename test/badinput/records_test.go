package badinput

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/query"
)

// recordCase spoils one record of a bucket in which two batches were accepted and one
// lost. An empty expectation is one of no error, no finding, no mark.
type recordCase struct {
	named `yaml:",inline"`
	// What lies in the bucket: manifest, quarantine, boot, authority, blob.
	What   string            `yaml:"what"`
	Set    map[string]string `yaml:"set"` // JSON of a field
	Drop   string            `yaml:"drop"`
	Twice  string            `yaml:"twice"`
	Recipe string            `yaml:"recipe"` // the whole record; {record} is the right one
	// Accept is the reason that a collector answers the same frame with, or its outcome.
	Accept string `yaml:"accept"`
	Fsck   string `yaml:"fsck"`
	// Reconcile is the cause in the repair record, or "error".
	Reconcile string `yaml:"reconcile"`
	// Partial: query marks answers that need the batch. It reads no manifest: the journal has what it needs.
	Partial bool `yaml:"partial"`
}

// field finds a field of a canonical record: its name with the comma, and its value.
func fieldOf(t testing.TB, record, name string) string {
	i := strings.Index(record, `"`+name+`":`)
	if i < 0 {
		t.Fatalf("no field %s in %s", name, record)
	}
	rest := record[i:]
	depth, quoted := 0, false
	for j := len(name) + 3; j < len(rest); j++ {
		switch c := rest[j]; {
		case c == '"' && rest[j-1] != '\\':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case (c == ',' || c == '}') && depth == 0:
			return rest[:j]
		case c == ']' || c == '}':
			depth--
		}
	}
	t.Fatalf("field %s does not end", name)
	return ""
}

func (k recordCase) spoil(t testing.TB, right []byte) []byte {
	s := string(right)
	for name, v := range k.Set {
		s = strings.Replace(s, fieldOf(t, s, name), `"`+name+`":`+v, 1)
	}
	if k.Drop != "" {
		f := fieldOf(t, s, k.Drop)
		s = strings.Replace(strings.Replace(s, ","+f, "", 1), f+",", "", 1)
	}
	if k.Twice != "" {
		f := fieldOf(t, s, k.Twice)
		s = strings.Replace(s, f, f+","+f, 1)
	}
	if k.Recipe != "" {
		return expand(t, k.Recipe, map[string][]byte{"{record}": []byte(s)})
	}
	return []byte(s)
}

func newProtocol(t testing.TB, store objstore.Store) *accept.Protocol {
	t.Helper()
	p, err := accept.New(accept.Config{Store: store, AuthorityID: authority, CollectorID: "collector-a", Clock: run.WallClock{}, Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func submission(t testing.TB, f []byte) accept.Submission {
	t.Helper()
	info, err := frame.Inspect(f, frame.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return accept.Submission{Frame: f, Identity: info.Identity, SHA256: identity.Sum(f), Records: info.Records,
		MinTime: info.MinTime, MaxTime: info.MaxTime, WireVersion: 1, FrameVersion: 1}
}

// recordKeys of the batch that the cases spoil.
func recordKeys(id identity.Batch, won, lost identity.Digest) map[string]string {
	return map[string]string{"manifest": layout.Accepted(id), "quarantine": layout.Quarantine(id, lost), "boot": layout.Boot(id.BootOf()),
		"authority": layout.AuthorityKey, "blob": layout.Blob(won, 0)}
}

// TestRecords lays bad records into a bucket and asks everyone who reads it.
func TestRecords(t *testing.T) {
	boundMemory(t, 400<<20) // the test itself holds copies of the objects of 70 MiB
	for _, k := range load[recordCase](t, "records") {
		t.Run(k.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			store := memStore()
			if _, err := accept.EnsureAuthority(ctx, store, authority, true); err != nil {
				t.Fatal(err)
			}
			p := newProtocol(t, store)
			f, other := recent(t, "host-1", 5, 1), recent(t, "host-1", 5, 2)
			for _, x := range [][]byte{f, other, recent(t, "host-2", 1, 1)} {
				if _, err := p.Accept(ctx, submission(t, x)); err != nil {
					t.Fatal(err)
				}
			}
			if err := journaltest.Manifests(ctx, store, authority); err != nil {
				t.Fatal(err)
			}
			sub := submission(t, f)
			keys := recordKeys(sub.Identity, sub.SHA256, identity.Sum(other))
			put := func(key string, b []byte) {
				if _, err := store.Put(ctx, key, b, objstore.PutOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			key := keys[k.What]
			right, _, err := store.Get(ctx, key, objstore.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			bad := k.spoil(t, right)
			if bytes.Equal(bad, right) {
				t.Fatal("nothing is spoiled")
			}
			put(key, bad)
			if len(bad) > 1<<20 {
				runtime.GC() // copies of cases before this one do not count
			}
			before := listing(t, store)

			if got := acceptAgain(t, store, sub); got != or(k.Accept, "duplicate") {
				t.Errorf("accept: %s, want %s", got, or(k.Accept, "duplicate"))
			}
			if got := fsckOf(t, store); got != k.Fsck {
				t.Errorf("fsck: %q, want %q", got, k.Fsck)
			}
			if got := queryPartial(t, store, k.What != "authority"); got != k.Partial {
				t.Errorf("query: partial %t, want %t", got, k.Partial)
			}
			if k.What != "blob" { // an unreadable generation is not relied on: the next one is written
				wantUnchanged(t, store, before)
			}
			put(key, bad)
			if got := reconcileOf(t, store, k.What, key, keys["manifest"]); got != k.Reconcile {
				t.Errorf("reconcile: %q, want %q", got, k.Reconcile)
			}
		})
	}
	wantNoPanics(t)
}

// recent is a frame with samples of now, so that query keeps them.
func recent(t testing.TB, agent string, start uint64, value float64) []byte {
	t.Helper()
	b := frame.NewBuilder()
	id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "up"}, {Name: "agent", Value: agent}}, series.Gauge, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Minute).UnixNano()
	for i := range 2 {
		if err := b.Append(id, now+int64(i)*1e9, value); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build(identity.Boot{Agent: agent, Boot: "b1"}, start)
	if err != nil {
		t.Fatal(err)
	}
	f, err := frame.Encode(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func acceptAgain(t testing.TB, store objstore.Store, sub accept.Submission) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := accept.EnsureAuthority(ctx, store, authority, false); err != nil {
		var foreign *accept.AuthorityError
		switch {
		case errors.Is(err, record.ErrCorrupt):
			return "corrupt authority"
		case errors.As(err, &foreign):
			return "foreign authority"
		}
		return "error: " + err.Error()
	}
	res, err := newProtocol(t, store).Accept(ctx, sub)
	var retry *accept.RetryError
	var refused *accept.RefusedError
	switch {
	case errors.As(err, &retry):
		return string(retry.Reason)
	case errors.As(err, &refused):
		return string(refused.Reason)
	case err != nil:
		return "error: " + err.Error()
	}
	return res.Outcome.String()
}

func fsckOf(t testing.TB, store objstore.Store) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: authority})
	if err != nil {
		return "error: " + err.Error()
	}
	if len(r.Findings) == 0 {
		return ""
	}
	return string(r.Findings[0].Problem)
}

func reconcileOf(t testing.TB, store objstore.Store, what, key, manifest string) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := &reconcile.Reconciler{Store: store, Now: time.Now, ID: "r"}
	if what != "quarantine" {
		key = manifest
	}
	res, err := r.Reconcile(ctx, key, reconcile.Options{})
	if err != nil {
		return "error"
	}
	return string(res.Cause)
}

// queryPartial starts a query node over the bucket and asks for all samples; follows says that it can follow the
// journal, which of a bucket without an authority it can't.
func queryPartial(t testing.TB, store objstore.Store, follows bool) bool {
	t.Helper()
	cfg := query.DefaultConfig()
	cfg.HTTP.Listen, cfg.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.DrainTimeout = time.Second
	s, err := query.New(cfg, query.Deps{Store: store, Telemetry: quietTelemetry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("query: %v", err)
		}
	}()
	ready := s.Complete()
	if !follows {
		ready = s.Ready()
	}
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("the journal was not read")
	}
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + s.HTTPAddr() + "/api/v1/query?query=count(up)")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Status       string
		Lightmetrics struct{ Partial bool }
	}
	if err := json.Unmarshal(b, &a); err != nil || a.Status != "success" {
		t.Errorf("query: %v: %s", err, b)
	}
	return a.Lightmetrics.Partial
}
