package tail

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// meeting is a store that holds requests of segments until as many are under way.
type meeting struct {
	*mem.Store
	wanted int

	mu       sync.Mutex
	underWay int
	met      chan struct{}
}

func (s *meeting) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	s.mu.Lock()
	waits := s.wanted > 0 && strings.HasPrefix(key, layout.JournalRunPrefix)
	if waits {
		if s.underWay++; s.underWay == s.wanted {
			close(s.met)
		}
	}
	s.mu.Unlock()
	if waits {
		select {
		case <-s.met:
		case <-ctx.Done():
			return nil, objstore.Info{}, ctx.Err()
		}
	}
	return s.Store.Get(ctx, key, o)
}

// TestHintsAreReadSideBySide: hints at several runs, and at several segments of one, cost one wait for the store and one
// request a segment.
func TestHintsAreReadSideBySide(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := &meeting{Store: mem.New(nil), met: make(chan struct{})}
	const runs, each = 5, 3
	var writers []*journal.Writer
	var hinted []journal.Position
	write := func(w *journal.Writer, i, n int) journal.Position {
		_, err := w.Add(journal.Entry{
			ID:      identity.Batch{Agent: "a", Boot: string(rune('a' + i)), SeqStart: uint64(n), SeqEnd: uint64(n)},
			Outcome: journal.Accepted, SHA256: identity.Sum([]byte{byte(i), byte(n)}), Bytes: 1, Generation: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		at, _, err := w.Flush(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for i := range runs {
		w, err := journal.NewWriter(journal.WriterConfig{
			Store: s, Rand: rand.Reader, Clock: func() int64 { return 1 },
			Opening: journal.Opening{Writer: "w", Role: journal.RoleCollector, Authority: "a"},
		})
		if err != nil {
			t.Fatal(err)
		}
		writers = append(writers, w)
		write(w, i, 1)
	}
	var mu sync.Mutex
	segments := 0
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: "a", Fan: Fan(runs),
		Segment: func(context.Context, *journal.Segment) error {
			mu.Lock()
			defer mu.Unlock()
			segments++
			return nil
		},
		Folded: func(context.Context, []journal.Entry) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	tail := New(Polling{Readers: runs}, slog.New(slog.DiscardHandler), f, nil, nil)
	if _, err := f.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	for n := range each {
		for i, w := range writers {
			hinted = append(hinted, write(w, i, n+2))
		}
	}
	s.wanted = runs * each
	for _, at := range hinted[1:] {
		if !tail.Hint(at) {
			t.Fatal("a hint was dropped")
		}
	}
	if !tail.follow(ctx, tail.waiting(hinted[0])) {
		t.Error("a run is not known")
	}
	if segments != runs*(each+1) || s.underWay != runs*each {
		t.Errorf("%d segments, %d requests; want %d and %d", segments, s.underWay, runs*(each+1), runs*each)
	}
	if tail.follow(ctx, []journal.Position{{Run: journal.RunID{7}}}) {
		t.Error("a run that nobody has opened is known")
	}
}
