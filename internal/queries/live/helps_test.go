package live_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// telling is a batch with a sample of each metric at a time, and their helps: name, help, …
func telling(t *testing.T, agent string, seq uint64, at time.Time, list ...string) *modelBatch {
	t.Helper()
	b := frame.NewBuilder()
	for i := 0; i < len(list); i += 2 {
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: list[i]}, {Name: "agent", Value: agent}}, series.Gauge, "", 0)
		if err == nil {
			err = b.Append(id, at.UnixNano(), 1)
		}
		if err == nil && list[i+1] != "" {
			err = b.SetHelp(list[i], list[i+1])
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
		var list []string
		for i := range metrics {
			list = append(list, fmt.Sprintf("bad_%d_%d", r, i), strings.Repeat("x", 2048))
		}
		at := start.Add(time.Duration(r+1) * time.Second)
		insert(t, s, telling(t, "bad", uint64(1+r*metrics), at, list...), start, live.Inserted)
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

// recorded are the helps that blocks have: name, help, …
func recorded(agent string, at time.Time, list ...string) (out []helps.Help) {
	for i := 0; i < len(list); i += 2 {
		out = append(out, helps.Help{Name: list[i], Text: list[i+1], Agent: agent, Time: at.UnixNano()})
	}
	return out
}

// TestHelpsOfBlocks stand beside those of batches: the newer one wins whichever comes first, and of one time that of the
// batch. They stay while no series has their names, until the next ones come.
func TestHelpsOfBlocks(t *testing.T) {
	ofBlocks := recorded("a", start, "older", "block's", "newer", "block's", "same", "block's", "alone", "block's", "gone", "block's")
	batches := []*modelBatch{
		telling(t, "a", 1, start.Add(-time.Minute), "older", "batch's", "alone", "", "none", ""),
		telling(t, "a", 10, start.Add(time.Minute), "newer", "batch's"),
		telling(t, "a", 20, start, "same", "batch's"),
	}
	const want = "map[alone:block's newer:batch's none: older:block's same:batch's]"
	for at := range len(batches) + 1 {
		s := newStore(t, live.Config{History: time.Hour})
		for i := range len(batches) + 1 {
			if i == at {
				s.LearnHelps(ofBlocks)
			}
			if i < len(batches) {
				insert(t, s, batches[i], start, live.Inserted)
			}
		}
		if got := fmt.Sprint(helpsOf(t, s, start)); got != want {
			t.Errorf("after %d batches: %s, want %s", at, got, want)
		}
		// All series go, and those of the names that blocks have come back.
		now := start.Add(3 * time.Hour)
		s.Expire(now)
		insert(t, s, telling(t, "a", 100, now, "gone", "", "alone", "", "newer", ""), now, live.Inserted)
		if got := fmt.Sprint(helpsOf(t, s, now)); got != "map[alone:block's gone:block's newer:batch's]" {
			t.Errorf("later: %s", got)
		}
		// The next ones replace them, also by less.
		s.LearnHelps(recorded("a", now, "newer", "block's"))
		if got := fmt.Sprint(helpsOf(t, s, now)); got != "map[alone:block's gone:block's newer:block's]" {
			t.Errorf("the next ones: %s", got)
		}
		s.Expire(now.Add(3 * time.Hour))
		s.LearnHelps(nil)
		if st := s.Stats(); st.Bytes != 0 {
			t.Errorf("an empty store has %+v", st)
		}
	}
}

// TestHelpsOfBlocksAreBounded: in a small store a record of a large one does not push out samples.
func TestHelpsOfBlocksAreBounded(t *testing.T) {
	const limit = 1 << 20
	s := newStore(t, live.Config{MaxBytes: 16 * limit})
	var all []string
	for i := range 2000 {
		all = append(all, fmt.Sprint("m_", i), strings.Repeat("x", 1024))
	}
	s.LearnHelps(recorded("a", start, all...))
	if n := s.Stats().Bytes; n > limit || n < limit/2 {
		t.Errorf("%d bytes, at most %d", n, limit)
	}
}
