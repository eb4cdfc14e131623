package metadata

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
)

var start = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// worker is one that learns helps, by a clock of its own.
type worker struct {
	*Helps
	t   *testing.T
	now time.Time
	m   *metrics.Metrics
}

func newWorker(t *testing.T, s objstore.Store) *worker {
	w := &worker{t: t, now: start, m: metrics.New(prometheus.NewRegistry())}
	w.Helps = New(Config{Store: s, Metrics: w.m, Log: telemetry.Discard().Log, Now: func() time.Time { return w.now }, AuthorityID: "a"})
	return w
}

// tell gives the worker a frame with the help of one metric.
func (w *worker) tell(name, text string, at time.Time) {
	b := &frame.Batch{Helps: []frame.Help{{Name: 1, Text: text}}}
	b.Strings = []string{"", name}
	w.Learn(accepted.Batch{Identity: identity.Batch{Agent: "agent"}, MaxTime: at.UnixNano(), AcceptedAt: at.UnixNano()}, b)
}

func (w *worker) save() {
	w.t.Helper()
	if err := w.Save(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// recorded are the helps of the record, as name=text.
func recorded(t *testing.T, s objstore.Store) string {
	t.Helper()
	set, _, err := helps.Read(t.Context(), s, "a")
	if errors.Is(err, objstore.ErrNotFound) {
		return "none"
	}
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, h := range set.List() {
		out = append(out, h.Name+"="+h.Text)
	}
	return fmt.Sprint(out)
}

// requests are those of a store by what they are.
func requests(s *fault.Store) string {
	return fmt.Sprintf("%d reads, %d creates, %d replaces", s.Count("get", "")+s.Count("head", ""), s.Count("create", ""), s.Count("replace", ""))
}

// TestEqualHelpsCostNothing: the record is read once and written when something has changed. What has no helps asks nothing.
func TestEqualHelpsCostNothing(t *testing.T) {
	s := fault.New(mem.New(nil), 1)
	w := newWorker(t, s)
	w.Learn(accepted.Batch{}, &frame.Batch{})
	w.save()
	if got := requests(s); got != "0 reads, 0 creates, 0 replaces" {
		t.Error(got)
	}
	for h := range 24 {
		w.tell("m", "M's.", start.Add(time.Duration(h)*time.Hour))
		w.save()
	}
	if got := requests(s); got != "1 reads, 1 creates, 0 replaces" {
		t.Error(got)
	}
	w.tell("n", "N's.", start)
	w.save()
	w.save()
	if got := requests(s) + " " + recorded(t, s); got != "1 reads, 1 creates, 1 replaces [m=M's. n=N's.]" {
		t.Error(got)
	}
	// A second worker reads it, and has nothing to add.
	w = newWorker(t, s)
	w.tell("m", "M's.", start.Add(time.Hour))
	w.save()
	if got := requests(s); got != "3 reads, 1 creates, 1 replaces" {
		t.Error(got)
	}
}

// TestWorkersWriteTogether: nobody's helps are lost when several write at the same time, or somebody deletes the record.
func TestWorkersWriteTogether(t *testing.T) {
	s := fault.New(mem.New(nil), 1)
	one, two := newWorker(t, s), newWorker(t, s)
	one.tell("one", "1", start)
	one.save()
	two.tell("two", "2", start)
	two.save()
	one.tell("three", "3", start)
	one.save() // on what the other has replaced
	if got := recorded(t, s); got != "[one=1 three=3 two=2]" {
		t.Error(got)
	}
	if n := testutil.ToFloat64(one.m.HelpsWrites.WithLabelValues("refused")); n != 1 {
		t.Errorf("%v writes are refused", n)
	}
	if err := s.Delete(t.Context(), layout.RollupHelpsKey); err != nil {
		t.Fatal(err)
	}
	one.tell("four", "4", start)
	one.save()
	if got := recorded(t, s); got != "[four=4]" {
		t.Error(got)
	}
}

// TestWhatIsNotSavedIsAnError: a store that does not answer is asked again, and what was learned is not forgotten.
func TestWhatIsNotSavedIsAnError(t *testing.T) {
	for _, rule := range []fault.Rule{fault.NotApplied("get", ""), fault.NotApplied("create", ""), fault.LostAnswer("create", "")} {
		s := fault.New(mem.New(nil), 1, rule.Once())
		w := newWorker(t, s)
		w.tell("m", "M's.", start)
		if err := w.Save(t.Context()); err == nil {
			t.Errorf("%+v: saved", rule)
		}
		w.save()
		if got := recorded(t, s); got != "[m=M's.]" {
			t.Errorf("%+v: %s", rule, got)
		}
	}
}

// TestARecordThatCantBeUsedHoldsNothingUp: a damaged one is replaced, one of a newer release or of which the store refuses
// requests is left alone. What was learned is written when that has changed.
func TestARecordThatCantBeUsedHoldsNothingUp(t *testing.T) {
	put := func(body string) func(*fault.Store) {
		return func(s *fault.Store) {
			if _, err := s.Put(t.Context(), layout.RollupHelpsKey, []byte(body), objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	newer := `{"schema":"lightmetrics.metric_helps.v2"}`
	for _, c := range []struct {
		what    string
		prepare func(*fault.Store)
		at      string // once it was met
	}{
		{"damaged", put("{"), "[m=M's.]"},
		{"of another authority", put(string(helps.Record{AuthorityID: "b"}.Marshal())), "[m=M's.]"},
		{"damaged at rest", func(s *fault.Store) {
			put("x")(s)
			s.Add(fault.Refused("get", layout.RollupHelpsKey, objstore.ErrChecksum).Once())
		}, "[m=M's.]"},
		{"of a newer release", put(newer), ""},
		{"refused to be read", func(s *fault.Store) { s.Add(fault.Refused("get", layout.RollupHelpsKey, objstore.ErrDenied).Once()) }, "none"},
		{"refused to be written", func(s *fault.Store) { s.Add(fault.Refused("create", layout.RollupHelpsKey, objstore.ErrDenied).Once()) }, "none"},
		{"always replaced by others", func(s *fault.Store) {
			r := fault.Refused("create", layout.RollupHelpsKey, objstore.ErrExists)
			r.Times = attempts
			s.Add(r)
		}, "none"},
	} {
		s := fault.New(mem.New(nil), 1)
		c.prepare(s)
		w := newWorker(t, s)
		w.tell("m", "M's.", start)
		w.save()
		if c.at != "" {
			if got := recorded(t, s); got != c.at {
				t.Errorf("%s: %s, want %s", c.what, got, c.at)
			}
		} else if b, _, err := s.Get(t.Context(), layout.RollupHelpsKey, objstore.GetOptions{}); err != nil || string(b) != newer {
			t.Errorf("%s: replaced by %s, %v", c.what, b, err)
		} else if err := s.Delete(t.Context(), layout.RollupHelpsKey); err != nil { // the newer release is gone
			t.Fatal(err)
		}
		if c.at == "none" || c.at == "" {
			before := requests(s)
			w.save()
			if got := requests(s); got != before {
				t.Errorf("%s: asked again at once: %s", c.what, got)
			}
		}
		w.now = w.now.Add(pause)
		w.save()
		if got := recorded(t, s); got != "[m=M's.]" {
			t.Errorf("%s: in the end %s", c.what, got)
		}
	}
	// A clock that goes back does not make the pause longer.
	s := fault.New(mem.New(nil), 1, fault.Refused("get", "", objstore.ErrDenied).Once())
	w := newWorker(t, s)
	w.tell("m", "M's.", start)
	w.save()
	w.now = start.Add(-24 * time.Hour)
	w.save()
	if got := recorded(t, s); got != "[m=M's.]" {
		t.Error(got)
	}
}

// TestHelpsWithoutRoomArePaused: while there are more than there is room for, the record is written once an hour.
func TestHelpsWithoutRoomArePaused(t *testing.T) {
	s := fault.New(mem.New(nil), 1)
	w := newWorker(t, s)
	n := 0
	for range 3 {
		for range helps.MaxBytes/256 + 1000 {
			n++
			w.tell(fmt.Sprint("m_", n), "x", start.Add(time.Duration(n)))
		}
		w.save()
	}
	if got := requests(s); got != "1 reads, 1 creates, 0 replaces" {
		t.Error(got)
	}
	w.now = w.now.Add(pause)
	w.save()
	if got := requests(s); got != "1 reads, 1 creates, 1 replaces" {
		t.Error(got)
	}
}
