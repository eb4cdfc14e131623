package fold

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const authority = "test"

func entry(n uint64) journal.Entry {
	return journal.Entry{
		ID:      identity.Batch{Agent: "a", Boot: "b", SeqStart: n, SeqEnd: n},
		Outcome: journal.Accepted, SHA256: identity.Sum(fmt.Append(nil, n)), Bytes: 100, At: 1e18, MinTime: 1e18, MaxTime: 1e18,
	}
}

var errListing = errors.New("listing refused")

// unlistable is a store that does not list folded files, as with a policy that forgets that prefix.
type unlistable struct{ *mem.Store }

func (s unlistable) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if strings.HasPrefix(o.Prefix, layout.JournalFoldedPrefix) {
		return objstore.Page{}, errListing
	}
	return s.Store.List(ctx, o)
}

// A sweep that fails holds up neither folding nor fencing.
func TestSweepThatFailsHoldsUpNothing(t *testing.T) {
	ctx := t.Context()
	s := unlistable{mem.New(time.Now)}
	if err := journaltest.Append(ctx, s, authority, entry(1)); err != nil {
		t.Fatal(err)
	}
	folder, err := journal.NewFolder(journal.FolderConfig{Store: s, Rand: rand.Reader, Retention: 1})
	if err != nil {
		t.Fatal(err)
	}
	from, err := folder.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var k *Keeper
	follower, err := journal.NewFollower(journal.FollowerConfig{Store: s, Authority: authority, From: from,
		Segment: func(ctx context.Context, s *journal.Segment) error { return k.Offer(ctx, s) },
		Folded:  func(context.Context, []journal.Entry) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	k = New(Folding{FenceAfter: time.Hour, MaxWaiting: 10}, slog.New(slog.DiscardHandler), s, folder, follower,
		func() int64 { return 1 }, func(State, bool, error) {})
	if _, err := follower.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	moved, err := k.round(ctx)
	if !moved || !errors.Is(err, errListing) {
		t.Fatalf("moved %v, %v; want a move, and the error of the sweep", moved, err)
	}
	head, _, err := journal.ReadHead(ctx, s)
	if err != nil || len(head.Files) != 1 {
		t.Fatalf("the head is %+v, %v; want one file", head, err)
	}
}

// A reconciler whose polls have seen that another one folded begins with that head: it writes no files in vain, and
// nothing fails.
func TestFoldingFollowsTheHeadOfOthers(t *testing.T) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := mem.New(nil)
	folder, err := journal.NewFolder(journal.FolderConfig{Store: s, Rand: rand.Reader, Retention: 1})
	must(err)
	var k *Keeper
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: authority,
		Segment: func(ctx context.Context, s *journal.Segment) error { return k.Offer(ctx, s) },
		Folded:  func(context.Context, []journal.Entry) error { return nil },
	})
	must(err)
	now := int64(0)
	k = New(Folding{Interval: time.Minute, FenceAfter: time.Hour, Sweep: time.Hour, MaxWaiting: 1000}, slog.New(slog.DiscardHandler), s, folder, f,
		func() int64 { now++; return now }, func(State, bool, error) {})
	for n := range uint64(4) {
		must(journaltest.Append(ctx, s, authority, entry(2*n)))
		_, err := f.Poll(ctx)
		must(err)
		if n%2 == 1 { // before this process gets to it
			_, err = journaltest.Fold(ctx, s, authority)
			must(err)
			must(journaltest.Append(ctx, s, authority, entry(2*n+1)))
			_, err = f.Poll(ctx)
			must(err)
		}
		if moved, err := k.round(ctx); err != nil || !moved {
			t.Fatalf("round %d: moved %v, %v", n, moved, err)
		}
	}
	head, _, err := journal.ReadHead(ctx, s)
	must(err)
	files, err := head.FilesAfter(ctx, s, 0)
	must(err)
	named, entries := map[string]bool{}, uint64(0)
	for _, x := range files {
		named[x.Key], entries = true, entries+x.Entries
	}
	if entries != 6 {
		t.Errorf("%d entries are folded, want 6", entries)
	}
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.JournalFoldedPrefix}) {
		must(err)
		if !named[o.Key] {
			t.Errorf("%s is named by nobody", o.Key)
		}
	}
}
