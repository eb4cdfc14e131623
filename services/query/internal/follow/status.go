package follow

import (
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/queries/missing"
)

// Status of a Follower.
type Status struct {
	// CompleteThrough: everything that was answered before it is in memory, in blocks or known to be missing. It
	// is the store's time; zero before the first poll, and while the journal lacks accepted batches.
	CompleteThrough time.Time
	// Since is when CompleteThrough was proven, by this machine's clock; zero before the first poll. Its age is
	// how old answers may be: a duration, so that it does not matter how the clock is set.
	Since time.Time
	// Incomplete: the bucket has batches from before the journal, or a file of the journal was lost, and no full audit
	// has written them into it.
	Incomplete bool
	// PollError of the last poll; nil when it succeeded.
	PollError error
	Unread    int
	// Spoolers are the collectors that accept on their own disk and may hold batches that nobody can read, sorted.
	Spoolers []string
	// First is the time of the oldest sample that was ever accepted, Unix nanoseconds: before it nothing was
	// written. It is math.MaxInt64 if nothing was accepted. It is known once a poll has succeeded.
	First int64
	Boots int

	unread   *unreadSet
	overflow int // more of them
}

// Status reads the state.
func (f *Follower) Status() Status {
	p := f.queue.proven()
	boots, first := f.book.sums()
	spoolers := f.spoolers()
	f.mu.Lock()
	defer f.mu.Unlock()
	st := Status{
		Since: p.since, Incomplete: !p.since.IsZero() && !p.begun, PollError: f.lastErr, First: first, Spoolers: spoolers,
		Unread: len(f.unread) + f.overflow, Boots: boots, unread: f.unreadableNow(), overflow: f.overflow,
	}
	if p.begun {
		st.CompleteThrough = p.through
	}
	return st
}

// Waiting says what is known to have been accepted, with samples in these hours, and is neither in memory nor known to be
// missing yet.
func (f *Follower) Waiting(h missing.Hours) missing.Summary { return f.queue.in(h) }

// Journal is the number of the journal's head that was last compared with, and how many runs may have further segments.
func (f *Follower) Journal() (head uint64, open int) {
	f.mu.Lock()
	j := f.journal
	f.mu.Unlock()
	if j == nil {
		return 0, 0
	}
	return j.Positions().Head, len(j.Runs())
}

// spoolers are the writers of the open runs of role spooler, but for those that say that nothing is unlanded.
func (f *Follower) spoolers() (out []string) {
	f.mu.Lock()
	j := f.journal
	f.mu.Unlock()
	if j == nil {
		return nil
	}
	runs := j.Runs()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range runs {
		if r.Opening != nil && r.Opening.Role == journal.RoleSpooler && !f.landed[r.Opening.Writer] && !slices.Contains(out, r.Opening.Writer) {
			out = append(out, r.Opening.Writer)
		}
	}
	slices.Sort(out)
	return out
}
