package live

import (
	"math"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/series/shapes"
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// shape is the list of series of a batch: which label set is at which place. Batches with the same list share it;
// if series have a label with their agent, only batches of one agent do.
type shape struct {
	key     string
	groups  []*shapeGroup
	batches int    // those whose columns are in the groups
	live    int    // those of them that are not evicted
	owner   *agent // charged for the shape
	bytes   int64
}

// shapeGroup is one group of a shape with the columns of all its batches.
type shapeGroup struct {
	series  []uint32     // series ids by place
	means   []uint32     // their types and units, indexes into Store.means
	width   int64        // of its windows, milliseconds; 0 before the first batch
	batches uint64       // that came so far
	open    []openWindow // the one that waits longest first
	filling bool         // it is in Store.filling
	// disturbed is the time up to which a batch was evicted or lost numbers to another; of segments that begin after it
	// every row counts. It only grows.
	disturbed atomic.Int64
	// segments by minT. The slice is replaced, never changed in place: a reader keeps the slice that it took.
	segments []*segment
}

// disturb notes that not all rows of a batch count any more.
func (sh *shape) disturb(b *batch) {
	for _, g := range sh.groups {
		g.disturbed.Store(max(g.disturbed.Load(), b.maxT))
	}
}

// calm reports that every row of a segment of the group counts at this version. It says no more than segment.unmasked,
// and asks no batch.
func (g *shapeGroup) calm(s *segment, version uint64) bool {
	return s.added <= version && s.minT() > g.disturbed.Load()
}

// place is where a series stands in a shape.
type place = shapes.Place[shapeGroup]

// shapeOf finds the shape of b or builds it. Under the write lock.
func (s *Store) shapeOf(b *frame.Batch) *shape {
	agent := ""
	if s.cfg.AgentLabel != "" {
		agent = b.Identity.Agent
	}
	sh := s.shapes.Find(agent, b)
	if sh != nil {
		return sh
	}
	sh = &shape{groups: make([]*shapeGroup, len(b.Groups)), bytes: shapeOverhead}
	for i := range b.Groups {
		g := &b.Groups[i]
		sg := &shapeGroup{series: make([]uint32, len(g.Series)), means: make([]uint32, len(g.Series))}
		sg.disturbed.Store(math.MinInt64)
		sh.groups[i] = sg
		sh.bytes += groupOverhead + int64(len(g.Series))*(8+placeBytes)
		for j := range g.Series {
			r := &g.Series[j]
			id, ser := s.seriesOf(s.cfg.AgentLabel.Labels(&s.builder, b.Labels(r), agent))
			sg.means[j] = s.meaningOf(r.Type, b.Strings[r.Unit])
			ser.places = append(ser.places, place{Group: sg, At: uint32(j)})
			sg.series[j] = id
		}
	}
	sh.key = s.shapes.Enter(sh)
	return sh
}

// dropShape takes a shape without batches out of the index, and with it the series that are in no other shape.
func (s *Store) dropShape(sh *shape) {
	s.shapes.Drop(sh.key)
	mine := make(map[*shapeGroup]bool, len(sh.groups))
	for _, g := range sh.groups {
		mine[g] = true
		g.open = nil
		for _, seg := range g.segments {
			s.hasPacked(seg, -1)
		}
	}
	for _, g := range sh.groups {
		for _, id := range g.series {
			ser := s.series[id]
			if ser == nil {
				continue // it is in the shape twice, and dropped already
			}
			kept := ser.places[:0]
			for _, p := range ser.places {
				if !mine[p.Group] {
					kept = append(kept, p)
				}
			}
			// So that the array no longer holds the dropped groups in memory.
			clear(ser.places[len(kept):])
			ser.places = kept
			if len(kept) == 0 {
				s.dropSeries(id, ser)
			}
		}
	}
}

// storedSeries is one label set.
type storedSeries struct {
	labels labels.Labels
	places []place
	bytes  int32
	before uint32 // the series with the same hash that is next older; itself if there is none
	live   int32  // places in shapes that have a batch with columns
	owner  *agent // that is charged for it
}
