package follow

import (
	"context"
	"errors"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
)

// helpsRetry is the wait after a read of the helps to which the store did not answer.
const helpsRetry = time.Minute

// learnHelps reads the helps of metrics whose frames the journal's follower passes over, because blocks have them. It must
// come after the reading of how far blocks are: the record has learned what is published when it is read. Without
// it helps are empty until agents send them again, so it never fails a poll.
func (f *Follower) learnHelps(ctx context.Context) {
	f.mu.Lock()
	authority, due := f.authority, f.helpsAt
	f.mu.Unlock()
	if due.IsZero() {
		return
	}
	// A clock that went back does not make it wait longer.
	if left := due.Sub(f.d.Now()); left > 0 && left <= helpsRetry {
		return
	}
	var next time.Time // never
	set, _, err := helps.Read(ctx, f.d.Store, authority)
	switch {
	case err == nil:
		f.d.Live.LearnHelps(set.List())
		f.m.helps.WithLabelValues("ok").Inc()
	case errors.Is(err, objstore.ErrNotFound): // nothing was published since there is a record of them
		f.m.helps.WithLabelValues("none").Inc()
	case record.Opaque(err):
		f.m.helps.WithLabelValues("unusable").Inc()
		f.d.Log.Warn("the helps of metrics in blocks can't be used; agents send each again within the hour", "error", err)
	default:
		f.m.helps.WithLabelValues("failed").Inc()
		f.d.Log.Warn("the helps of metrics in blocks can't be read; they are asked for again", "after", helpsRetry, "error", err)
		next = f.d.Now().Add(helpsRetry)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.helpsAt = next
}
