package catalog

import (
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
)

// MaxJournalRuns bounds the runs of the positions that a plan and its blocks record: 64 KB of JSON. That is some
// hundred collectors, each with runs that are open or not folded yet. Positions can't be shortened, since a run that
// they do not name counts as read to its end.
const MaxJournalRuns = 1000

// ReadThrough are positions as a plan and its blocks record them: nil where nothing was read, and where there are too
// many runs. A record without positions says nothing of how far its worker had read, and is as good otherwise.
func ReadThrough(p journal.Positions) *journal.Positions {
	if p.IsZero() || len(p.Runs) > MaxJournalRuns {
		return nil
	}
	if p.Runs == nil {
		p.Runs = []journal.RunPosition{} // an array, never null
	}
	return &p
}

// ValidateReadThrough refuses positions that ReadThrough does not give.
func ValidateReadThrough(p *journal.Positions) error {
	switch {
	case p == nil:
		return nil
	case p.IsZero() || p.Runs == nil || len(p.Runs) > MaxJournalRuns:
		return fmt.Errorf("journal: head %d, %d runs, at most %d", p.Head, len(p.Runs), MaxJournalRuns)
	}
	return p.Validate()
}
