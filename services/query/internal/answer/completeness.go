package answer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/sharedid"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/missing"
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
	// Missing says how much it is, as far as that is known.
	Missing missing.Summary
}

// String is "CODE: text", and in brackets what is missing.
func (r Reason) String() string {
	text := r.Code + ": " + r.Text
	if what := r.Missing.String(); what != "" {
		text += " (" + what + ")"
	}
	return text
}

// Codes of reasons.
const (
	ReasonUnread        = "JOURNAL_UNREAD"     // nothing was proven complete yet
	ReasonIncomplete    = "JOURNAL_INCOMPLETE" // the journal lacks what was accepted before it began, or what a lost file had
	ReasonStale         = "JOURNAL_STALE"      // the last poll that succeeded is too old
	ReasonSpool         = "LOCAL_SPOOL"        // collectors may hold batches on their own disks
	ReasonUnreadable    = "BATCH_UNREADABLE"   // accepted batches of the range can't be read
	ReasonBeforeHistory = "BEFORE_HISTORY"     // samples of the range were written and are not kept
	ReasonDownsampled   = "DOWNSAMPLED"        // samples of the range have expired; rolled rows stood in for them
	ReasonMemory        = "MEMORY_BOUND"       // samples of the range were evicted for memory and are in no block
	ReasonBlock         = "BLOCK_UNREADABLE"   // blocks of the range can't be read
	ReasonNotRolledUp   = "NOT_ROLLED_UP"      // late batches of hours whose samples have expired are in no rows yet
	ReasonRegionMissing = "REGION_MISSING"     // a region is not in the answer
	ReasonRegionPartial = "REGION_PARTIAL"     // something is missing of another region
)

// Reasons are the codes of all reasons.
func Reasons() []string {
	return []string{ReasonUnread, ReasonIncomplete, ReasonStale, ReasonSpool, ReasonUnreadable, ReasonBeforeHistory, ReasonDownsampled, ReasonMemory, ReasonBlock, ReasonNotRolledUp, ReasonRegionMissing, ReasonRegionPartial}
}

// Codes of notes.
const (
	NoteMerged   = "MERGED_AGENTS"   // series have samples of several agents
	NoteSharedID = "SHARED_AGENT_ID" // several machines send as one agent
	// NoteNoBatches: the region has no batch with samples in an hour.
	NoteNoBatches = "NO_BATCHES"
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
	// Regions that were asked, this one first if it was; none where only this one was. What stands above is of all
	// together: complete through the earliest of them, and unknown where one is not in the answer.
	Regions []Region
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
	add := func(code string, what missing.Summary, format string, args ...any) {
		c.Reasons = append(c.Reasons, Reason{code, fmt.Sprintf(format, args...), what})
	}
	waiting := func() missing.Summary {
		h := missing.Hours{From: math.MinInt64, To: math.MaxInt64} // of lists and pages, which are of all times
		if touched {
			h = missing.Hours{From: timegrid.HourOf(mint), To: timegrid.HourOf(maxt)}
		}
		return e.d.Follower.Waiting(h)
	}
	none := missing.Summary{}
	// The age is a duration by this machine's clock. What is complete is said in the store's time.
	age := e.d.Now().Sub(st.Since)
	switch {
	case st.Since.IsZero():
		add(ReasonUnread, waiting(), "the journal of what was accepted was not read to its end yet")
	case st.Incomplete:
		add(ReasonIncomplete, none, "the bucket has batches from before the journal, or a file of the journal was lost, and no full audit has entered them yet: lmctl audit list shows how far it is")
	case st.CompleteThrough.IsZero():
		add(ReasonUnread, none, "the store does not say what time it is, so that nothing can be said to be complete")
	// Batches that were accepted since may be known by hints, but nothing proves that there are no others.
	case age > e.cfg.StaleAfter:
		add(ReasonStale, waiting(), "batches accepted after %s may be missing: the journal was read to its end then", st.CompleteThrough.UTC().Format(time.RFC3339))
	}
	if len(st.Spoolers) > 0 {
		add(ReasonSpool, none, "%s", spooled(st.Spoolers))
	}
	if touched {
		// Before the first sample of all nothing was written, so nothing can be missing there.
		first := timegrid.Millisecond(st.First)
		if before, hours, ok := e.beforeHistory(snap, pub, max(mint, first), maxt); ok && before == "" {
			c.Notes = append(c.Notes, Reason{NoteNoBatches, "no batch of the region has samples in some hours, as where its agents were cut off or sent to other regions", missing.Of(hours...)})
		} else if ok {
			add(ReasonBeforeHistory, missing.Of(hours...), "%s, and the history in memory begins at %s",
				before, time.UnixMilli(snap.From).UTC().Format(time.RFC3339))
		}
		if max(mint, first) < snap.From && pub == nil {
			add(ReasonBeforeHistory, missing.Of(missing.Hours{From: timegrid.HourOf(max(mint, first)), To: timegrid.HourOf(min(maxt, snap.From-1))}),
				"the range begins before the history that is kept, which begins at %s", time.UnixMilli(snap.From).UTC().Format(time.RFC3339))
		}
		if pub != nil && e.d.Blocks.Ahead(timegrid.HourOf(maxt)) {
			add(ReasonBeforeHistory, none, "blocks are read through the hour from %s, and there are later ones", pub.Span().Newest.Start().Format(time.RFC3339))
		}
		if lost, ok := snap.Lost(mint, maxt); ok {
			add(ReasonMemory, snap.LostBatches(mint, maxt), "samples between %s and %s were evicted because the memory bound was met, and no block holds them",
				time.UnixMilli(lost.Min).UTC().Format(time.RFC3339Nano), time.UnixMilli(lost.Max).UTC().Format(time.RFC3339Nano))
		}
		unpublished(add, snap, pub)
		unreadable(add, st.Unreadable(mint, maxt, maxNamed))
	}
	c.Partial = len(c.Reasons) > 0
	c.Notes = append(c.Notes, sharedNotes(e.d.Follower.SharedIDs())...)
	c.Gaps, c.AgentsWithGaps = e.d.Follower.WithGaps(maxAgents)
	return c
}

// adder adds a reason.
type adder func(code string, what missing.Summary, format string, args ...any)

// unreadable adds the batches that can't be read. A few are named, so that an operator knows where to begin; thousands
// would hide everything else.
func unreadable(add adder, u follow.Unreadable) {
	if u.Batches > 0 {
		var named []string
		for _, b := range u.Named {
			named = append(named, fmt.Sprintf("%s, with samples from %s to %s: %s", b.Identity, stamp(b.MinTime), stamp(b.MaxTime), b.Err))
		}
		if more := u.Batches - len(named); more > 0 {
			named = append(named, fmt.Sprintf("and %d more", more))
		}
		add(ReasonUnreadable, u.Summary, "accepted batches can't be read: %s", strings.Join(named, "; "))
	}
	if u.More > 0 {
		add(ReasonUnreadable, missing.Summary{Batches: u.More}, "further accepted batches can't be read, and may have samples at any time")
	}
}

// mergeNote names series that have samples of several agents: nothing of them is missing except samples of one
// millisecond, but the values are those of no single machine.
func mergeNote(m promstore.Merges) (Reason, bool) {
	if m.Series == 0 {
		return Reason{}, false
	}
	return Reason{Code: NoteMerged, Text: fmt.Sprintf("%d selected series have samples of several agents with equal labels, such as %s of %s and %s (series.agent_label is empty)",
		m.Series, m.First, m.Agents.One, m.Agents.Other)}, true
}

// sharedNotes names the agents whose series come from several machines.
func sharedNotes(list []sharedid.Shared) (notes []Reason) {
	for i, s := range list {
		if i == maxNamed {
			return append(notes, Reason{Code: NoteSharedID, Text: fmt.Sprintf("so do those of %d more agents", len(list)-maxNamed)})
		}
		notes = append(notes, Reason{Code: NoteSharedID, Text: fmt.Sprintf("several machines send as agent %q, by boots %s: series of it have samples of all of them", s.Agent, strings.Join(s.Boots, " and "))})
	}
	return notes
}

// beforeHistory says why samples before the window may be missing, and of which hours: the range begins before the hours
// whose blocks are read, or hours are in no block, and no batch in memory has samples in them or perhaps not all of them.
// Hours that no selector asked for do not matter.
func (e *Evaluator) beforeHistory(snap *live.Snapshot, pub *published.Query, mint, maxt int64) (string, []missing.Hours, bool) {
	if pub == nil || mint >= snap.From {
		return "", nil, false
	}
	first, last := timegrid.HourOf(mint), timegrid.HourOf(min(maxt, snap.From-1))
	if oldest := pub.Span().Oldest; first < oldest && first <= last {
		return "blocks are read from " + oldest.Start().Format(time.RFC3339) + " on", []missing.Hours{{From: first, To: min(last, oldest-1)}}, true
	}
	var none []missing.Hours
	// Late batches in memory stand in for a block that does not exist yet.
	late := snap.Late()
	for h := first; h <= last; h++ {
		// Not read by this query, or reported as expired elsewhere, or in a block: nothing to say about the hour.
		if !pub.Pinned(h) || pub.Expired(h) || len(pub.Blocks(h, timegrid.Raw)) > 0 {
			continue
		}
		if _, ok := slices.BinarySearch(late, h); !ok && !pub.HasLate(h) {
			none = append(none, missing.Hours{From: h, To: h})
		}
	}
	switch {
	case len(none) == 0:
		return "", nil, false
	// Between its first sample and now an authority has batches in every hour, unless its agents have other ones to go to.
	case e.cfg.Several:
		return "", none, true
	}
	return "no block holds the hour from " + none[0].From.Start().Format(time.RFC3339), none, true
}

// maxCounted bounds the late batches that one answer counts.
const maxCounted = 1000

// expired adds what the answer lacks of hours whose samples have expired.
func expired(add adder, snap *live.Snapshot, pub *published.Query) {
	hour := func(h timegrid.Hour) string { return h.Start().Format(time.RFC3339) }
	for _, r := range pub.Reduced() {
		if r.Resolution == timegrid.Raw {
			add(ReasonBeforeHistory, missing.Of(missing.Hours{From: r.From, To: r.To}), "the samples of %d hours between %s and %s have expired, and no rolled rows of them are left", r.Hours, hour(r.From), hour(r.To+1))
			continue
		}
		add(ReasonDownsampled, missing.Of(missing.Hours{From: r.From, To: r.To}), "the samples of %d hours between %s and %s have expired: what is shown is made of their %s rows", r.Hours, hour(r.From), hour(r.To+1), r.Resolution)
	}
	var hours []missing.Hours
	batches, counted := map[identity.Batch]struct{}{}, true
	for _, h := range snap.Late() {
		if !pub.Pinned(h) || !pub.Expired(h) {
			continue
		}
		before := len(batches)
		all := snap.EachLate(h, func(id identity.Batch) bool {
			if !pub.RowsHold(id, h) {
				batches[id] = struct{}{}
			}
			return len(batches) < maxCounted
		})
		if counted = counted && all; len(batches) > before {
			hours = append(hours, missing.Hours{From: h, To: h})
		}
	}
	if h, ok := pub.LateRows(); ok {
		hours, counted = append(hours, missing.Hours{From: h, To: h}), false
	}
	if len(hours) > 0 {
		first := hours[0].From
		what := missing.Of(hours...)
		what.Batches, what.AtLeast = len(batches), !counted
		add(ReasonNotRolledUp, what, "late batches of the hour from %s, whose other samples have expired, are not rolled up yet", hour(first))
	}
}

// unpublished adds what blocks lack.
func unpublished(add adder, snap *live.Snapshot, pub *published.Query) {
	if pub == nil {
		return
	}
	list, more := pub.Problems()
	for i, p := range list {
		if i == maxNamed {
			add(ReasonBlock, missing.Summary{}, "%d more objects of blocks can't be read", len(list)-maxNamed+more)
			break
		}
		add(ReasonBlock, missing.Of(missing.Hours{From: p.Hour, To: p.Hour}), "block of the hour from %s: %s: %v", p.Hour.Start().Format(time.RFC3339), p.Key, p.Err)
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
