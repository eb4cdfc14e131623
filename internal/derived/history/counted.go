package history

import (
	"context"
	"errors"
	"fmt"
	"math"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// errFound ends a reading that has nothing more to find.
var errFound = errors.New("everything was found")

// Counted tells which of some batches, as their identity manifests have them, this region counts: those whose acceptance with
// that frame stands in the journal. Where several regions accept, a manifest alone does not tell: it may be a copy of a batch that
// another region counts, it may have lost, or nobody has decided it yet. A batch that was answered before the call is found.
//
// It reads the files of the time in which the batches were accepted, and what is not folded; it ends when all are found.
// Errors are those of Read.
func (r Reader) Counted(ctx context.Context, batches []accepted.Batch) (map[identity.Batch]bool, error) {
	if len(batches) == 0 {
		return nil, nil
	}
	wanted := make(map[identity.Batch]identity.Digest, len(batches))
	agents := map[string]bool{}
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	for _, b := range batches {
		wanted[b.Identity], agents[b.Agent] = b.FrameSHA256, true
		first, last = min(first, b.AcceptedAt), max(last, b.AcceptedAt)
	}
	of := Selection{Agents: func(agent string) bool { return agents[agent] }}
	// An entry has its manifest's time, also one that an audit or a repeat of the sender's has written later.
	if last < math.MaxInt64 {
		of.Accepted = Range{first, last + 1}
	}
	counted := make(map[identity.Batch]bool, len(batches))
	_, err := r.Read(ctx, of, 0, func(_ context.Context, p Page) error {
		for i := range p.Entries {
			e := &p.Entries[i]
			if d, ok := wanted[e.ID]; ok && d == e.SHA256 {
				counted[e.ID] = true
			}
		}
		if len(counted) == len(wanted) {
			return errFound
		}
		return nil
	})
	if err != nil && !errors.Is(err, errFound) {
		return nil, fmt.Errorf("which batches count: %w", err)
	}
	return counted, nil
}
