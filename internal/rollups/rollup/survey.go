package rollup

import (
	"cmp"
	"hash/fnv"
	"slices"
	"sort"

	"lightmetrics.dev/lightmetrics/internal/rollups/sketch"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// Survey estimates what an hour costs in memory, and which agents cause it, from frames that it does not keep. It
// is not for concurrent use.
type Survey struct {
	hour   timegrid.Hour
	agents map[string]*surveyed
	others surveyed
	key    []byte
}

// surveyed is what was seen of one agent.
type surveyed struct {
	series     sketch.Sketch
	seen       uint64 // series in frames, counted once for each frame
	keyBytes   uint64 // of those
	records    uint64
	histograms int64 // extra cost of records that are histograms
}

// Size estimates what an agent has in an hour.
type Size struct {
	Agent           string // "" for all others together
	Series, Records uint64
	Bytes           int64
}

// NewSurvey makes a survey of hour h that counts the named agents separately; each costs some 2 KiB.
func NewSurvey(h timegrid.Hour, agents []string) *Survey {
	s := &Survey{hour: h, agents: make(map[string]*surveyed, len(agents))}
	for _, a := range agents {
		s.agents[a] = &surveyed{}
	}
	return s
}

// Add counts a frame, which may be reused afterwards.
func (s *Survey) Add(f *frame.Batch) {
	a := s.agents[f.Identity.Agent]
	if a == nil {
		a = &s.others
	}
	for i := range f.Groups {
		g := &f.Groups[i]
		from := sort.Search(len(g.Timestamps), func(k int) bool { return timegrid.HourOfNS(g.Timestamps[k]) >= s.hour })
		to := sort.Search(len(g.Timestamps), func(k int) bool { return timegrid.HourOfNS(g.Timestamps[k]) > s.hour })
		// A frame without rows in the hour costs a builder nothing.
		if from == to {
			continue
		}
		a.records += uint64(to-from) * uint64(len(g.Series))
		for k := range g.Series {
			r := &g.Series[k]
			s.key = f.AppendKey(s.key[:0], f.Identity.Agent, r, typeOf(r, len(g.Histograms) > 0))
			h := fnv.New64a()
			h.Write(s.key)
			a.series.Add(sketch.Mix(h.Sum64(), uint64(len(s.key))))
			a.seen++
			a.keyBytes += uint64(len(s.key))
		}
		rows := len(g.Timestamps)
		for k := 0; k < len(g.Histograms); k += rows {
			for row := from; row < to; row++ {
				a.histograms += costOfHistogram(&g.Histograms[k+row], true)
			}
		}
	}
}

// Sizes returns the named agents that have records in the hour, the largest first, and all others together last.
func (s *Survey) Sizes() []Size {
	var out []Size
	for name, a := range s.agents {
		if a.seen > 0 {
			out = append(out, a.size(name))
		}
	}
	slices.SortFunc(out, func(x, y Size) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Agent, y.Agent)) })
	if s.others.seen > 0 {
		out = append(out, s.others.size(""))
	}
	return out
}

func (a *surveyed) size(name string) Size {
	// The sketch's error may put the estimate above what was seen at all.
	series := min(uint64(a.series.Estimate()+0.5), a.seen)
	return Size{name, series, a.records, Cost(series, a.records, int(a.keyBytes/a.seen)) + a.histograms}
}
