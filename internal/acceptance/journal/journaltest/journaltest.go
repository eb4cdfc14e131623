// Package journaltest puts entries into the journal of a store, for tests that write manifests
// themselves.
package journaltest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Append writes entries in a run of their own, which it closes.
func Append(ctx context.Context, s journal.WriterStore, authority string, entries ...journal.Entry) error {
	w, err := journal.NewWriter(journal.WriterConfig{
		Store: s, Rand: rand.Reader, Clock: func() int64 { return 0 },
		Opening: journal.Opening{Writer: "journaltest", Role: journal.RoleCollector, Authority: authority},
	})
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := w.Add(e); err != nil {
			return err
		}
	}
	return w.Close(ctx)
}

// Manifests writes an entry for every manifest of the store, and says that the journal is complete.
func Manifests(ctx context.Context, s objstore.Store, authority string) error {
	var entries []journal.Entry
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.AcceptedPrefix}) {
		if err != nil {
			return err
		}
		b, _, err := s.Get(ctx, o.Key, objstore.GetOptions{})
		if err != nil {
			return err
		}
		m, err := accept.ParseManifest(b)
		if err != nil {
			continue // a test may have planted a damaged one: nobody was answered for it
		}
		entries = append(entries, m.Entry(journal.Accepted))
	}
	return errors.Join(Append(ctx, s, authority, entries...), Complete(ctx, s, authority))
}

// Fold moves what the segments have into files, as a reconciler does, and deletes the segments.
func Fold(ctx context.Context, s objstore.Store, authority string) (journal.Head, error) {
	folder, err := journal.NewFolder(journal.FolderConfig{Store: s, Rand: rand.Reader, Retention: 1})
	if err != nil {
		return journal.Head{}, err
	}
	from, err := folder.Load(ctx)
	if err != nil {
		return journal.Head{}, err
	}
	f, err := journal.NewFollower(journal.FollowerConfig{Store: s, Authority: authority, From: from,
		Segment: func(_ context.Context, s *journal.Segment) error { return folder.Add(s) },
		Folded:  func(context.Context, []journal.Entry) error { return nil },
	})
	if err != nil {
		return journal.Head{}, err
	}
	if _, err := f.Poll(ctx); err != nil {
		return journal.Head{}, err
	}
	// Once to fold, and once to delete what the first time has folded.
	for now := int64(10); now < 40; now += 10 {
		if _, err := folder.Fold(ctx, now); err != nil {
			return journal.Head{}, err
		}
	}
	return folder.Head(), nil
}

// Complete says that the journal has every batch that was answered.
func Complete(ctx context.Context, s journal.Store, authority string) error {
	return journal.Begin{AuthorityID: authority, By: journal.ByAuthority}.Write(ctx, s)
}

// Keys lists the keys of the journal, for messages of tests.
func Keys(ctx context.Context, s objstore.Lister) string {
	var keys []string
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.JournalPrefix}) {
		if err != nil {
			return fmt.Sprint(err)
		}
		keys = append(keys, o.Key)
	}
	return strings.Join(keys, "\n")
}
