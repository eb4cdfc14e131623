package compact

import (
	"context"
	"fmt"
	"sort"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/chunk"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// Reading bounds.
const (
	rangeGap       = 512 << 10
	maxRange       = 8 << 20
	requestTimeout = 30 * time.Second
)

// Getter is the request that a merge makes.
type Getter interface {
	Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error)
}

// lane is one chunk that a merge reads, series by series in their order, and of these
// the rows of some hours.
type lane struct {
	store    Getter
	o        *catalog.Object
	p        catalog.Piece
	x        *chunk.Index
	series   []int // whose agents count, ascending
	at       int   // of series
	ref      chunk.SeriesRef
	from, to int64 // of T that counts, Unix nanoseconds
	held     map[chunk.Range][]byte
}

// openLane reads and checks the index of o.
func openLane(ctx context.Context, g Getter, p catalog.Piece, o *catalog.Object) (*lane, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	b, _, err := g.Get(ctx, o.IndexKey, objstore.GetOptions{Limit: int64(o.IndexBytes)})
	if err != nil {
		return nil, err
	}
	if sum := identity.Sum(b); sum != o.IndexSHA256 {
		return nil, fmt.Errorf("index %q: %w: it hashes to %s", o.IndexKey, chunk.ChecksumMismatch, sum)
	}
	x, err := chunk.ReadIndex(b, chunk.Limits{})
	if err != nil {
		return nil, fmt.Errorf("index %q: %w", o.IndexKey, err)
	}
	if x.Chunk != o.ChunkSHA256 || x.Size != int64(o.ChunkBytes) {
		return nil, fmt.Errorf("index %q: %w: it is of chunk %s", o.IndexKey, chunk.BadIndex, x.Chunk)
	}
	const nsPerMS = 1_000_000
	l := &lane{store: g, o: o, p: p, x: x, from: (p.From.StartMS() + 1) * nsPerMS, to: (p.To.EndMS()+1)*nsPerMS - 1}
	for i := range x.Len() {
		if r := x.Series(i); p.Holds(r.Agent) && r.MaxT >= l.from && r.MinT <= l.to {
			l.series = append(l.series, i)
		}
	}
	l.enter()
	return l, nil
}

// enter looks at the series that the lane is at; false at the end.
func (l *lane) enter() bool {
	if l.at == len(l.series) {
		return false
	}
	l.ref = l.x.Series(l.series[l.at])
	return true
}

// load fetches the blocks of the series that are not held, and forgets those that are not needed.
func (l *lane) load(ctx context.Context, series []int) error {
	blocks := l.x.Plan(series, l.from, l.to, -1) // every block for itself
	held := make(map[chunk.Range][]byte, len(blocks))
	var missing []chunk.Range
	for _, b := range blocks {
		if raw, ok := l.held[b]; ok {
			held[b] = raw
		} else {
			missing = append(missing, b)
		}
	}
	l.held = held
	for len(missing) > 0 {
		n := 1
		for n < len(missing) && missing[n].Offset-missing[n-1].End() <= rangeGap && missing[n].End()-missing[0].Offset <= maxRange {
			n++
		}
		if err := l.fetch(ctx, missing[:n]); err != nil {
			return err
		}
		missing = missing[n:]
	}
	return nil
}

func (l *lane) fetch(ctx context.Context, blocks []chunk.Range) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	from := blocks[0].Offset
	length := blocks[len(blocks)-1].End() - from
	raw, _, err := l.store.Get(ctx, l.o.ChunkKey, objstore.GetOptions{Offset: from, Length: length, Limit: length})
	if err != nil {
		return err
	}
	if int64(len(raw)) != length {
		return fmt.Errorf("chunk %q: %w: %d bytes at %d, want %d", l.o.ChunkKey, chunk.Truncated, len(raw), from, length)
	}
	for _, b := range blocks {
		l.held[b] = raw[b.Offset-from : b.End()-from]
	}
	return nil
}

// read gives the rows of a series that count; nil when there are none.
func (l *lane) read(d *chunk.Decoder, series int) (*chunk.Columns, int, int, error) {
	c := &chunk.Columns{} // of its own: histograms are kept
	if _, err := d.Series(series, l.from, l.to, chunk.AllColumns, c); err != nil {
		return nil, 0, 0, fmt.Errorf("chunk %q: %w", l.o.ChunkKey, err)
	}
	from := sort.Search(len(c.T), func(i int) bool { return c.T[i] >= l.from })
	to := from + sort.Search(len(c.T)-from, func(i int) bool { return c.T[from+i] > l.to })
	return c, from, to, nil
}

// count adds the rows to the counts of the sources that they are of.
func count(counts map[catalog.Name]uint64, of catalog.Name, t []int64) {
	for i := 0; i < len(t); {
		h := window.HourOfNS(t[i])
		end := (h.EndMS() + 1) * 1_000_000
		n := sort.Search(len(t)-i, func(k int) bool { return t[i+k] >= end })
		of.Hour = h
		counts[of] += uint64(n)
		i += n
	}
}
