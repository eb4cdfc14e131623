package follow

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// batches are reused for decoding; the live store copies what it keeps.
var batches = sync.Pool{New: func() any { return new(frame.Batch) }}

// Unread is an accepted batch that can't be read: no generation of its blob has the frame's bytes, or they do
// not decode.
type Unread struct {
	accepted.Batch
	Err   string
	Since time.Time // by this machine's clock
}

// maxUnread bounds the batches that are listed; if there are more, every answer is partial.
const maxUnread = 10_000

func (f *Follower) isUnread(id identity.Batch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unread[id] != nil
}

func (f *Follower) noteUnread(b accepted.Batch, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.unread[b.Identity]; old != nil {
		// Since stays as it is: the log and the age count from the first failure.
		old.Err = err.Error()
		return
	}
	f.d.Log.Warn("accepted batch can't be read; answers that need it are partial", "batch", b.Identity, "error", err)
	// Beyond the bound only the number is kept: without the times no range can be said to be unaffected.
	if len(f.unread) >= maxUnread {
		f.overflow++
		return
	}
	f.unread[b.Identity] = &Unread{Batch: b, Err: err.Error(), Since: f.d.Now()}
}

func (f *Follower) readable(id identity.Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unread[id] != nil {
		f.d.Log.Info("batch can be read again, or is in a block", "batch", id)
		delete(f.unread, id)
	}
}

// RetryUnread tries every unreadable batch again: a repair may have written its frame, or a block may have it.
func (f *Follower) RetryUnread(ctx context.Context) {
	f.mu.Lock()
	list := make([]accepted.Batch, 0, len(f.unread))
	for _, u := range f.unread {
		list = append(list, u.Batch)
	}
	f.mu.Unlock()
	// A fixed order makes logs and tests repeatable.
	slices.SortFunc(list, func(a, b accepted.Batch) int { return a.Identity.Compare(b.Identity) })
	var g errgroup.Group
	g.SetLimit(f.cfg.Fetchers)
	for _, b := range list {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, f.cfg.FetchTimeout)
			defer cancel()
			if err := f.take(ctx, b); err != nil {
				f.d.Log.Debug("the store can't be asked for an unreadable batch", "batch", b.Identity, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
}

// Unreadable lists the unreadable batches with samples in [mint, maxt]
// (milliseconds), by identity, and how many more there may be.
func (s Status) Unreadable(mint, maxt int64) (list []Unread, more int) {
	for _, u := range s.unread {
		if floorMS(u.MinTime) <= maxt && floorMS(u.MaxTime) >= mint {
			// Rounded down as samples are, so that a batch counts for exactly the milliseconds of its samples.
			list = append(list, u)
		}
	}
	slices.SortFunc(list, func(a, b Unread) int { return a.Identity.Compare(b.Identity) })
	return list, s.overflow
}

func floorMS(ns int64) int64 {
	ms := ns / 1e6
	if ns%1e6 < 0 {
		ms--
	}
	return ms
}
