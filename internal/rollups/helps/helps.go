// Package helps keeps the helps of metrics: what "# HELP" says of a name. Agents send each once an hour in a frame, and
// blocks have none. The record of them is for query nodes that start: they read no frame that a block or delta has.
//
// One invariant: what a block or a delta has, the record has learned. Whoever publishes writes the record first. It is
// derived and bounded, and decides nothing: without it a help is empty until an agent sends it next.
package helps

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

const (
	// MaxBytes bounds the helps of a record, and of a query node, by Help.Bytes.
	MaxBytes = 8 << 20
	// overhead estimates the memory of a help without its name and text.
	overhead = 256
	// replaceAfter is how much newer another text has to be that replaces one in the record: clients in several
	// languages explain some names differently, and take turns within each hour.
	replaceAfter = time.Hour
	// refreshAfter is how much newer an equal text has to be that is worth a write, only to note that it is still sent.
	refreshAfter = 24 * time.Hour
	// keep is how long a help stays after the newest of the record: agents send it each hour.
	keep = 7 * 24 * time.Hour
)

// Help is the description of a metric by the newest batch that had one.
type Help struct {
	Name string `json:"name"`
	Text string `json:"help"`
	// Agent that sent the batch.
	Agent string `json:"agent_id"`
	// Time of the batch's last sample, but not after its acceptance: a clock that is ahead must not win for ever. Unix
	// nanoseconds.
	Time int64 `json:"time_unix_ns"`
}

// Bytes estimates the memory of h.
func (h *Help) Bytes() int64 { return overhead + int64(len(h.Name)+len(h.Text)) }

// newer is the order in which one help of a name replaces another. It is a total order, so that whoever merges the same
// helps has the same texts.
func (h *Help) newer(than *Help) bool {
	return cmp.Or(cmp.Compare(h.Time, than.Time), cmp.Compare(h.Agent, than.Agent), cmp.Compare(h.Text, than.Text)) > 0
}

// after reports whether h is newer than another by d at least.
func (h *Help) after(old *Help, d time.Duration) bool {
	return h.Time > old.Time && uint64(h.Time)-uint64(old.Time) >= uint64(d)
}

// Set has one help of each name, the newest that was added. The zero value is empty.
type Set struct {
	byName map[string]Help
	bytes  int64
}

// Len is the number of helps.
func (s *Set) Len() int { return len(s.byName) }

// List gives the helps in the order of their names.
func (s *Set) List() []Help {
	return slices.SortedFunc(maps.Values(s.byName), func(a, b Help) int { return cmp.Compare(a.Name, b.Name) })
}

// Learn adds the helps of an accepted batch.
func (s *Set) Learn(a accepted.Batch, b *frame.Batch) {
	for _, t := range b.Helps {
		h := Help{Name: b.Strings[t.Name], Text: t.Text, Agent: a.Agent, Time: min(a.MaxTime, a.AcceptedAt)}
		if old, ok := s.byName[h.Name]; ok && !h.newer(&old) {
			continue
		}
		h.Name, h.Text = strings.Clone(h.Name), strings.Clone(h.Text) // substrings would keep the frame's buffer in memory
		s.Add(h)
	}
}

// Add adds a help; of two with one name the newer one stays.
func (s *Set) Add(h Help) {
	old, ok := s.byName[h.Name]
	if ok && !h.newer(&old) {
		return
	}
	if s.byName == nil {
		s.byName = map[string]Help{}
	}
	if ok {
		s.bytes -= old.Bytes()
	}
	s.byName[h.Name] = h
	s.bytes += h.Bytes()
}

func (s *Set) drop(name string) {
	if h, ok := s.byName[name]; ok {
		s.bytes -= h.Bytes()
		delete(s.byName, name)
	}
}

// Bound drops helps where there are more than MaxBytes of them, and some more, so that not every addition has to do it.
func (s *Set) Bound() (dropped int) {
	if s.bytes <= MaxBytes {
		return 0
	}
	return s.shrink(MaxBytes - MaxBytes/8)
}

func (s *Set) shrink(limit int64) int {
	names := Excess(slices.Collect(maps.Values(s.byName)), limit)
	for _, n := range names {
		s.drop(n)
	}
	return len(names)
}

// forget drops what was not sent for long: by the newest help and no machine's clock, so that all workers agree.
func (s *Set) forget() {
	newest := int64(math.MinInt64)
	for _, h := range s.byName {
		newest = max(newest, h.Time)
	}
	for name, h := range s.byName {
		if uint64(newest)-uint64(h.Time) > uint64(keep) {
			s.drop(name)
		}
	}
}

// Merge gives what the record is to have that has stored, when learned was learned. worth: that is worth a write.
// dropped: some of them had no room.
func Merge(stored, learned *Set) (next *Set, worth, dropped bool) {
	if !learned.changes(stored, learned) {
		return stored, false, false
	}
	next = &Set{byName: maps.Clone(stored.byName), bytes: stored.bytes}
	for _, h := range learned.byName {
		next.Add(h)
	}
	next.forget()
	dropped = next.Bound() > 0
	// What is too old, or has no room, is not worth a write each time that it is learned.
	if !learned.changes(stored, next) {
		return stored, false, dropped
	}
	return next, true, dropped
}

// changes reports whether a help that was learned, and that next has, is worth a write over what is stored.
func (s *Set) changes(stored, next *Set) bool {
	for name := range s.byName {
		h, ok := next.byName[name]
		if !ok {
			continue
		}
		old, ok := stored.byName[name]
		if !ok || h.Text != old.Text && h.after(&old, replaceAfter) || h.after(&old, refreshAfter) {
			return true
		}
	}
	return false
}

// Excess names the helps to drop so that no more bytes than limit are left. The agents that have most lose their oldest
// ones until they have no more than the next: an agent that makes up names loses its own.
func Excess(list []Help, limit int64) (names []string) {
	type share struct {
		agent string
		bytes int64
		helps []Help
	}
	byAgent := map[string]*share{}
	for _, h := range list {
		a := byAgent[h.Agent]
		if a == nil {
			a = &share{agent: h.Agent}
			byAgent[h.Agent] = a
		}
		a.bytes += h.Bytes()
		a.helps = append(a.helps, h)
	}
	all := slices.SortedFunc(maps.Values(byAgent), func(a, b *share) int {
		return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.agent, b.agent))
	})
	// Every agent gets an equal part of what those with less have left over.
	for i, a := range all {
		most := max(0, limit/int64(len(all)-i))
		if a.bytes > most {
			slices.SortFunc(a.helps, func(x, y Help) int {
				return cmp.Or(cmp.Compare(x.Time, y.Time), cmp.Compare(x.Name, y.Name))
			})
			for _, h := range a.helps {
				if a.bytes <= most {
					break
				}
				a.bytes -= h.Bytes()
				names = append(names, h.Name)
			}
		}
		limit -= a.bytes
	}
	return names
}
