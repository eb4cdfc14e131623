package ingest

import (
	"container/list"
	"hash/maphash"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/sketch"
)

// shape is what the bounds on a batch look at, besides its summary.
type shape struct {
	series     int
	labelBytes int           // of the series with the longest labels, names and values
	seen       sketch.Sketch // of the batch's series
}

// measurer finds the shape of batches. It reuses its memory; not for concurrent use.
type measurer struct {
	hashes []uint64 // by string of the table
	sizes  []int
}

// hashSeed differs from process to process, so that nobody can choose series whose hashes collide.
var hashSeed = maphash.MakeSeed()

// measure fills sh from b. Each string is hashed once, however many series refer to it.
// A series is its resolved labels, type and unit, as for rollups.
func (m *measurer) measure(b *frame.Batch, sh *shape) {
	*sh = shape{}
	m.hashes, m.sizes = m.hashes[:0], m.sizes[:0]
	for _, s := range b.Strings {
		m.hashes = append(m.hashes, maphash.String(hashSeed, s))
		m.sizes = append(m.sizes, len(s))
	}
	for i := range b.Groups {
		g := &b.Groups[i]
		sh.series += len(g.Series)
		for k := range g.Series {
			hash, size := m.one(b, &g.Series[k])
			sh.labelBytes = max(sh.labelBytes, size)
			sh.seen.Add(hash)
		}
	}
}

// one gives the hash of a series, the same whatever the order of its labels, and the
// bytes of their names and values.
func (m *measurer) one(b *frame.Batch, s *frame.Series) (hash uint64, size int) {
	hash = m.hashes[s.Unit] ^ uint64(s.Type)
	for _, l := range s.Labels {
		hash += sketch.Mix(m.hashes[l.Name], m.hashes[l.Value])
		size += m.sizes[l.Name] + m.sizes[l.Value]
	}
	for _, l := range b.Resource {
		if !m.has(s.Labels, m.hashes[l.Name]) {
			hash += sketch.Mix(m.hashes[l.Name], m.hashes[l.Value])
			size += m.sizes[l.Name] + m.sizes[l.Value]
		}
	}
	return sketch.Mix(hash, hash), size
}

// has reports whether the series has a label of its own with that name, which wins over the resource's.
func (m *measurer) has(labels []frame.LabelRef, name uint64) bool {
	for _, l := range labels {
		if m.hashes[l.Name] == name {
			return true
		}
	}
	return false
}

// activeSeries estimates how many series each agent has sent in the last one to two
// windows. Only so many agents are remembered, in 4 KiB each: the one that sent least
// recently is forgotten, which can only let it send more.
type activeSeries struct {
	limit  int
	window time.Duration
	most   int
	now    func() time.Time

	mu     sync.Mutex
	recent *list.List // of *agentSeries, most recent first
	byID   map[string]*list.Element
}

type agentSeries struct {
	agent    string
	began    time.Time     // of the current window
	cur, old sketch.Sketch // series of the current window, and of the one before
	refused  time.Time     // when a batch last was
}

// agentSeriesBytes is about the memory of one agent.
const agentSeriesBytes = 2*sketch.Bytes + 256

func newActiveSeries(l Limits, now func() time.Time) *activeSeries {
	return &activeSeries{limit: l.AgentSeries, window: l.SeriesWindow, most: l.AgentsTracked, now: now,
		recent: list.New(), byID: map[string]*list.Element{}}
}

// take counts the series of a batch as the agent's, unless that makes them more than the
// limit: then it gives their estimated number, and nothing is counted. A batch without a
// new series always passes, so an agent at its limit goes on with those that it has.
func (a *activeSeries) take(agent string, seen *sketch.Sketch) (estimate int, ok bool) {
	if a.limit <= 0 {
		return 0, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	s := a.of(agent, now)
	known := s.cur
	known.Merge(&s.old)
	union := known
	union.Merge(seen)
	if union != known {
		if n := int(union.Estimate()); n > a.limit {
			s.refused = now
			return n, false
		}
	}
	s.cur.Merge(seen)
	return 0, true
}

func (a *activeSeries) of(agent string, now time.Time) *agentSeries {
	e, ok := a.byID[agent]
	if ok {
		a.recent.MoveToFront(e)
	} else {
		if a.recent.Len() >= a.most {
			last := a.recent.Back()
			delete(a.byID, last.Value.(*agentSeries).agent)
			a.recent.Remove(last)
		}
		e = a.recent.PushFront(&agentSeries{agent: agent, began: now})
		a.byID[agent] = e
	}
	s := e.Value.(*agentSeries)
	switch age := now.Sub(s.began); {
	case age >= 2*a.window || age < 0:
		s.began, s.cur, s.old = now, sketch.Sketch{}, sketch.Sketch{}
	case age >= a.window:
		s.began, s.old, s.cur = now, s.cur, sketch.Sketch{}
	}
	return s
}

// atLimit counts the agents of which a batch was refused within the last window.
func (a *activeSeries) atLimit() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, now := 0, a.now()
	for e := a.recent.Front(); e != nil; e = e.Next() {
		if t := e.Value.(*agentSeries).refused; !t.IsZero() && now.Sub(t) < a.window {
			n++
		}
	}
	return n
}
