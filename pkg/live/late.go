package live

import (
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// Cover reports whether published sets hold all records that the batch has in these hours.
// Once it has said so, every later query must read them there. It is called under the
// store's lock and must not call the store.
type Cover func(id identity.Batch, hours []window.Hour) bool

// SetCover makes the store keep batches before the history window until c covers them,
// within the memory bound. Before the first Insert.
func (s *Store) SetCover(c Cover) { s.cover = c }

// missing reports that nobody else has the batch.
func (s *Store) missing(id identity.Batch, hours []window.Hour) bool {
	return s.cover != nil && !s.cover(id, hours)
}

func (s *Store) heapOf(b *batch) *byAge {
	if b.late {
		return &s.late
	}
	return &s.full
}

// oldest of the batches with columns.
func (s *Store) oldest() *batch {
	if len(s.late) > 0 && (len(s.full) == 0 || s.late[0].maxT <= s.full[0].maxT) {
		return s.late[0]
	}
	return s.full[0]
}

// dropCovered drops late batches that published sets hold by now.
func (s *Store) dropCovered() {
	var done []*batch
	for _, b := range s.late {
		if !s.missing(b.Identity, b.hours) {
			done = append(done, b)
		}
	}
	if len(done) == 0 {
		return
	}
	s.version++
	for _, b := range done {
		s.evict(b)
		s.forget(b)
	}
	s.vacuum()
}

// Late are the hours of the batches that the snapshot sees although they lie before the
// window, ascending.
func (p *Snapshot) Late() []window.Hour {
	s := p.store
	s.mu.RLock()
	defer s.mu.RUnlock()
	set := map[window.Hour]struct{}{}
	for _, b := range s.late {
		if b.visible(p.version) {
			for _, h := range b.hours {
				set[h] = struct{}{}
			}
		}
	}
	out := make([]window.Hour, 0, len(set))
	for h := range set {
		out = append(out, h)
	}
	slices.Sort(out)
	return out
}

// hoursOf are the hours that have samples of b, ascending.
func hoursOf(b *frame.Batch) []window.Hour {
	var out []window.Hour
	for i := range b.Groups {
		for _, t := range b.Groups[i].Timestamps {
			h := window.HourOfNS(t)
			if n := len(out); n > 0 && out[n-1] == h {
				continue
			}
			if at, ok := slices.BinarySearch(out, h); !ok {
				out = slices.Insert(out, at, h)
			}
		}
	}
	return out
}
