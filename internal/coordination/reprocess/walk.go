package reprocess

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

const (
	// pageSize is how many batches are between two checkpoints.
	pageSize = 500
	// reads is how many manifests are read in parallel.
	reads       = 16
	maxManifest = 64 << 10
)

// Progress says how far a walk came. It is the checkpoint of a request's job, and in the
// end its result.
type Progress struct {
	// Hour and After say where the walk continues: the hour of acceptance, and the last key done in it.
	Hour  time.Time `json:"hour"`
	After string    `json:"after"`
	// What was done so far; a page that was lost and done again counts once.
	Batches  uint64 `json:"batches"`
	Segments uint64 `json:"segments"`
	// Hours counts the hours of shards that the batches lie in, page by page.
	Hours uint64 `json:"hours"`
	// Done: every batch was written. It stays false for a request that was cancelled.
	Done bool `json:"done,omitempty"`
}

// ParseProgress reads a checkpoint, or the result that the log of a request keeps. Errors wrap
// record.ErrCorrupt or record.ErrNewerVersion.
func ParseProgress(b []byte) (Progress, error) {
	var p Progress
	err := ProgressKind.Unmarshal(b, &p)
	return p, err
}

// Walker reads the batches of requests.
type Walker struct {
	Store objstore.Store
	// Page is how many batches are handed over at once; 0 means 500.
	Page int
}

// Walk calls page for every page of the request's batches, beginning at p. page gets the progress that the walk has
// made once the page is done.
func (w Walker) Walk(ctx context.Context, o Request, p Progress, page func(Progress, []accept.Manifest) error) error {
	limit := w.Page
	if limit <= 0 {
		limit = pageSize
	}
	if p.Hour.IsZero() {
		// Keys are grouped by whole hours; read leaves out what was accepted before From.
		p.Hour = o.From.Truncate(time.Hour)
	}
	for ; p.Hour.Before(o.To); p.Hour, p.After = p.Hour.Add(time.Hour), "" {
		for {
			list, err := w.Store.List(ctx, objstore.ListOptions{Prefix: layout.AcceptedByTimeHour(p.Hour), StartAfter: p.After, Limit: limit})
			if err != nil {
				return err
			}
			if len(list.Objects) == 0 {
				break
			}
			batches, err := w.read(ctx, o, list.Objects)
			if err != nil {
				return err
			}
			// The last key that was listed and not the last that matched, or a page without matches would be read
			// for ever.
			p.After = list.Objects[len(list.Objects)-1].Key
			p.Batches += uint64(len(batches))
			if err := page(p, batches); err != nil {
				return err
			}
			if list.Next == "" {
				break
			}
		}
	}
	return nil
}

// read reads the manifests of the batches that the request asks for.
func (w Walker) read(ctx context.Context, o Request, objects []objstore.Info) ([]accept.Manifest, error) {
	all := make([]*accept.Manifest, len(objects))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(reads)
	for i, obj := range objects {
		g.Go(func() error {
			b, _, err := w.Store.Get(gctx, obj.Key, objstore.GetOptions{Limit: maxManifest})
			if errors.Is(err, objstore.ErrNotFound) {
				return nil // moved by a repair since it was listed
			}
			if err != nil {
				return err
			}
			m, err := accept.ParseManifest(b)
			if err != nil {
				// A damaged object fails the request: silently skipping it would report batches as processed that
				// were not.
				return fmt.Errorf("%s: %w", obj.Key, err)
			}
			at := m.AcceptedTime()
			if !at.Before(o.From) && at.Before(o.To) && (o.Agent == "" || o.Agent == m.Identity.Agent) {
				// By place and not by append: the reads run in parallel, and the order of the listing is kept.
				all[i] = &m
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var batches []accept.Manifest
	for _, m := range all {
		if m != nil {
			batches = append(batches, *m)
		}
	}
	return batches, nil
}
