package input

import (
	"math"

	"github.com/prometheus/prometheus/model/value"
)

// StaleNaN is the NaN that marks the end of a series, as in Prometheus.
var StaleNaN = math.Float64frombits(value.StaleNaN)

// Tracker remembers the series of one source from scrape to scrape and finds those that the last
// scrape did not have. Not for concurrent use.
type Tracker struct {
	gen    uint64
	series map[string]*tracked
}

type tracked struct {
	series *Series
	gen    uint64
	// first is the scrape that had it first. If that scrape failed, nothing of the series was sent,
	// so it needs no stale marker.
	first uint64
	// live: its last sample had the scrape's own time. Only such series get a stale marker: a marker
	// beside samples with the target's own, older times would be at the wrong place.
	live bool
}

// NewTracker knows nothing yet.
func NewTracker() *Tracker { return &Tracker{series: map[string]*tracked{}} }

// Begin starts a scrape.
func (t *Tracker) Begin() { t.gen++ }

// Get gives the series of a key, if it is known, and marks it as seen. live says
// whether the sample has the scrape's own time.
func (t *Tracker) Get(key []byte, live bool) (*Series, bool) {
	e, ok := t.series[string(key)]
	if !ok {
		return nil, false
	}
	e.gen, e.live = t.gen, live
	return e.series, true
}

// Put adds or replaces the series of a key, and marks it as seen.
func (t *Tracker) Put(key []byte, s *Series, live bool) {
	e := &tracked{series: s, gen: t.gen, first: t.gen, live: live}
	if old, ok := t.series[string(key)]; ok {
		e.first = old.first
	}
	t.series[string(key)] = e
}

// AppendAllStale ends a scrape that failed: nothing of it was sent, and every series of
// the scrapes before gets a stale marker.
func (t *Tracker) AppendAllStale(dst []Sample, at int64) []Sample {
	for _, e := range t.series {
		if e.live && e.first != t.gen {
			dst = append(dst, Sample{Series: e.series, Time: at, Value: StaleNaN})
		}
	}
	clear(t.series)
	return dst
}

// EndSeries appends a stale marker for every series that was sent, those of the last scrape
// too, because the source was removed.
func (t *Tracker) EndSeries(dst []Sample, at int64) []Sample {
	t.Begin() // otherwise what is new in the last scrape counts as that of a failed one
	return t.AppendAllStale(dst, at)
}

// AppendStale ends a scrape: series that it did not have are forgotten, and get a stale
// marker at the scrape's time.
func (t *Tracker) AppendStale(dst []Sample, at int64) []Sample {
	for key, e := range t.series {
		if e.gen == t.gen {
			continue
		}
		if e.live {
			dst = append(dst, Sample{Series: e.series, Time: at, Value: StaleNaN})
		}
		delete(t.series, key)
	}
	return dst
}

// Len is the number of series.
func (t *Tracker) Len() int { return len(t.series) }
