package scrub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// folded is a store with n folded entries.
func folded(t *testing.T, n int) *mem.Store {
	s := mem.New(time.Now)
	var es []journal.Entry
	for i := range n {
		id := identity.Batch{Agent: fmt.Sprintf("a%04d", i), Boot: "boot", SeqEnd: 9}
		es = append(es, journal.Entry{ID: id, SHA256: identity.Sum([]byte(id.String())), Bytes: 9, At: 1e18, MinTime: 1, MaxTime: 2, Outcome: journal.Accepted})
	}
	ctx := t.Context()
	must(t, journaltest.Append(ctx, s, "authority", es...))
	folder, err := journal.NewFolder(journal.FolderConfig{Store: s, Rand: rand.NewChaCha8([32]byte{1})})
	must(t, err)
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: "authority",
		Segment: func(_ context.Context, s *journal.Segment) error { return folder.Add(s) },
		Folded:  func(context.Context, []journal.Entry) error { return nil },
	})
	must(t, err)
	_, err = f.Poll(ctx)
	must(t, err)
	_, err = folder.Fold(ctx, 1)
	must(t, err)
	return s
}

// A process that is stopped in the middle, and one that fails, leave their place to the next: no frame is checked twice before each
// was checked once, and what is missing is reported.
func TestRestartsGoOn(t *testing.T) {
	const frames = 200
	s := folded(t, frames)
	seen := map[string]int{}
	var suspects []string
	for stop := 50; stop <= frames; stop += 50 {
		ctx, cancel := context.WithCancel(t.Context())
		failed := false
		check := func(_ context.Context, e *journal.Entry) (bool, error) {
			if len(seen) == 75 && !failed {
				failed = true
				return false, errors.New("the store is away")
			}
			seen[e.ID.Agent]++
			if len(seen) == stop {
				cancel()
			}
			return e.ID.Agent != "a0123", nil
		}
		suspect := func(_ context.Context, e *journal.Entry) error {
			suspects = append(suspects, e.ID.Agent)
			return nil
		}
		sc := New(Scrubbing{Period: time.Millisecond, Rate: 1e6}, "r", slog.New(slog.DiscardHandler), s, check, suspect)
		if err := sc.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if failed && sc.Checked() == 0 {
			t.Error("nothing was checked after an error")
		}
	}
	if len(seen) != frames {
		t.Errorf("%d of %d frames were checked", len(seen), frames)
	}
	twice := 0
	for _, n := range seen {
		twice += n - 1
	}
	// Where a process is stopped, the frame that it has just checked may be checked again.
	if twice > 4 || len(suspects) == 0 || suspects[0] != "a0123" {
		t.Errorf("%d frames were checked again, suspects %v", twice, suspects)
	}
}

// The pace is what the period asks for, and a rate that is too low is logged, once.
func TestPace(t *testing.T) {
	s := folded(t, 200)
	var log bytes.Buffer
	none := func(context.Context, *journal.Entry) (bool, error) { return true, nil }
	head, _, err := journal.ReadHead(t.Context(), s)
	must(t, err)
	for _, c := range []struct {
		period time.Duration
		rate   float64
		pace   float64
		warns  int
	}{{100 * time.Second, 50, 2, 0}, {time.Second, 50, 50, 1}, {time.Hour, 50, 1, 0}} {
		log.Reset()
		sc := New(Scrubbing{Period: c.period, Rate: c.rate}, "r", slog.New(slog.NewTextHandler(&log, nil)), s, none, nil)
		for range 2 {
			sc.limit(&head)
		}
		if sc.Pace() != c.pace || strings.Count(log.String(), "scrub.rate is too low") != c.warns {
			t.Errorf("period %s: %v a second\n%s", c.period, sc.Pace(), log.String())
		}
	}
}
