package live_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// telling is a batch with a sample of each metric at a time, and their helps: name, help, …
func telling(t *testing.T, agent string, seq uint64, at time.Time, helps ...string) *modelBatch {
	t.Helper()
	b := frame.NewBuilder()
	for i := 0; i < len(helps); i += 2 {
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: helps[i]}, {Name: "agent", Value: agent}}, series.Gauge, "", 0)
		if err == nil {
			err = b.Append(id, at.UnixNano(), 1)
		}
		if err == nil && helps[i+1] != "" {
			err = b.SetHelp(helps[i], helps[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	built, err := b.Build(identity.Boot{Agent: agent, Boot: "b"}, seq)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := frame.Encode(nil, built)
	if err != nil {
		t.Fatal(err)
	}
	a := &modelBatch{batch: &frame.Batch{}}
	if err := frame.Decode(raw, a.batch, frame.Limits{}); err != nil {
		t.Fatal(err)
	}
	a.Batch = accepted.Batch{Identity: a.batch.Identity, FrameSHA256: identity.Sum(raw), AcceptedAt: at.UnixNano(), MaxTime: at.UnixNano()}
	return a
}

// helpsOf are the helps by metric; "" for a metric without one.
func helpsOf(t *testing.T, s *live.Store, now time.Time) map[string]string {
	t.Helper()
	snap := s.Snapshot(now)
	defer snap.Close()
	list, err := snap.Metadata(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range list {
		out[m.Name] = m.Help
	}
	return out
}

// TestNewestHelpWins: whatever the order in which batches come, the text is that of the batch with the
// later last sample, of two with equal times that of the greater identity.
func TestNewestHelpWins(t *testing.T) {
	batches := []*modelBatch{
		telling(t, "a", 1, start, "m", "a's first", "n", "n's"),
		telling(t, "a", 10, start.Add(time.Minute), "m", "", "none", ""),
		telling(t, "a", 20, start.Add(2*time.Minute), "m", "a's second"),
		telling(t, "b", 1, start.Add(2*time.Minute), "m", "b's"),
	}
	const want = "map[m:b's n:n's none:]"
	for i := range 24 {
		order := permutation(batches, i)
		s := newStore(t, live.Config{})
		for _, a := range order {
			insert(t, s, a, start, live.Inserted)
		}
		if got := fmt.Sprint(helpsOf(t, s, start)); got != want {
			t.Errorf("order %d: %s, want %s", i, got, want)
		}
		insert(t, s, order[0], start, live.Repeat)
	}
}

// permutation is the i-th order of four.
func permutation(list []*modelBatch, i int) []*modelBatch {
	left, out := slices.Clone(list), []*modelBatch(nil)
	for n := len(left); n > 0; n-- {
		k := i % n
		i /= n
		out = append(out, left[k])
		left = slices.Delete(left, k, k+1)
	}
	return out
}

// TestHelpsGoWithTheirMetrics: what no series has any more has no help, and takes no memory.
func TestHelpsGoWithTheirMetrics(t *testing.T) {
	s := newStore(t, live.Config{History: time.Hour})
	insert(t, s, telling(t, "a", 1, start, "gone", strings.Repeat("x", 2000), "stays", "old"), start, live.Inserted)
	with := s.Stats().Bytes
	now := start.Add(2 * time.Hour)
	insert(t, s, telling(t, "a", 10, now, "stays", ""), now, live.Inserted)
	if st := s.Stats(); with-st.Bytes < 2000 {
		t.Errorf("%d bytes, before %d", st.Bytes, with)
	}
	insert(t, s, telling(t, "a", 20, now, "gone", ""), now, live.Inserted)
	if got := helpsOf(t, s, now); got["gone"] != "" {
		t.Errorf("%q", got)
	}
	s.Expire(now.Add(2 * time.Hour))
	if st := s.Stats(); st.Bytes != 0 {
		t.Errorf("an empty store has %+v", st)
	}
}

// TestHelpsAreBounded: an agent that makes up metrics loses its own oldest helps, those of the
// others stay; samples stay, too.
func TestHelpsAreBounded(t *testing.T) {
	const limit = 1 << 20
	s := newStore(t, live.Config{MaxBytes: 16 * limit})
	for i := range 10 {
		insert(t, s, telling(t, fmt.Sprint("good", i), 1, start, fmt.Sprint("good", i), "good's help"), start, live.Inserted)
	}
	const metrics, rounds = 40, 25
	for r := range rounds {
		var helps []string
		for i := range metrics {
			helps = append(helps, fmt.Sprintf("bad_%d_%d", r, i), strings.Repeat("x", 2048))
		}
		at := start.Add(time.Duration(r+1) * time.Second)
		insert(t, s, telling(t, "bad", uint64(1+r*metrics), at, helps...), start, live.Inserted)
	}
	got := helpsOf(t, s, start)
	held, bytes := 0, 0
	for name, text := range got {
		if strings.HasPrefix(name, "good") && text != "good's help" {
			t.Errorf("%s has lost its help", name)
		}
		if text != "" {
			held, bytes = held+1, bytes+len(name)+len(text)
		}
	}
	if bytes > limit || bytes < limit/2 || held == metrics*rounds+10 || len(got) != metrics*rounds+10 {
		t.Errorf("%d helps of %d metrics, %d bytes, at most %d", held, len(got), bytes, limit)
	}
	if got["bad_0_0"] != "" || got[fmt.Sprintf("bad_%d_0", rounds-1)] == "" {
		t.Error("not the oldest went")
	}
}
