package scrub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// foldedStore is a store with n folded entries.
func foldedStore(t *testing.T, n int) *mem.Store {
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
	s := foldedStore(t, frames)
	seen := map[string]int{}
	var suspects []string
	for stop := 50; stop <= frames; stop += 50 {
		ctx, cancel := context.WithCancel(t.Context())
		failed := false
		var mu sync.Mutex
		check := func(_ context.Context, e *journal.Entry, _ bool) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
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
			mu.Lock()
			defer mu.Unlock()
			suspects = append(suspects, e.ID.Agent)
			return nil
		}
		sc := New(Scrubbing{Period: time.Millisecond, Rate: 1e6, Bytes: 1e9, Verify: VerifyBytes}, "r", slog.New(slog.DiscardHandler), s, check, suspect, time.Now)
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
	// Where a process is stopped, or fails, the frames that it was just checking may be checked again.
	if twice > 4*parallel || len(suspects) == 0 || suspects[0] != "a0123" {
		t.Errorf("%d frames were checked again, suspects %v", twice, suspects)
	}
}

// The pace is what the period asks for, and a rate that is too low is logged, once.
func TestPace(t *testing.T) {
	s := foldedStore(t, 200)
	var log bytes.Buffer
	none := func(context.Context, *journal.Entry, bool) (bool, error) { return true, nil }
	head, _, err := journal.ReadHead(t.Context(), s)
	must(t, err)
	for _, c := range []struct {
		period time.Duration
		rate   float64
		pace   float64
		warns  int
	}{{1000 * time.Second / 9, 50, 2, 0}, {time.Second, 50, 50, 1}, {time.Hour, 50, 1, 0}} {
		log.Reset()
		sc := New(Scrubbing{Period: c.period, Rate: c.rate, Bytes: 1, Verify: VerifyBytes}, "r", slog.New(slog.NewTextHandler(&log, nil)), s, none, nil, time.Now)
		for range 2 {
			sc.limit(folded(&head))
		}
		if math.Abs(sc.Pace()-c.pace) > 1e-3 || strings.Count(log.String(), "scrub.rate is too low") != c.warns {
			t.Errorf("period %s: %v a second\n%s", c.period, sc.Pace(), log.String())
		}
	}
}

// A pass counts what it hashes and what it finds, over processes, and says when everything was checked last.
func TestPassesAreCounted(t *testing.T) {
	const frames = 150
	s := foldedStore(t, frames)
	var mu sync.Mutex
	reads := map[bool]int{}
	check := func(_ context.Context, e *journal.Entry, read bool) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		reads[read]++
		return e.ID.Agent != "a0123", nil
	}
	now := time.Now()
	for _, verify := range []string{VerifyBytes, VerifyChecksum} {
		const period = 200 * time.Millisecond
		sc := New(Scrubbing{Period: period, Rate: 1e6, Bytes: 1e9, Verify: verify}, "r", slog.New(slog.DiscardHandler), s, check,
			func(context.Context, *journal.Entry) error { return nil }, func() time.Time { return now })
		sc.cursor.Period = time.Hour // so that a slow machine does not begin the next pass; the pace is still that of period
		if sc.Status() != nil || sc.Unverified() != 0 || sc.Overdue() != 0 || sc.Progress() != 0 {
			t.Error("it knows something before it has asked")
		}
		if verify == VerifyChecksum { // a pass of its own
			_, err := s.Put(t.Context(), layout.ScrubKey, []byte("damaged"), objstore.PutOptions{})
			must(t, err)
		}
		for st := sc.Status(); st == nil || st.EndedAt == 0; st = sc.Status() {
			_, err := sc.step(t.Context())
			must(t, err)
		}
		st := sc.Status()
		bytes := uint64(9 * (frames - 1))
		if verify == VerifyChecksum {
			bytes = 0
		}
		if st.Checked != frames || st.Suspects != 1 || st.Bytes != bytes || st.Frames != frames || sc.Hashed() != bytes || sc.Suspects() != 1 || sc.Progress() != 1 {
			t.Errorf("%s: %+v, %d bytes, %d suspects, progress %v", verify, st, sc.Hashed(), sc.Suspects(), sc.Progress())
		}
		now = time.Unix(st.BeganAt, 0).Add(90 * time.Minute)
		if sc.Overdue() != 90*time.Minute-period || sc.Unverified() != 90*time.Minute {
			t.Errorf("overdue %v, unverified %v", sc.Overdue(), sc.Unverified())
		}
	}
	if reads[true] != frames || reads[false] != frames {
		t.Errorf("%v", reads)
	}
}

// Bytes are paced too: no more are read than the rate allows until the deadline.
func TestBytesArePaced(t *testing.T) {
	s := foldedStore(t, 10)
	check := func(context.Context, *journal.Entry, bool) (bool, error) { return true, nil }
	sc := New(Scrubbing{Period: time.Millisecond, Rate: 1e6, Bytes: 20, Verify: VerifyBytes}, "r", slog.New(slog.DiscardHandler), s, check, nil, time.Now)
	// After the first 20 bytes another frame of 9 has to wait longer than there is time.
	sc.bytes.SetLimit(1e-3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := sc.step(ctx); err == nil || sc.Checked() != 2 || sc.Hashed() != 18 {
		t.Errorf("%d frames, %d bytes: %v", sc.Checked(), sc.Hashed(), err)
	}
}
