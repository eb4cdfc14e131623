package journal

import (
	"fmt"
	"slices"
)

// Positions say how far somebody has read the journal: what a snapshot, a checkpoint or a
// published block has seen. A run that they do not name had ended by the move Head, and was
// read to its end, or had not begun.
type Positions struct {
	// Head is the number of the head with which they were compared.
	Head uint64 `json:"head"`
	// Runs in the order of their ids.
	Runs []RunPosition `json:"runs"`
}

// RunPosition is how far one run was read.
type RunPosition struct {
	Run RunID `json:"run"`
	// Next is the first segment that was not read.
	Next uint64 `json:"next"`
	// Ended: the run has no segment after those, although no head that was seen says so.
	Ended bool `json:"ended,omitempty"`
}

// maxPositions bounds the runs of positions, and those that a follower follows.
const maxPositions = 100_000

// Validate checks the order and the bound.
func (p *Positions) Validate() error {
	if len(p.Runs) > maxPositions {
		return fmt.Errorf("positions in %d runs, at most %d", len(p.Runs), maxPositions)
	}
	for i, r := range p.Runs {
		if i > 0 && p.Runs[i-1].Run.Compare(r.Run) >= 0 {
			return fmt.Errorf("positions: run %s is out of order", r.Run)
		}
	}
	return nil
}

// Find returns the position in a run.
func (p *Positions) Find(run RunID) (RunPosition, bool) {
	i, ok := slices.BinarySearchFunc(p.Runs, run, func(r RunPosition, id RunID) int { return r.Run.Compare(id) })
	if !ok {
		return RunPosition{}, false
	}
	return p.Runs[i], true
}

// IsZero reports whether nothing was read.
func (p *Positions) IsZero() bool { return p.Head == 0 && len(p.Runs) == 0 }

// Earliest are positions from which a reader finds everything that somebody at a or b has not read.
// It may find more: a run that only one of them names is read from its start.
func Earliest(a, b Positions) Positions {
	out := Positions{Head: min(a.Head, b.Head)}
	for _, r := range a.Runs {
		o, ok := b.Find(r.Run)
		if !ok {
			// The other one has read it to its end, or has never seen it. Which of both it is the
			// positions do not say, so it is left out and read again.
			continue
		}
		out.Runs = append(out.Runs, RunPosition{Run: r.Run, Next: min(r.Next, o.Next), Ended: r.Ended && o.Ended})
	}
	return out
}
