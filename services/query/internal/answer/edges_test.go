package answer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/missing"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
)

// codes of the reasons, in order.
func codes(c Completeness) []string {
	out := []string{}
	for _, r := range c.Reasons {
		out = append(out, r.Code)
	}
	return out
}

// TestStatusIsReadBeforeTheSnapshot: what complete_through promises must be in the snapshot,
// so a poll that succeeds after the status was read, and before the snapshot is opened,
// does not count. The clock is asked between the two.
func TestStatusIsReadBeforeTheSnapshot(t *testing.T) {
	e := small(t, 1, 1, time.Second, nil)
	polls := 0
	e.d.Now = func() time.Time {
		if polls++; polls == 1 {
			if err := e.d.Follower.CatchUp(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		return limitsNow
	}
	for i, want := range []bool{true, false} {
		s, err := e.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Completeness().CompleteThrough.IsZero(); got != want {
			t.Errorf("session %d: nothing is complete: %v, want %v", i, got, want)
		}
		s.Close()
	}
}

// TestWhatIsLearnedLaterMakesNothingWhole: a snapshot lacks what is read after it was
// opened. So its answer stays partial when an unreadable batch heals before the answer is decided.
func TestWhatIsLearnedLaterMakesNothingWhole(t *testing.T) {
	l := newLab(t, 1)
	at := l.now.Add(-5 * time.Hour)
	b := frame.NewBuilder()
	id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "x"}}, series.Gauge, "", 0)
	l.must(err)
	l.must(b.Append(id, at.UnixNano(), 1))
	own, err := b.Build(identity.Boot{Agent: "a", Boot: "b"}, 1)
	l.must(err)
	raw, err := frame.Encode(nil, own)
	l.must(err)
	l.accept(publishedtest.Batch{Frame: own, AcceptedAt: l.now.UnixNano()}, raw)
	blob := layout.Blob(identity.Sum(raw), 0)
	l.must(l.store.Delete(t.Context(), blob))
	l.open()
	judge := func(s *Session) []string {
		_, err := s.Instant(t.Context(), "x", at, Options{})
		l.must(err)
		return codes(s.Completeness())
	}
	before, err := l.eval.Open(t.Context())
	l.must(err)
	defer before.Close()
	l.put(blob, raw)
	l.follow.RetryUnread(t.Context())
	if got := judge(before); !slices.Contains(got, ReasonUnreadable) {
		t.Errorf("opened before: %v", got)
	}
	after, err := l.eval.Open(t.Context())
	l.must(err)
	defer after.Close()
	if got := judge(after); len(got) != 0 {
		t.Errorf("opened afterwards: %v", got)
	}
}

// TestReasonsAtTheirEdges: what makes an answer partial does so from its very edge on, and
// not before it.
func TestReasonsAtTheirEdges(t *testing.T) {
	e := small(t, 1, 1, time.Second, nil)
	snap := e.d.Live.Snapshot(limitsNow)
	defer snap.Close()
	far := limitsNow.Add(1000 * time.Hour) // by the store, whose clock does not matter
	fresh := follow.Status{CompleteThrough: far, Since: limitsNow.Add(-e.cfg.StaleAfter), First: 0}
	written := func(ms int64) follow.Status {
		st := fresh
		st.First = ms * 1e6
		return st
	}
	now := limitsNow.UnixMilli()
	for name, c := range map[string]struct {
		st         follow.Status
		mint, maxt int64
		untouched  bool
		want       []string
	}{
		"no poll":                            {follow.Status{}, snap.From, now, false, []string{ReasonUnread}},
		"no poll, no samples":                {follow.Status{}, 0, 0, true, []string{ReasonUnread}},
		"a journal that is incomplete":       {follow.Status{Since: limitsNow, Incomplete: true}, snap.From, now, false, []string{ReasonIncomplete}},
		"a store without a time":             {follow.Status{Since: limitsNow}, snap.From, now, false, []string{ReasonUnread}},
		"spoolers, no samples":               {follow.Status{Since: limitsNow, CompleteThrough: far, Spoolers: []string{"c"}}, 0, 0, true, []string{ReasonSpool}},
		"a poll that is just not stale":      {fresh, snap.From, now, false, []string{}},
		"a poll that is stale":               {follow.Status{CompleteThrough: far, Since: fresh.Since.Add(-1)}, snap.From, now, false, []string{ReasonStale}},
		"from the history's first time":      {fresh, snap.From, now, false, []string{}},
		"from before the history":            {fresh, snap.From - 1, now, false, []string{ReasonBeforeHistory}},
		"before what was ever written":       {written(snap.From), 0, now, false, []string{}},
		"before what was written and is not": {written(snap.From - 1), 0, now, false, []string{ReasonBeforeHistory}},
		"nothing was ever written":           {follow.Status{CompleteThrough: far, Since: fresh.Since, First: math.MaxInt64}, 0, now, false, []string{}},
		"no samples were asked for":          {fresh, 0, now, true, []string{}},
	} {
		got := e.complete(c.st, snap, nil, c.mint, c.maxt, !c.untouched)
		if !slices.Equal(codes(got), c.want) || got.Partial != (len(c.want) > 0) {
			t.Errorf("%s: %v, partial %v, want %v", name, got.Reasons, got.Partial, c.want)
		}
	}
}

// TestLossesMarkTheirTimes: samples that were evicted for memory mark answers that touch
// their times, to the millisecond.
func TestLossesMarkTheirTimes(t *testing.T) {
	e := small(t, 1, 1, time.Second, nil)
	ls, err := live.New(live.Config{History: 2 * time.Hour, MaxBytes: 1 << 30, MaxSeries: 1})
	if err != nil {
		t.Fatal(err)
	}
	at := limitsNow.Add(-time.Hour)
	for i, name := range []string{"x", "y"} { // of two series one must go
		b := frame.NewBuilder()
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: name}}, series.Gauge, "", 0)
		if err == nil {
			err = b.Append(id, at.Add(time.Duration(i)*time.Minute).UnixNano(), 1)
		}
		var own *frame.Batch
		if err == nil {
			own, err = b.Build(identity.Boot{Agent: "a", Boot: "b"}, uint64(1+i))
		}
		if err == nil {
			_, err = ls.Insert(accepted.Batch{Identity: own.Identity, AcceptedAt: 1}, own, limitsNow)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	snap := ls.Snapshot(limitsNow)
	defer snap.Close()
	ms := at.UnixMilli()
	st := follow.Status{CompleteThrough: limitsNow, Since: limitsNow, First: math.MaxInt64}
	for _, c := range []struct {
		mint, maxt int64
		want       []string
	}{{ms, ms, []string{ReasonMemory}}, {ms - 5, ms, []string{ReasonMemory}}, {ms, ms + 5, []string{ReasonMemory}}, {ms - 5, ms - 1, []string{}}, {ms + 1, ms + 5, []string{}}} {
		if got := e.complete(st, snap, nil, c.mint, c.maxt, true); !slices.Equal(codes(got), c.want) {
			t.Errorf("[%d, %d]: %v, want %v", c.mint-ms, c.maxt-ms, got.Reasons, c.want)
		}
	}
}

// TestManyUnreadableBatchesAreNamedAndCounted: three by their identity, the others by number.
func TestManyUnreadableBatchesAreNamedAndCounted(t *testing.T) {
	for _, n := range []int{0, 1, 3, 4, 9} {
		l := newLab(t, 1)
		for i := range n {
			ns := l.now.UnixNano()
			l.entries = append(l.entries, journal.Entry{
				ID: identity.Batch{Agent: "a", Boot: "b", SeqStart: uint64(i), SeqEnd: uint64(i)}, Outcome: journal.Accepted,
				SHA256: identity.Sum([]byte{byte(i)}), Bytes: 1, At: ns, MinTime: ns, MaxTime: ns, // its blob is gone
			})
		}
		l.open()
		s, err := l.eval.Open(t.Context())
		l.must(err)
		_, err = s.Instant(t.Context(), "up", l.now, Options{})
		l.must(err)
		got := s.Completeness().Reasons
		s.Close()
		if n == 0 {
			if len(got) != 0 {
				t.Errorf("nothing is missing: %v", got)
			}
			continue
		}
		if len(got) != 1 || got[0].Code != ReasonUnreadable || got[0].Missing.Batches != n || strings.Count(got[0].Text, "with samples from") != min(n, maxNamed) ||
			strings.HasSuffix(got[0].Text, fmt.Sprintf("; and %d more", n-maxNamed)) != (n > maxNamed) {
			t.Errorf("%d unreadable batches: %v", n, got)
		}
	}
	var got []Reason
	add := func(code string, what missing.Summary, format string, args ...any) {
		got = append(got, Reason{code, fmt.Sprintf(format, args...), what})
	}
	unreadable(add, follow.Unreadable{More: 3})
	if len(got) != 1 || got[0].Code != ReasonUnreadable || got[0].Missing.Batches != 3 {
		t.Errorf("batches of unknown times: %v", got)
	}
}

// TestRangesAtTheirBounds: as many points as are allowed, and one more; a range of one time.
func TestRangesAtTheirBounds(t *testing.T) {
	e := small(t, 1, 1, time.Second, func(l *Limits) { l.Points = 60 })
	for _, c := range []struct {
		length, step time.Duration
		ok           bool
	}{{time.Hour, time.Minute, true}, {61 * time.Minute, time.Minute, false}, {0, time.Minute, true}, {-1, time.Minute, false}, {time.Hour, 0, false}} {
		err := e.CheckRange(limitsNow, limitsNow.Add(c.length), c.step)
		var query *QueryError
		if (err == nil) != c.ok || err != nil && !errors.As(err, &query) {
			t.Errorf("%s by %s: %v", c.length, c.step, err)
		}
	}
}
