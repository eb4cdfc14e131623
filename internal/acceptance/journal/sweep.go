package journal

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Sweep finds files that no head names: of folders that died, of moves that were lost, and of merges whose
// folder died before it deleted them. They are deleted by Fold after the retention. It deletes openings that
// came back.
func (f *Folder) Sweep(ctx context.Context, now int64) error {
	// The listing comes first. A file that it shows, with a number that the head has reached, and that the
	// head does not name, will never be named: a move to that number can't be made any more.
	var keys []string
	for o, err := range objstore.List(ctx, f.cfg.Store, objstore.ListOptions{Prefix: layout.JournalFoldedPrefix}) {
		if err != nil {
			return fmt.Errorf("sweep folded files: %w", err)
		}
		keys = append(keys, o.Key)
	}
	if _, err := f.Load(ctx); err != nil {
		return err
	}
	named := map[string]bool{}
	files, err := f.head.FilesAfter(ctx, f.cfg.Store, 0)
	if err != nil {
		return fmt.Errorf("sweep folded files: %w", err)
	}
	for _, x := range files {
		named[x.Key] = true
	}
	for _, l := range f.head.Lists {
		named[l.Key] = true
	}
	for _, key := range keys {
		number, _, _, err := layout.ParseJournalFolded(key)
		if err != nil {
			number, _, err = layout.ParseJournalList(key)
		}
		if _, known := f.retired[key]; err == nil && number <= f.head.Number && !named[key] && !known {
			f.retired[key] = now
		}
	}
	return f.sweepOpen(ctx)
}

// sweepOpen deletes openings of runs that were deleted before and were created again, by a request
// that came late: every poll would list them.
func (f *Folder) sweepOpen(ctx context.Context) error {
	for o, err := range objstore.List(ctx, f.cfg.Store, objstore.ListOptions{Prefix: layout.JournalOpenPrefix}) {
		if err != nil {
			return fmt.Errorf("sweep openings: %w", err)
		}
		run, n, err := layout.ParseJournalSegment(o.Key)
		if h := f.head.Run(run); err != nil || h == nil || n >= h.Deleted {
			continue
		}
		if err := f.cfg.Store.Delete(ctx, o.Key); err != nil {
			return fmt.Errorf("sweep openings: %w", err)
		}
	}
	return nil
}
