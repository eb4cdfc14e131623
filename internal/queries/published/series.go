package published

import (
	"sort"
	"sync"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// handle is a chunk, whose blocks are in memory once it is loaded. Its decoder is for one reader at a time.
type handle struct {
	q      *Query
	key    string
	memory *catalog.Memory // of a chunk in memory; nil for published ones
	uses   []catalog.Piece // the parts of it that count
	x      *index
	series []int       // that match; owned by the index, not to be changed
	asked  bool        // its blocks were requested
	broken atomic.Bool // it could not be read, which is noted as a Problem

	raw  bool // rows are samples
	res  timegrid.Resolution
	as   *Hint      // rows stand in for samples; nil when they are read as they are
	held []*columns // of series; nil for those that must be decoded
	want chunk.Mask // columns of rolled rows that are read as they are
	kept *heldRows  // of these, once they are loaded
	warm bool       // all blocks that are needed were cached
	rest int64      // bytes of the rows that must be decoded
	once bool       // these are too many to be kept

	mu  sync.Mutex
	dec *chunk.Decoder
}

// decoder returns the decoder, made at first use.
func (h *handle) decoder() *chunk.Decoder {
	if h.dec == nil {
		h.dec = chunk.NewDecoder(h.x.Index, h.q.r.cfg.Limits)
	}
	return h.dec
}

// Series is one label set with the places of its rows.
type Series struct {
	Labels labels.Labels
	pieces []piece // by hour
}

// Times returns the bounds of the hours that have rows of it, in milliseconds.
func (s *Series) Times() (first, last int64) {
	return s.pieces[0].ob.hour.StartMS(), s.pieces[len(s.pieces)-1].ob.hour.EndMS()
}

// piece is a series of one chunk.
type piece struct {
	ob *object
	i  int
}

// cut returns the rows of the hours first..last.
func cut(c *chunk.Columns, first, last timegrid.Hour) chunk.Columns {
	// An hour includes its last millisecond and not its first, as buckets do.
	from, to := firstNS(first.StartMS()+1), lastNS(last.EndMS())
	if n := len(c.T); n == 0 || c.T[0] >= from && c.T[n-1] <= to {
		return *c
	}
	i := sort.Search(len(c.T), func(k int) bool { return c.T[k] >= from })
	return c.Cut(i, i+sort.Search(len(c.T)-i, func(k int) bool { return c.T[i+k] > to }))
}

// corrupt notes once that the chunk can't be decoded, and drops its blocks from the cache so that it is fetched
// again.
func (ob *object) corrupt(err error) {
	if ob.broken.Swap(true) {
		return
	}
	// The cached bytes may be what is damaged; the next query then reads the object itself.
	for _, b := range ob.x.Plan(ob.series, -1<<63, 1<<63-1, -1) {
		ob.q.r.blocks.Remove(blockKey{ob.key, b.Offset, b.Length})
	}
	ob.q.mu.Lock()
	defer ob.q.mu.Unlock()
	ob.q.problem(Problem{Hour: ob.hour, Key: ob.key, Err: err})
}
