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
	ReasonUnread        = "JOURNAL_UNREAD"     // nothing was proven complete yet
	ReasonIncomplete    = "JOURNAL_INCOMPLETE" // the journal lacks what was accepted before it began
	ReasonStale         = "JOURNAL_STALE"      // the last poll that succeeded is too old
	ReasonSpool         = "LOCAL_SPOOL"        // collectors may hold batches on their own disks
	ReasonUnreadable    = "BATCH_UNREADABLE"   // accepted batches of the range can't be read
	ReasonBeforeHistory = "BEFORE_HISTORY"     // samples of the range were written and are not kept
	ReasonDownsampled   = "DOWNSAMPLED"        // samples of the range have expired; rolled rows stood in for them
	ReasonMemory        = "MEMORY_BOUND"       // samples of the range were evicted for memory and are in no block
	ReasonBlock         = "BLOCK_UNREADABLE"   // blocks of the range can't be read
	ReasonNotRolledUp   = "NOT_ROLLED_UP"      // late batches of hours whose samples have expired are in no rows yet
)

// Codes of notes.
const (
	NoteMerged   = "MERGED_AGENTS"   // series have samples of several agents
	NoteSharedID = "SHARED_AGENT_ID" // several machines send as one agent
)

// Completeness says what an answer includes.
type Completeness struct {
	Partial bool
	// CompleteThrough: everything that was answered before it was checked, by the store's time; zero when nothing was
	// proven yet.
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

// complete determines the completeness of an answer over [mint, maxt], milliseconds; touched is false when no
// samples were asked for. st is the status before the snapshot was opened: what becomes known later must not make an
// answer complete, since the snapshot may lack just what made it known.
func (e *Evaluator) complete(st follow.Status, snap *live.Snapshot, pub *published.Query, mint, maxt int64, touched bool) Completeness {
	c := Completeness{CompleteThrough: st.CompleteThrough}
	add := func(code, format string, args ...any) {
		c.Reasons = append(c.Reasons, Reason{code, fmt.Sprintf(format, args...)})
	}
	// The age is a duration by this machine's clock. What is complete is said in the store's time.
	age := e.d.Now().Sub(st.Since)
	switch {
	case st.Since.IsZero():
		add(ReasonUnread, "the journal of what was accepted was not read to its end yet")
	case st.Incomplete:
		add(ReasonIncomplete, "the bucket has batches from before the journal, and no full audit has written them into it yet: run lmctl audit")
	case st.CompleteThrough.IsZero():
		add(ReasonUnread, "the store does not say what time it is, so that nothing can be said to be complete")
	// Batches that were accepted since may be known by hints, but nothing proves that there are no others.
	case age > e.cfg.StaleAfter:
		add(ReasonStale, "batches accepted after %s may be missing: the journal was read to its end then", st.CompleteThrough.UTC().Format(time.RFC3339))
	}
	if len(st.Spoolers) > 0 {
		add(ReasonSpool, "%s", spooled(st.Spoolers))
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
		if pub != nil && e.d.Blocks.Ahead(timegrid.HourOf(maxt)) {
			add(ReasonBeforeHistory, "blocks are read through the hour from %s, and there are later ones", pub.Span().Newest.Start().Format(time.RFC3339))
		}
		if lost, ok := snap.Lost(mint, maxt); ok {
			add(ReasonMemory, "samples between %s and %s were evicted because the memory bound was met, and no block holds them",
				time.UnixMilli(lost.Min).UTC().Format(time.RFC3339Nano), time.UnixMilli(lost.Max).UTC().Format(time.RFC3339Nano))
		}
		unpublished(add, snap, pub)
		list, more := st.Unreadable(mint, maxt)
		// A few are named, so that an operator knows where to begin; thousands would hide everything else.
		for i, u := range list {
			if i == maxNamed {
				add(ReasonUnreadable, "%d more accepted batches can't be read", len(list)-maxNamed+more)
				more = 0
				break
			}
			add(ReasonUnreadable, "accepted batch %s, with samples from %s to %s, can't be read: %s", u.Identity, stamp(u.MinTime), stamp(u.MaxTime), u.Err)
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

// unpublished adds what blocks lack.
func unpublished(add func(code, format string, args ...any), snap *live.Snapshot, pub *published.Query) {
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
}

// spooled names the collectors whose disks may hold accepted batches.
func spooled(writers []string) string {
	more := ""
	if n := len(writers) - maxNamed; n > 0 {
		writers, more = writers[:maxNamed], fmt.Sprintf(" and %d more", n)
	}
	return "collectors that accept on their own disks may hold batches that are not in the bucket yet: " + strings.Join(writers, ", ") + more
}

func stamp(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }
