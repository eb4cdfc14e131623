package ingest

import (
	"hash/maphash"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/rollups/sketch"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// shape is what the bounds check about a batch's series.
type shape struct {
	series     int
	labelBytes int           // of the series with the longest labels, names and values
	seen       sketch.Sketch // of the batch's series
}

// measurer computes the shape of batches. It reuses its memory; not for concurrent use.
type measurer struct {
	hashes []uint64 // by string of the table
	sizes  []int
	// Of the resource's labels.
	resourceHash uint64
	resourceSize int
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
	m.shared(b)
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

// shared computes what the resource's labels add to every series that has none of their names itself.
func (m *measurer) shared(b *frame.Batch) {
	m.resourceHash, m.resourceSize = 0, 0
	for _, l := range b.Resource {
		m.resourceHash += sketch.Mix(m.hashes[l.Name], m.hashes[l.Value])
		m.resourceSize += m.sizes[l.Name] + m.sizes[l.Value]
	}
}

// one returns the hash of a series, which does not depend on the order of its labels, and the
// number of bytes of their names and values.
func (m *measurer) one(b *frame.Batch, s *series.Ref) (hash uint64, size int) {
	hash, size = m.hashes[s.Unit]^uint64(s.Type), m.resourceSize
	hash += m.resourceHash
	for _, l := range s.Labels {
		name := m.hashes[l.Name]
		hash += sketch.Mix(name, m.hashes[l.Value])
		size += m.sizes[l.Name] + m.sizes[l.Value]
		for _, r := range b.Resource {
			if m.hashes[r.Name] == name { // its own label replaces the resource's
				hash -= sketch.Mix(name, m.hashes[r.Value])
				size -= m.sizes[r.Name] + m.sizes[r.Value]
			}
		}
	}
	return sketch.Mix(hash, hash), size
}

// activeSeries estimates how many series one agent has sent in the last one to two windows.
type activeSeries struct {
	mu      sync.Mutex
	windows *seriesWindows // nil before the first batch
	refused time.Time      // when a batch was last refused for its series
}

type seriesWindows struct {
	began    time.Time     // of the current window
	cur, old sketch.Sketch // series of the current window, and of the one before
}

// agentSeriesBytes is roughly the memory of one agent, in bytes.
const agentSeriesBytes = 2*sketch.Bytes + 256

// take counts the series of a batch, unless together with those counted before they exceed the limit.
func (s *activeSeries) take(seen *sketch.Sketch, l seriesLimit, now time.Time) (estimate int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.at(now, l.window)
	// The estimate is compared only where there is a new series: its error must not refuse a batch of an
	// agent that sends what it always sent.
	if seen.Adds(&w.cur, &w.old) {
		if n := int(sketch.EstimateUnion(&w.cur, &w.old, seen)); n > l.most {
			s.refused = now
			return n, false
		}
	}
	w.cur.Merge(seen)
	return 0, true
}

// at returns the windows as of now. A clock that went back starts new ones.
func (s *activeSeries) at(now time.Time, window time.Duration) *seriesWindows {
	if s.windows == nil {
		s.windows = &seriesWindows{began: now}
	}
	w := s.windows
	// Sketches are assigned one by one: a copy of both on the stack would make it grow for every batch.
	switch age := now.Sub(w.began); {
	case age >= 2*window || age < 0:
		w.began = now
		clear(w.old[:])
		clear(w.cur[:])
	case age >= window:
		w.began = now
		copy(w.old[:], w.cur[:])
		clear(w.cur[:])
	}
	return w
}

// refusedSince reports whether a batch was refused after t.
func (s *activeSeries) refusedSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused.After(t)
}
