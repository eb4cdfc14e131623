package fold

import (
	"context"
	"crypto/rand"
	"errors"
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
	entry := journal.Entry{
		ID:      identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 10},
		Outcome: journal.Accepted, SHA256: identity.Sum([]byte("f")), Bytes: 1,
	}
	if err := journaltest.Append(ctx, s, "authority", entry); err != nil {
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
	now := int64(1)
	var follower *journal.Follower
	k := New(Folding{FenceAfter: time.Hour, MaxWaiting: 10}, slog.New(slog.DiscardHandler), s, folder, func() []journal.Run { return follower.Runs() },
		func() int64 { return now }, func(State, bool, error) {})
	follower, err = journal.NewFollower(journal.FollowerConfig{Store: s, Authority: "authority", From: from,
		Segment: k.Offer, Folded: func(context.Context, []journal.Entry) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
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
