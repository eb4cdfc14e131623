// Package metadata keeps the record of the helps of metrics up to date. Jobs learn helps from the frames that they read,
// and save them before what they make of these frames is published, so that whoever reads blocks in place of
// frames finds them in the record.
package metadata

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
)

const (
	// attempts to write the record while other workers write it too.
	attempts = 8
	// pause is the time until a record that can't be written, or has no room for what is learned, is written again.
	pause = time.Hour
)

// Config of Helps.
type Config struct {
	Store       objstore.Store
	Metrics     *metrics.Metrics
	Log         *slog.Logger
	Now         func() time.Time
	AuthorityID string
}

// Helps are those that the jobs of one worker learn. It is safe for concurrent use.
type Helps struct {
	cfg Config

	mu      sync.Mutex
	learned *helps.Set // since the last Save
	full    bool       // some of them had no room

	saving *semaphore.Weighted // for what follows
	stored *helps.Set          // by the record with the ETag; nil: not read, or somebody else may have written it
	etag   string              // "": there is none
	paused time.Time           // nothing is written before
}

// New makes Helps that have read nothing yet.
func New(c Config) *Helps {
	return &Helps{cfg: c, learned: &helps.Set{}, saving: semaphore.NewWeighted(1)}
}

// Learn takes the helps of an accepted batch, for Save.
func (k *Helps) Learn(a accepted.Batch, b *frame.Batch) {
	if len(b.Helps) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.learned.Learn(a, b)
	k.full = k.learned.Bound() > 0 || k.full
}

// Save makes sure that the record has what was learned before the call. An error is one of the store, which did not
// answer. A record that can't be used costs helps and nothing else, so it is none.
func (k *Helps) Save(ctx context.Context) error {
	if err := k.saving.Acquire(ctx, 1); err != nil {
		return err
	}
	defer k.saving.Release(1)
	// A clock that went back does not make it wait longer.
	if left := k.paused.Sub(k.cfg.Now()); left > 0 && left <= pause {
		return nil
	}
	k.mu.Lock()
	learned, full := k.learned, k.full
	k.learned, k.full = &helps.Set{}, false
	k.mu.Unlock()
	if learned.Len() == 0 {
		return nil
	}
	saved, err := k.save(ctx, learned, full)
	if !saved {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, h := range learned.List() {
			k.learned.Add(h)
		}
		k.full = k.learned.Bound() > 0 || k.full || full
	}
	return err
}

func (k *Helps) save(ctx context.Context, learned *helps.Set, full bool) (saved bool, err error) {
	for range attempts {
		if usable, err := k.load(ctx); err != nil || !usable {
			return false, err
		}
		next, worth, dropped := helps.Merge(k.stored, learned)
		if dropped || full {
			k.paused = k.cfg.Now().Add(pause) // or each job would write other helps than the one before
		}
		if !worth {
			return true, nil
		}
		etag, err := helps.Write(ctx, k.cfg.Store, k.cfg.AuthorityID, next, k.etag)
		switch {
		case err == nil:
			failpoint.Hit("rollup.helps.written.after")
			k.stored, k.etag = next, etag
			k.cfg.Metrics.HelpsWrites.WithLabelValues("ok").Inc()
			return true, nil
		case errors.Is(err, objstore.ErrExists), errors.Is(err, objstore.ErrPreconditionFailed), errors.Is(err, objstore.ErrConflict), errors.Is(err, objstore.ErrNotFound):
			// Another worker's, or somebody deleted it. Reading it tells.
			k.stored = nil
			k.cfg.Metrics.HelpsWrites.WithLabelValues("refused").Inc()
		default:
			k.stored = nil
			k.cfg.Metrics.HelpsWrites.WithLabelValues("failed").Inc()
			return false, k.fail(err)
		}
	}
	return false, k.fail(fmt.Errorf("others have written it %d times: %w", attempts, objstore.ErrPreconditionFailed))
}

// load reads the record unless it is known. usable is false where it must not be written now.
func (k *Helps) load(ctx context.Context) (usable bool, err error) {
	if k.stored != nil {
		return true, nil
	}
	k.stored, k.etag, err = helps.Read(ctx, k.cfg.Store, k.cfg.AuthorityID)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, objstore.ErrNotFound):
		k.stored, k.etag = &helps.Set{}, ""
		return true, nil
	case record.Unreadable(err):
		k.cfg.Metrics.HelpsWrites.WithLabelValues("damaged").Inc()
		k.cfg.Log.Error("the record of the helps of metrics can't be read and is replaced; agents send each help again within the hour", "error", err)
		if k.etag == "" {
			info, err := k.cfg.Store.Head(ctx, layout.RollupHelpsKey)
			if err != nil {
				return false, k.fail(err)
			}
			k.etag = info.ETag
		}
		k.stored = &helps.Set{}
		return true, nil
	default:
		return false, k.fail(err)
	}
}

// fail gives the errors that later attempts may mend: what was learned is published only when it is saved. Of others
// nothing waits.
func (k *Helps) fail(err error) error {
	if errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrUnknown) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	k.paused = k.cfg.Now().Add(pause)
	k.cfg.Log.Warn("the helps of metrics are not written; query nodes that start lack some until agents send them again", "error", err)
	return nil
}
