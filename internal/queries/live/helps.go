package live

import (
	"cmp"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// help is the description of a metric by the newest batch that had one.
type help struct {
	helps.Help // its Time is that of the last sample of by
	by         identity.Batch
	// recorded: the record of blocks has one of this name, so it stays while no series here has the name.
	recorded bool
}

// newerHelp decides which batch describes a metric: the one with the later last sample. Any order of arrival gives
// the same text.
func newerHelp(by identity.Batch, maxTime int64, than *help) bool {
	return cmp.Or(cmp.Compare(maxTime, than.Time), by.Compare(than.by)) > 0
}

// learn takes over the helps of a batch, whose series are in the index.
func (s *Store) learn(a accepted.Batch, b *frame.Batch) {
	for _, t := range b.Helps {
		s.describe(b.Strings[t.Name], t.Text, a.Identity, a.MaxTime)
	}
	s.boundHelps()
}

// LearnHelps takes over the helps of metrics whose frames are in blocks and were not read. They replace those of an
// earlier call, and give way to those of newer batches.
func (s *Store) LearnHelps(recorded []helps.Help) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.helps {
		h.recorded = false
	}
	for i := range recorded {
		h := &recorded[i]
		// Of equal times a batch of the same agent wins, since it may be the very one that the record has learned from.
		s.describe(h.Name, h.Text, identity.Batch{Agent: h.Agent}, h.Time).recorded = true
	}
	s.dropHelps()
	s.boundHelps()
}

// describe notes the text for the metric unless a newer batch gave another one.
func (s *Store) describe(name, text string, by identity.Batch, maxTime int64) *help {
	h := s.helps[name]
	switch {
	case h == nil:
		h = &help{Help: helps.Help{Name: strings.Clone(name)}} // a substring would keep the frame's buffer in memory
		s.helps[h.Name] = h
		s.addHelpBytes(h.Bytes())
	case !newerHelp(by, maxTime, h):
		return h
	}
	// Noted even if the text is the same, since later batches are compared with the newest one.
	h.by, h.Agent, h.Time = by, by.Agent, maxTime
	if h.Text != text {
		s.addHelpBytes(int64(len(text) - len(h.Text)))
		h.Text = strings.Clone(text)
	}
	return h
}

// boundHelps keeps the helps below their bound; in a small store that is a sixteenth of its own.
func (s *Store) boundHelps() {
	limit := min(helps.MaxBytes, s.cfg.MaxBytes/16)
	if s.helpBytes <= limit {
		return
	}
	list := make([]helps.Help, 0, len(s.helps))
	for _, h := range s.helps {
		list = append(list, h.Help)
	}
	for _, name := range helps.Excess(list, limit-limit/8) { // below the limit, so that not every batch has to do it
		s.dropHelp(s.helps[name])
	}
}

func (s *Store) addHelpBytes(n int64) {
	s.helpBytes += n
	s.bytes += n
}

func (s *Store) dropHelp(h *help) {
	delete(s.helps, h.Name)
	s.addHelpBytes(-h.Bytes())
}

// dropHelps drops the helps of metrics that are no longer in the index. It runs after a sweep of the index and not
// for each series: for a metric with a million series that would be slow.
func (s *Store) dropHelps() {
	names := s.index.values[series.MetricName]
	for name, h := range s.helps {
		if _, ok := names[name]; !ok && !h.recorded {
			s.dropHelp(h)
		}
	}
}

// helpsOf fills in the helps of a list.
func (s *Store) helpsOf(list []Metadata) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i := range list {
		if h := s.helps[list[i].Name]; h != nil {
			list[i].Help = h.Text
		}
	}
}
