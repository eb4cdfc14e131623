package follow

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// polls polls at intervals until ctx ends. What a failed poll misses the next one finds, or an audit.
func (f *Follower) polls(ctx context.Context) error {
	t := time.NewTicker(f.cfg.PollInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		if err := f.Poll(ctx); err != nil && ctx.Err() == nil {
			f.m.pollFailures.Inc()
			f.d.Log.Debug("poll failed", "error", err)
		}
	}
}

// Poll reads the end of accepted-by-time. It begins some time before what it saw last, for keys that were written
// late; audits find the rest.
func (f *Follower) Poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.FetchTimeout)
	defer cancel()
	now := f.d.Now()
	f.mu.Lock()
	// Reconcilers may write keys late and their clocks differ, so a poll reads a little of what it has read before.
	from := time.Unix(0, f.polled).Add(-f.cfg.PollLookback)
	f.mu.Unlock()
	// After a long pause the audits find the rest; a poll must stay cheap.
	if oldest := now.Add(-f.cfg.PollLookback); from.Before(oldest) {
		from = oldest
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(f.cfg.Fetchers)
	var err error
	for hour := from.UTC().Truncate(time.Hour); !hour.After(now.Add(f.cfg.PollLookback)) && err == nil; hour = hour.Add(time.Hour) {
		prefix := layout.AcceptedByTimeHour(hour)
		after := prefix + pad(from.UnixNano())
		for o, lerr := range objstore.List(ctx, f.d.Store, objstore.ListOptions{Prefix: prefix, StartAfter: after}) {
			if lerr == nil {
				lerr = ctx.Err()
			}
			if lerr != nil {
				err = lerr
				break
			}
			at, ok := timeOf(strings.TrimPrefix(o.Key, prefix))
			// The overlap with earlier polls costs a listing but no reads.
			if !ok || f.polledBefore(o.Key) {
				continue
			}
			g.Go(func() error { return f.takeByTime(ctx, o.Key, at) })
		}
	}
	if werr := g.Wait(); werr != nil {
		err = werr
	}
	f.forgetPolled(from.UnixNano())
	return err
}

// takeByTime reads a derived object, which has the manifest's bytes.
func (f *Follower) takeByTime(ctx context.Context, key string, at int64) error {
	body, _, err := f.d.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxRecordBytes})
	// An unreadable hint is noted as polled and not tried again: an audit reads the manifest itself.
	if err != nil && !objstore.Unreadable(err) {
		return err
	}
	if m, perr := accept.ParseManifest(body); perr == nil {
		// The object is only a hint. What is derived may be wrong, so the manifest itself is read.
		if err := f.take(ctx, layout.Accepted(m.Identity), nil); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// Only after the batch was taken, so that one that failed is polled again.
	f.recent[key] = at
	f.polled = max(f.polled, at)
	return nil
}

func (f *Follower) polledBefore(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.recent[key]
	return ok
}

func (f *Follower) forgetPolled(before int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.recent, func(_ string, at int64) bool { return at < before })
}

func pad(ns int64) string {
	s := strconv.FormatInt(max(ns, 0), 10)
	return strings.Repeat("0", max(0, 20-len(s))) + s
}

// timeOf reads the acceptance time with which a manifest id begins.
func timeOf(id string) (int64, bool) {
	digits, _, ok := strings.Cut(id, "-")
	if !ok || len(digits) != 20 {
		return 0, false
	}
	at, err := strconv.ParseInt(digits, 10, 64)
	return at, err == nil
}
