package live

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// maxHelpBytes bounds the help texts; in a small store a sixteenth of its bound does.
const maxHelpBytes = 8 << 20

// helpOverhead estimates the memory of an entry without its strings.
const helpOverhead = 256

// help is the description of a metric by the newest batch that had one.
type help struct {
	name, text string
	by         identity.Batch
	maxTime    int64 // of the samples of by
}

func (h *help) bytes() int64 { return helpOverhead + int64(len(h.name)+len(h.text)) }

// newerHelp decides which batch describes a metric: the one with the later last sample. Any order of arrival gives
// the same text.
func newerHelp(a accepted.Batch, than *help) bool {
	return cmp.Or(cmp.Compare(a.MaxTime, than.maxTime), a.Identity.Compare(than.by)) > 0
}

// learn takes over the helps of a batch, whose series are in the index.
func (s *Store) learn(a accepted.Batch, b *frame.Batch) {
	for _, t := range b.Helps {
		name := b.Strings[t.Name]
		h := s.helps[name]
		switch {
		case h == nil:
			h = &help{name: strings.Clone(name)} // a substring would keep the frame's buffer in memory
			s.helps[h.name] = h
			s.addHelpBytes(h.bytes())
		case !newerHelp(a, h):
			continue
		}
		// Noted even if the text is the same, since later batches are compared with the newest one.
		h.by, h.maxTime = a.Identity, a.MaxTime
		if h.text != t.Text {
			s.addHelpBytes(int64(len(t.Text) - len(h.text)))
			h.text = strings.Clone(t.Text)
		}
	}
	if limit := min(maxHelpBytes, s.cfg.MaxBytes/16); s.helpBytes > limit {
		s.shrinkHelps(limit - limit/8) // below the limit, so that not every batch has to do it
	}
}

func (s *Store) addHelpBytes(n int64) {
	s.helpBytes += n
	s.bytes += n
}

func (s *Store) dropHelp(h *help) {
	delete(s.helps, h.name)
	s.addHelpBytes(-h.bytes())
}

// dropHelps drops the helps of metrics that are no longer in the index. It runs after a sweep of the index and not
// for each series: for a metric with a million series that would be slow.
func (s *Store) dropHelps() {
	names := s.index.values[series.MetricName]
	for name, h := range s.helps {
		if _, ok := names[name]; !ok {
			s.dropHelp(h)
		}
	}
}

// shrinkHelps reduces the helps to the given number of bytes. The agents that have most lose their oldest ones
// until they have no more than the next: an agent that makes up names loses its own.
func (s *Store) shrinkHelps(limit int64) {
	type share struct {
		agent string
		bytes int64
		helps []*help
	}
	byAgent := map[string]*share{}
	for _, h := range s.helps {
		a := byAgent[h.by.Agent]
		if a == nil {
			a = &share{agent: h.by.Agent}
			byAgent[a.agent] = a
		}
		a.bytes += h.bytes()
		a.helps = append(a.helps, h)
	}
	all := slices.SortedFunc(maps.Values(byAgent), func(a, b *share) int {
		return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.agent, b.agent))
	})
	// Every agent gets an equal part of what those with less have left over.
	for i, a := range all {
		most := max(0, limit/int64(len(all)-i))
		if a.bytes > most {
			slices.SortFunc(a.helps, func(x, y *help) int {
				return cmp.Or(cmp.Compare(x.maxTime, y.maxTime), cmp.Compare(x.name, y.name))
			})
			for _, h := range a.helps {
				if a.bytes <= most {
					break
				}
				a.bytes -= h.bytes()
				s.dropHelp(h)
			}
		}
		limit -= a.bytes
	}
}

// helpsOf fills in the helps of a list.
func (s *Store) helpsOf(list []Metadata) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i := range list {
		if h := s.helps[list[i].Name]; h != nil {
			list[i].Help = h.text
		}
	}
}
