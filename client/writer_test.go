package client_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/client"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

func bound(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, dir string, o client.Options) *client.Writer {
	t.Helper()
	if o.Agent == "" {
		o.Agent = "a"
	}
	w, err := client.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// scripted starts a collector of the test.
func scripted(t *testing.T, c *sendtest.Collector) string {
	t.Helper()
	addr, err := c.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return addr
}

// nobody is an address where nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// values are those of the accepted samples, each with how often it is there.
func values(t *testing.T, s *sendtest.Store) map[float64]int {
	t.Helper()
	out := map[float64]int{}
	ids, _ := s.Accepted()
	next := map[identity.Boot]uint64{}
	for _, id := range ids {
		var b frame.Batch
		if err := frame.Decode(s.Frame(id), &b, frame.Limits{}); err != nil {
			t.Fatal(err)
		}
		if n := next[id.BootOf()]; n != 0 && id.SeqStart != n {
			t.Errorf("%s does not follow %d", id, n-1)
		}
		next[id.BootOf()] = id.SeqEnd + 1
		for _, g := range b.Groups {
			for _, v := range g.Values {
				out[v]++
			}
		}
	}
	return out
}

// TestWriterSurvivesItsProgram: what was appended while no collector could be reached is
// sent by the next Writer of the directory, each sample once, in the same sequence.
func TestWriterSurvivesItsProgram(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "queue")
	s := &client.Series{Name: "m", Type: client.Gauge}
	now := time.Now()
	for i := range 3 {
		w := open(t, dir, client.Options{Collectors: []string{nobody(t)}, CloseTimeout: time.Millisecond})
		if err := w.Append(bound(t), s.At(now.Add(time.Duration(i)*time.Second), float64(i))); err != nil {
			t.Fatal(err)
		}
		if st := w.Stats(); st.Pending != i+1 || st.Connected || st.Oldest.IsZero() || st.NextSeq != uint64(i+2) {
			t.Errorf("stats %+v", st)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	store := sendtest.NewStore()
	w := open(t, dir, client.Options{Collectors: []string{scripted(t, &sendtest.Collector{Store: store})}})
	if err := w.Append(bound(t), s.At(now.Add(time.Minute), 3)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(bound(t)); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(values(t, store)); got != "map[0:1 1:1 2:1 3:1]" {
		t.Errorf("accepted %s", got)
	}
	if ids, _ := store.Accepted(); ids[0].Boot != ids[3].Boot {
		t.Errorf("the boot changed: %v", ids)
	}
}

// TestWriterManyAtOnce: calls of many goroutines while the collector is cut again and
// again: every sample is accepted once.
func TestWriterManyAtOnce(t *testing.T) {
	store := sendtest.NewStore()
	var mu sync.Mutex
	frames := 0
	addr := scripted(t, &sendtest.Collector{Store: store, OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		mu.Lock()
		defer mu.Unlock()
		frames++
		r := store.Accept(b)
		if frames%20 == 7 {
			return errors.New("connection cut after the acceptance, before the answer")
		}
		reply(r)
		return nil
	}})
	w := open(t, t.TempDir(), client.Options{Collectors: []string{addr}, Labels: client.Labels{"host": "h"}})
	var wg sync.WaitGroup
	const callers, calls = 8, 25
	for c := range callers {
		wg.Go(func() {
			s := &client.Series{Name: "m", Type: client.Counter, Labels: client.Labels{"caller": fmt.Sprint(c), "empty": ""}}
			for i := range calls {
				if err := w.Append(bound(t), s.Now(float64(c*calls+i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := w.Flush(bound(t)); err != nil {
		t.Fatal(err)
	}
	got := values(t, store)
	for i := range callers * calls {
		if got[float64(i)] != 1 {
			t.Errorf("sample %d is there %d times", i, got[float64(i)])
		}
	}
	if len(got) != callers*calls {
		t.Errorf("%d samples", len(got))
	}
}

// TestWriterRefusals: conflicts and rejects are reported, kept, listed, named by one Flush
// and by no other, and can be sent again or discarded.
func TestWriterRefusals(t *testing.T) {
	store := sendtest.NewStore()
	var mu sync.Mutex
	answers := []ingestv1.BatchStatus{ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT, ingestv1.BatchStatus_BATCH_STATUS_REJECTED}
	addr := scripted(t, &sendtest.Collector{Store: store, OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		mu.Lock()
		defer mu.Unlock()
		if len(answers) == 0 {
			reply(store.Accept(b))
			return nil
		}
		r := sendtest.Answer(b, answers[0], map[bool]string{true: "SERIES_LIMIT"}[len(answers) == 1])
		if first, last := uint64(0), uint64(1); len(answers) == 2 {
			r.Conflict = &ingestv1.Conflict{AcceptedSeqStart: &first, AcceptedSeqEnd: &last}
		}
		reply(r)
		answers = answers[1:]
		return nil
	}})
	var conflicts, rejects []client.Refusal
	w := open(t, t.TempDir(), client.Options{Collectors: []string{addr},
		OnConflict: func(r client.Refusal) { conflicts = append(conflicts, r) },
		OnReject:   func(r client.Refusal) { rejects = append(rejects, r) }})
	s := &client.Series{Name: "m", Type: client.Gauge}
	for i := range 2 {
		if err := w.Append(bound(t), s.Now(float64(i))); err != nil {
			t.Fatal(err)
		}
	}
	var refused *client.RefusedError
	if err := w.Flush(bound(t)); !errors.As(err, &refused) || refused.Batches != 2 || len(refused.Refusals) != 2 {
		t.Fatalf("flush: %v", err)
	}
	if err := w.Flush(bound(t)); err != nil {
		t.Errorf("a second flush: %v", err)
	}
	// Flush waits for the callbacks, so nothing races here.
	if len(conflicts) != 1 || conflicts[0].Reason != "IDENTITY_CONFLICT" || !conflicts[0].Conflict || conflicts[0].Collector != addr ||
		conflicts[0].Accepted.SeqStart != 0 || conflicts[0].Accepted.SeqEnd != 1 || conflicts[0].Accepted.BootOf() != conflicts[0].Batch.BootOf() {
		t.Errorf("conflicts: %+v", conflicts)
	}
	if len(rejects) != 1 || rejects[0].Reason != "SERIES_LIMIT" || rejects[0].Conflict || rejects[0].Accepted.SeqEnd != 0 || rejects[0].Batch.SeqStart != 2 {
		t.Errorf("rejects: %+v", rejects)
	}
	if list := w.Refusals(); len(list) != 2 || list[0] != conflicts[0] || list[1] != rejects[0] {
		t.Errorf("listed %+v", list)
	}
	if err := w.Requeue(conflicts[0].ID); err == nil {
		t.Error("a conflict can be sent again")
	}
	if err := errors.Join(w.Requeue(rejects[0].ID), w.Discard(conflicts[0].ID), w.Flush(bound(t))); err != nil {
		t.Fatal(err)
	}
	if err := w.Discard("nothing"); err == nil {
		t.Error("discarded what is not there")
	}
	if got := fmt.Sprint(values(t, store)); got != "map[1:1]" || len(w.Refusals()) != 0 {
		t.Errorf("accepted %s, %d refusals", got, len(w.Refusals()))
	}
}

// TestWriterErrors: each has an error of its own, and queues nothing.
func TestWriterErrors(t *testing.T) {
	dir := t.TempDir()
	away := []string{nobody(t)}
	w := open(t, dir, client.Options{Collectors: away, MaxBytes: 1 << 20, CloseTimeout: time.Millisecond})
	if _, err := client.Open(dir, client.Options{Agent: "a", Collectors: away}); !errors.Is(err, client.ErrInUse) {
		t.Errorf("a second writer: %v", err)
	}
	s := &client.Series{Name: "m", Type: client.Gauge}
	if err := w.Append(bound(t), make([]client.Sample, 100_001)...); err == nil {
		t.Error("samples without a series are taken")
	}
	many := make([]client.Sample, 100_001)
	for i := range many {
		many[i] = s.At(time.Unix(0, int64(i)), 1)
	}
	if err := w.Append(bound(t), many...); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("too many: %v", err)
	}
	now := time.Now()
	err := w.Append(bound(t), s.At(now.Add(time.Second), 1), client.Sample{}, s.At(now, 2))
	var invalid *client.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Samples) != 1 || invalid.Samples[0].Index != 1 {
		t.Errorf("no series: %v", err)
	}
	// Out of order is sorted; the index is that of the argument.
	err = w.Append(bound(t), s.At(now.Add(time.Second), 1), s.At(now, 2), s.At(now.Add(time.Second), 3))
	if !errors.As(err, &invalid) || len(invalid.Samples) != 1 || invalid.Samples[0].Index != 2 || !errors.Is(err, frame.BadColumn) {
		t.Errorf("one time twice: %v", err)
	}
	if n := w.Stats().NextSeq; n != 1 {
		t.Errorf("next number %d after errors", n)
	}
	taken := uint64(0)
	for i := 0; err == nil || i == 0; i++ {
		noise := &client.Series{Name: "noise", Labels: client.Labels{}}
		for k := range 20 {
			noise.Labels[fmt.Sprint("l", k)] = strings.Repeat(rand.Text(), 30) + rand.Text()
		}
		for k := range 20 {
			noise.Labels[fmt.Sprint("n", k)] = rand.Text() + rand.Text() + rand.Text() + rand.Text()
		}
		if err = w.Append(bound(t), noise.Now(1)); err == nil {
			taken++
		}
	}
	if !errors.Is(err, client.ErrFull) || taken < 10 {
		t.Errorf("%d taken, then %v", taken, err)
	}
	if n := w.Stats().NextSeq; n != taken+1 {
		t.Errorf("next number %d, %d taken: what Append refused left a gap", n, taken)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("flush without a collector: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("close: %v", err) // the rest stays on disk
	}
	if err := w.Append(bound(t), s.Now(1)); !errors.Is(err, client.ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
	if err := w.Flush(bound(t)); !errors.Is(err, client.ErrClosed) {
		t.Errorf("flush after close: %v", err)
	}
	m := open(t, client.Memory, client.Options{Collectors: away, CloseTimeout: time.Millisecond})
	if err := m.Append(bound(t), s.Now(1)); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err == nil || !strings.Contains(err.Error(), "1 batches in memory were not sent") {
		t.Errorf("close with a batch in memory: %v", err)
	}
}

// TestTimesThatDoNotFit: a time beyond 64 bits of nanoseconds is refused. It is not stored as another one.
func TestTimesThatDoNotFit(t *testing.T) {
	w := open(t, client.Memory, client.Options{Collectors: []string{nobody(t)}, CloseTimeout: time.Millisecond})
	s := &client.Series{Name: "m", Type: client.Gauge}
	year := func(y int) time.Time { return time.Date(y, 6, 1, 0, 0, 0, 0, time.UTC) }
	for i, samples := range [][]client.Sample{
		{s.Now(1), s.At(year(2600), 1)},
		{s.Now(1), s.At(year(1600), 1)},
		{s.Now(1), s.At(time.Unix(0, math.MaxInt64).Add(1), 1)},
		{s.Now(1), (&client.Series{Name: "c", Type: client.Counter, Start: year(2600)}).Now(1)},
	} {
		err := w.Append(bound(t), samples...)
		var invalid *client.InvalidError
		if !errors.As(err, &invalid) || len(invalid.Samples) != 1 || invalid.Samples[0].Index != 1 || invalid.Samples[0].Reason != frame.BadColumn {
			t.Errorf("case %d: %v", i, err)
		}
	}
	if n := w.Stats().NextSeq; n != 1 {
		t.Errorf("next number %d", n)
	}
	if err := w.Append(bound(t), s.At(time.Unix(0, math.MinInt64), 1), s.At(time.Unix(0, math.MaxInt64), 1)); err != nil {
		t.Errorf("the first and the last time: %v", err)
	}
}

// TestWriterMetrics: a Writer leaves the registry with Close, so that the next one can open;
// two at a time are an error where nothing tells their metrics apart.
func TestWriterMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	writer := func(name string) client.Options {
		return client.Options{Agent: "a", Collectors: []string{nobody(t)}, CloseTimeout: time.Millisecond,
			Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"writer": name}, reg)}
	}
	count := func() int {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return len(families)
	}
	dir := t.TempDir()
	for range 2 {
		w := open(t, dir, writer("a"))
		if count() < 5 {
			t.Errorf("%d metrics", count())
		}
		if w2, err := client.Open(t.TempDir(), writer("a")); err == nil || !strings.Contains(err.Error(), "metrics: ") {
			t.Errorf("a second writer with the same registry: %v, %v", w2, err)
		}
		if err := open(t, t.TempDir(), writer("b")).Close(); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if n := count(); n != 0 {
			t.Errorf("%d metrics after Close", n)
		}
	}
}

// TestCallLargerThanTheQueue: it is not told to try again.
func TestCallLargerThanTheQueue(t *testing.T) {
	w := open(t, client.Memory, client.Options{Collectors: []string{nobody(t)}, CloseTimeout: time.Millisecond, MaxBytes: 1 << 20})
	var samples []client.Sample
	for range 3000 {
		s := &client.Series{Name: "m", Labels: client.Labels{}}
		for k := range 3 {
			s.Labels[fmt.Sprint("l", k)] = rand.Text() + rand.Text() + rand.Text() + rand.Text() + rand.Text() + rand.Text()
		}
		samples = append(samples, s.Now(1))
	}
	if err := w.Append(bound(t), samples...); !errors.Is(err, client.ErrTooLarge) || errors.Is(err, client.ErrFull) {
		t.Errorf("got %v", err)
	}
	if err := w.Append(bound(t), samples[:100]...); err != nil {
		t.Errorf("a part of it: %v", err)
	}
}

// TestOptionsAreChecked: what can't work is refused by Open.
func TestOptionsAreChecked(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*string, *client.Options){
		"agent_id is empty":       func(_ *string, o *client.Options) { o.Agent = "" },
		"directory is empty":      func(dir *string, _ *client.Options) { *dir = "" },
		"MaxBytes 1,":             func(_ *string, o *client.Options) { o.MaxBytes = 1 },
		"is there twice":          func(_ *string, o *client.Options) { o.Collectors = []string{"c:1", "c:1"} },
		"token needs tls":         func(_ *string, o *client.Options) { o.Credentials.Token = "secret" },
		"a token needs tls":       func(_ *string, o *client.Options) { o.Credentials.TokenFile = token },
		"/absent":                 func(_ *string, o *client.Options) { o.Credentials.TokenFile = "/absent" },
		"/absent/ca.pem":          func(_ *string, o *client.Options) { o.Credentials.TLS = &client.TLS{CAFile: "/absent/ca.pem"} },
		"cert_file and key_file":  func(_ *string, o *client.Options) { o.Credentials.TLS = &client.TLS{CertFile: token} },
		"labels":                  func(_ *string, o *client.Options) { o.Labels = client.Labels{"x": strings.Repeat("v", 3000)} },
		"not a directory":         func(dir *string, _ *client.Options) { *dir = filepath.Join(token, "queue") },
		"want host:port":          func(_ *string, o *client.Options) { o.Collectors = []string{"http://127.0.0.1:4750"} },
		"missing port in address": func(_ *string, o *client.Options) { o.Collectors = []string{"127.0.0.1:4750", "collector"} },
		"TokenFile: want one of": func(_ *string, o *client.Options) {
			o.Credentials = client.Credentials{Token: "secret", TokenFile: token, TokenOverPlaintext: true}
		},
		"is in collectors, too":      func(_ *string, o *client.Options) { o.Collectors, o.Fallback = []string{"c:1"}, []string{"c:1"} },
		"fallback: \"collector\"":    func(_ *string, o *client.Options) { o.Fallback = []string{"collector"} },
		"CloseTimeout -1ns: want at": func(_ *string, o *client.Options) { o.CloseTimeout = -1 },
	} {
		dir, o := t.TempDir(), client.Options{Agent: "a"}
		change(&dir, &o)
		w, err := client.Open(dir, o)
		if err == nil {
			_ = w.Close()
		}
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(want)) {
			t.Errorf("%s: got %v", want, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("a secret in %v", err)
		}
	}
}

// TestFallback: while no collector of the own list is there, those of the other one take the batches.
func TestFallback(t *testing.T) {
	t.Parallel() // it waits for send.fallback_after
	store, carts := sendtest.NewStore(), &client.Series{Name: "carts", Type: client.Gauge}
	w := open(t, t.TempDir(), client.Options{Collectors: []string{nobody(t)}, Fallback: []string{scripted(t, &sendtest.Collector{Store: store})}})
	if err := w.Append(bound(t), client.Sample{Series: carts, Value: 1}); err != nil {
		t.Fatal(err)
	}
	if w.Stats().OnFallback {
		t.Error("the fallback is used at once")
	}
	if err := w.Flush(bound(t)); err != nil {
		t.Fatal(err)
	}
	if st := w.Stats(); !st.Connected || !st.OnFallback || st.FallbackSince.IsZero() {
		t.Errorf("%+v", st)
	}
	// Close does not wait for that time.
	dir := t.TempDir()
	w = open(t, dir, client.Options{Collectors: []string{nobody(t)}, Fallback: []string{scripted(t, &sendtest.Collector{Store: store})}})
	if err := w.Append(bound(t), client.Sample{Series: carts, Value: 2}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if list, _ := store.Accepted(); len(list) != 2 {
		t.Errorf("%d batches are accepted", len(list))
	}
}
