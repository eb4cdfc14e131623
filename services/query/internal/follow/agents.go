package follow

import (
	"math"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Agent is what is known about one boot.
type Agent struct {
	Boot            identity.Boot
	FirstSeq        uint64
	AcceptedThrough uint64
	LastSeq         uint64
	Records         uint64
	Batches         uint64
	Gaps, Overlaps  []ledger.Range // at most maxRanges each
	LastAcceptedAt  int64          // Unix nanoseconds
	// Concurrent are other boots of the agent that send samples of the same minutes: several machines use its id.
	Concurrent []string
}

// maxRanges bounds the gaps and overlaps of one agent in an answer.
const maxRanges = 1000

func describe(l *ledger.Ledger) Agent {
	first, _ := l.FirstSeq()
	through, _ := l.AcceptedThrough()
	last, _ := l.LastSeq()
	return Agent{
		Boot: l.Boot(), FirstSeq: first, AcceptedThrough: through, LastSeq: last,
		Records: l.RecordCount(), Batches: l.BatchCount(),
		Gaps: l.Gaps(maxRanges), Overlaps: l.Overlaps(maxRanges), LastAcceptedAt: l.LastAcceptedAt(),
	}
}

// Agents lists at most limit boots after the given one, by (agent, boot); only those of agent if it is not empty.
func (f *Follower) Agents(agent string, after identity.Boot, limit int) []Agent {
	if limit <= 0 {
		limit = math.MaxInt
	}
	return f.describe(f.book.ledgers().After(after, agent, limit))
}

// WithGaps lists at most limit boots that have gaps or overlaps, and counts all of them.
func (f *Follower) WithGaps(limit int) ([]Agent, int) {
	found, all := f.book.ledgers().Uneven(limit)
	return f.describe(found), all
}

func (f *Follower) describe(found []*ledger.Ledger) []Agent {
	out := make([]Agent, len(found))
	for i, l := range found {
		out[i] = describe(l)
		// Only for the boots of the answer, as the comparison with all other boots is costly.
		out[i].Concurrent = f.book.shared.With(l.Boot(), f.d.Now())
	}
	return out
}
