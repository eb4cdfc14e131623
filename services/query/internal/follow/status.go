package follow

import (
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Status of a Follower.
type Status struct {
	// CompleteThrough: everything that was accepted before it is accounted for; zero before the first audit.
	CompleteThrough time.Time
	// FullAuditAt is when the last full audit began.
	FullAuditAt time.Time
	// AuditError of the last audit; nil when it succeeded.
	AuditError error
	Unread     int
	// First is the time of the oldest sample of any boot's first batch, Unix nanoseconds: before it nothing was
	// written. It is math.MaxInt64 if nothing was accepted. It is known once an audit has succeeded.
	First int64
	Boots int

	unread   []Unread // at most maxUnread
	overflow int      // more of them
}

// Status reads the state.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := Status{
		CompleteThrough: f.complete, FullAuditAt: f.fullAt, AuditError: f.lastErr, First: f.firsts.time(),
		Unread: len(f.unread) + f.overflow, Boots: len(f.ledgers), overflow: f.overflow,
	}
	st.unread = slices.Grow(st.unread, len(f.unread)) // usually nothing; every query asks for the status
	for _, u := range f.unread {
		// A copy: the caller reads it without the lock, while attempts change the original.
		st.unread = append(st.unread, *u)
	}
	return st
}

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
	return f.list(limit, func(l *ledger.Ledger) bool {
		b := l.Boot()
		return (agent == "" || b.Agent == agent) && (after == identity.Boot{} || b.Compare(after) > 0)
	})
}

// WithGaps lists at most limit boots that have gaps or overlaps, and counts all of them.
func (f *Follower) WithGaps(limit int) ([]Agent, int) {
	n := 0
	list := f.list(limit, func(l *ledger.Ledger) bool {
		if len(l.Gaps(1))+len(l.Overlaps(1)) == 0 {
			return false
		}
		n++
		return true
	})
	return list, n
}

func (f *Follower) list(limit int, want func(*ledger.Ledger) bool) []Agent {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []*ledger.Ledger
	for _, l := range f.ledgers {
		if want(l) {
			found = append(found, l)
		}
	}
	slices.SortFunc(found, func(a, b *ledger.Ledger) int { return a.Boot().Compare(b.Boot()) })
	if limit > 0 && len(found) > limit {
		found = found[:limit]
	}
	out := make([]Agent, len(found))
	for i, l := range found {
		out[i] = describe(l)
		// Only for the boots of the answer, as the comparison with all other boots is costly.
		out[i].Concurrent = f.shared.With(l.Boot(), f.d.Now())
	}
	return out
}
