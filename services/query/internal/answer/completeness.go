package answer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/sharedid"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
)

// Reason says why an answer is partial, or what else should be known about it: a stable code, and text for people.
type Reason struct {
	Code string
	Text string
}

// String is "CODE: text".
func (r Reason) String() string { return r.Code + ": " + r.Text }

// Codes of reasons.
const (
	ReasonNoAudit       = "NO_AUDIT"         // nothing was proven complete yet
	ReasonStale         = "AUDIT_STALE"      // the last audit that succeeded is too old
	ReasonUnreadable    = "BATCH_UNREADABLE" // accepted batches of the range can't be read
	ReasonBeforeHistory = "BEFORE_HISTORY"   // samples of the range were written and are not kept
	ReasonDownsampled   = "DOWNSAMPLED"      // samples of the range have expired; rolled rows stood in for them
	ReasonMemory        = "MEMORY_BOUND"     // samples of the range were evicted for memory and are in no block
	ReasonBlock         = "BLOCK_UNREADABLE" // blocks of the range can't be read
	ReasonNotRolledUp   = "NOT_ROLLED_UP"    // it is not known which batches before the window are in no block
)

// Codes of notes.
const (
	NoteMerged   = "MERGED_AGENTS"   // series have samples of several agents
	NoteSharedID = "SHARED_AGENT_ID" // several machines send as one agent
)

// Completeness says what an answer includes.
type Completeness struct {
	Partial bool
	// CompleteThrough: everything that was accepted before it was checked; zero when nothing was proven yet.
	CompleteThrough time.Time
	Reasons         []Reason
	// Notes are worth knowing although nothing is missing from the answer.
	Notes []Reason
	// Gaps are boots with gaps or overlaps, at most maxAgents; AgentsWithGaps counts all of them.
	Gaps           []follow.Agent
	AgentsWithGaps int
}

const (
	// maxAgents bounds the agents that an answer names.
	maxAgents = 10
	// maxNamed bounds the unreadable batches that a reason names.
	maxNamed = 3
)

// seen is what was known before the snapshot was opened. What becomes known later must not make an answer
// complete: the snapshot may lack just what made it known.
type seen struct {
	follow.Status
	intake bool // the whole intake was read: whatever no block has is in memory
}

// complete determines the completeness of an answer over [mint, maxt], milliseconds; touched is false when no
// samples were asked for.
func (e *Evaluator) complete(st seen, snap *live.Snapshot, pub *published.Query, mint, maxt int64, touched bool) Completeness {
	c := Completeness{CompleteThrough: st.CompleteThrough}
	add := func(code, format string, args ...any) {
		c.Reasons = append(c.Reasons, Reason{code, fmt.Sprintf(format, args...)})
	}
	age := e.d.Now().Sub(st.CompleteThrough)
	switch {
	case st.CompleteThrough.IsZero():
		add(ReasonNoAudit, "no audit of the accepted batches has succeeded yet")
	// Batches that were accepted since may be known by hints, but nothing proves that there are no others.
	case age > e.cfg.StaleAfter:
		add(ReasonStale, "batches accepted after %s may be missing: the last audit that succeeded began then",
			st.CompleteThrough.UTC().Format(time.RFC3339))
	}
	if touched {
		// Before the first sample of all nothing was written, so nothing can be missing there.
		first := timegrid.Millisecond(st.First)
		if before, ok := e.beforeHistory(snap, pub, max(mint, first), maxt); ok {
			add(ReasonBeforeHistory, "%s, and the history in memory begins at %s",
				before, time.UnixMilli(snap.From).UTC().Format(time.RFC3339))
		}
		if max(mint, first) < snap.From && pub == nil {
			add(ReasonBeforeHistory, "the range begins before the history that is kept, which begins at %s",
				time.UnixMilli(snap.From).UTC().Format(time.RFC3339))
		}
		if lost, ok := snap.Lost(mint, maxt); ok {
			add(ReasonMemory, "samples between %s and %s were evicted because the memory bound was met, and no block holds them",
				time.UnixMilli(lost.Min).UTC().Format(time.RFC3339Nano), time.UnixMilli(lost.Max).UTC().Format(time.RFC3339Nano))
		}
		e.published(add, st, snap, pub, mint)
		list, more := st.Unreadable(mint, maxt)
		// A few are named, so that an operator knows where to begin; thousands would hide everything else.
		for i, u := range list {
			if i == maxNamed {
				add(ReasonUnreadable, "%d more accepted batches can't be read", len(list)-maxNamed+more)
				more = 0
				break
			}
			add(ReasonUnreadable, "accepted batch %s can't be read (%s): %s", u.Identity, u.Cause, u.Err)
		}
		if more > 0 {
			add(ReasonUnreadable, "%d more accepted batches can't be read", more)
		}
	}
	c.Partial = len(c.Reasons) > 0
	c.Notes = sharedNotes(e.d.Follower.SharedIDs())
	c.Gaps, c.AgentsWithGaps = e.d.Follower.WithGaps(maxAgents)
	return c
}

// mergeNote names series that have samples of several agents: nothing of them is missing except samples of one
// millisecond, but the values are those of no single machine.
func mergeNote(m promstore.Merges) (Reason, bool) {
	if m.Series == 0 {
		return Reason{}, false
	}
	return Reason{NoteMerged, fmt.Sprintf("%d selected series have samples of several agents with equal labels, such as %s of %s and %s (series.agent_label is empty)",
		m.Series, m.First, m.Agents.One, m.Agents.Other)}, true
}

// sharedNotes names the agents whose series come from several machines.
func sharedNotes(list []sharedid.Shared) (notes []Reason) {
	for i, s := range list {
		if i == maxNamed {
			return append(notes, Reason{NoteSharedID, fmt.Sprintf("so do those of %d more agents", len(list)-maxNamed)})
		}
		notes = append(notes, Reason{NoteSharedID, fmt.Sprintf("several machines send as agent %q, by boots %s: series of it have samples of all of them", s.Agent, strings.Join(s.Boots, " and "))})
	}
	return notes
}

// beforeHistory says why samples before the window may be missing: the range begins before the hours whose blocks
// are read, or an hour is in no block, and no batch in memory has samples in it or perhaps not all of them. Hours
// that no selector asked for do not matter.
func (e *Evaluator) beforeHistory(snap *live.Snapshot, pub *published.Query, mint, maxt int64) (string, bool) {
	if pub == nil || mint >= snap.From {
		return "", false
	}
	first, last := timegrid.HourOf(mint), timegrid.HourOf(min(maxt, snap.From-1))
	if oldest := pub.Span().Oldest; first < oldest && first <= last {
		return "blocks are read from " + oldest.Start().Format(time.RFC3339) + " on", true
	}
	// Late batches in memory stand in for a block that does not exist yet.
	late := snap.Late(nil)
	for h := first; h <= last; h++ {
		// Not read by this query, or reported as expired elsewhere, or in a block: nothing to say about the hour.
		if !pub.Pinned(h) || pub.Expired(h) || len(pub.Blocks(h, timegrid.Raw)) > 0 {
			continue
		}
		if _, ok := slices.BinarySearch(late, h); !ok && !pub.HasLate(h) {
			return "no block holds the hour from " + h.Start().Format(time.RFC3339), true
		}
		if e.d.Blocks.MayLack(h) {
			return "no block holds the hour from " + h.Start().Format(time.RFC3339) + ", and its batches in memory may be some of those that were accepted, since rollups began later", true
		}
	}
	return "", false
}

// expired adds what the answer lacks of hours whose samples have expired.
func expired(add func(code, format string, args ...any), snap *live.Snapshot, pub *published.Query) {
	hour := func(h timegrid.Hour) string { return h.Start().Format(time.RFC3339) }
	for _, r := range pub.Reduced() {
		if r.Resolution == timegrid.Raw {
			add(ReasonBeforeHistory, "the samples of %d hours between %s and %s have expired, and no rolled rows of them are left", r.Hours, hour(r.From), hour(r.To+1))
			continue
		}
		add(ReasonDownsampled, "the samples of %d hours between %s and %s have expired: what is shown is made of their %s rows", r.Hours, hour(r.From), hour(r.To+1), r.Resolution)
	}
	elsewhere := func(id identity.Batch, h timegrid.Hour) bool {
		return !pub.Pinned(h) || !pub.Expired(h) || pub.RowsHold(id, h)
	}
	late := snap.Late(elsewhere)
	if h, ok := pub.LateRows(); ok {
		late = append(late, h)
	}
	if len(late) > 0 {
		add(ReasonNotRolledUp, "late batches of the hour from %s, whose other samples have expired, are not rolled up yet", hour(late[0]))
	}
}

// published adds what blocks lack, and batches that are not in a block yet.
func (e *Evaluator) published(add func(code, format string, args ...any), st seen, snap *live.Snapshot, pub *published.Query, mint int64) {
	if pub == nil {
		return
	}
	list, more := pub.Problems()
	for i, p := range list {
		if i == maxNamed {
			add(ReasonBlock, "%d more objects of blocks can't be read", len(list)-maxNamed+more)
			break
		}
		add(ReasonBlock, "block of the hour from %s: %s: %v", p.Hour.Start().Format(time.RFC3339), p.Key, p.Err)
	}
	expired(add, snap, pub)
	if mint < snap.From && !(st.intake && e.d.Blocks.IntakeRead()) { // asked again, as a segment may have been found damaged since
		add(ReasonNotRolledUp, "which accepted batches before %s are not rolled up is not known", time.UnixMilli(snap.From).UTC().Format(time.RFC3339))
	}
}
