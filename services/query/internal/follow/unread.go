package follow

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	minInt64 = math.MinInt64
	maxInt64 = math.MaxInt64
)

// batches are reused for decoding; the live store copies what it keeps.
var batches = sync.Pool{New: func() any { return new(frame.Batch) }}

// Causes of unreadable batches.
const (
	CauseManifest = "manifest" // the manifest is corrupt
	CauseFrame    = "frame"    // no generation has the frame's bytes, or they do not decode
)

// Unread is an accepted batch that can't be read.
type Unread struct {
	Identity         identity.Batch
	Cause            string
	Err              string
	MinTime, MaxTime int64 // of its samples, Unix nanoseconds
	Since            time.Time
}

// maxUnread bounds the batches that are listed; if there are more, every answer is partial.
const maxUnread = 10_000

func (f *Follower) isUnread(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unread[key] != nil
}

func (f *Follower) noteUnread(key string, u Unread) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.unread[key]; old != nil {
		// Since stays as it is: the log and the age count from the first failure.
		old.Err = u.Err
		return
	}
	f.d.Log.Warn("accepted batch can't be read; answers that need it are partial", "key", key, "cause", u.Cause, "error", u.Err)
	// Beyond the bound only the number is kept: without the times no range can be said to be unaffected.
	if len(f.unread) >= maxUnread {
		f.overflow++
		return
	}
	u.Since = f.d.Now()
	f.unread[key] = &u
}

func (f *Follower) readable(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unread[key] != nil {
		f.d.Log.Info("batch can be read again, or is too old to matter", "key", key)
		delete(f.unread, key)
	}
}

// retryUnread tries every unreadable batch again: a repair may have written its frame.
func (f *Follower) retryUnread(ctx context.Context) error {
	f.mu.Lock()
	keys := make([]string, 0, len(f.unread))
	for k := range f.unread {
		keys = append(keys, k)
	}
	f.mu.Unlock()
	// A fixed order makes logs and tests repeatable.
	slices.Sort(keys)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(f.cfg.Fetchers)
	for _, k := range keys {
		g.Go(func() error { return f.take(ctx, k, nil) })
	}
	return g.Wait()
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
	slices.SortFunc(list, func(a, b Unread) int { return cmp.Or(a.Identity.Compare(b.Identity), cmp.Compare(a.Cause, b.Cause)) })
	return list, s.overflow
}

func floorMS(ns int64) int64 {
	ms := ns / 1e6
	if ns%1e6 < 0 {
		ms--
	}
	return ms
}
