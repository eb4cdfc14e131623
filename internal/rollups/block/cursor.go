package block

import (
	"context"
	"fmt"
	"sort"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
)

const nsPerMS = 1_000_000

// Cursor goes through one chunk series by series, in the order of the chunk. It returns only the rows that count:
// those of the agents and hours of its piece. It holds the chunk's index and the bytes of the series that were
// loaded last.
type Cursor struct {
	fetch Fetch
	o     *catalog.Object
	piece catalog.Piece
	index *chunk.Index

	series []int // places of the series that have rows that count, ascending
	at     int   // of series
	ref    chunk.SeriesRef

	from, to int64 // times that count, Unix nanoseconds, both included
	held     map[chunk.Range][]byte
}

// Open reads and verifies the index of o, a chunk of piece p. The cursor begins at its first series.
func (f Fetch) Open(ctx context.Context, p catalog.Piece, o *catalog.Object) (*Cursor, error) {
	x, err := f.Index(ctx, o, chunk.Limits{})
	if err != nil {
		return nil, err
	}
	// An hour is open at its start and closed at its end, in milliseconds of sample time.
	c := &Cursor{fetch: f, o: o, piece: p, index: x, from: (p.From.StartMS() + 1) * nsPerMS, to: (p.To.EndMS()+1)*nsPerMS - 1}
	// The index has the agent and the times of each series, so masked series cost no read of the chunk.
	for i := range x.Len() {
		if r := x.Series(i); p.Holds(r.Agent) && r.MaxT >= c.from && r.MinT <= c.to {
			c.series = append(c.series, i)
		}
	}
	c.enter()
	return c, nil
}

// Piece is the part of the answer that the cursor reads.
func (c *Cursor) Piece() *catalog.Piece { return &c.piece }

// Series returns the places in the index of the series that have rows that count, ascending.
func (c *Cursor) Series() []int { return c.series }

// Ref describes series i of the index.
func (c *Cursor) Ref(i int) chunk.SeriesRef { return c.index.Series(i) }

// Done reports that the cursor is past its last series.
func (c *Cursor) Done() bool { return c.at == len(c.series) }

// Current describes the series that the cursor is at.
func (c *Cursor) Current() *chunk.SeriesRef { return &c.ref }

// At is the place in the index of the series that the cursor is at.
func (c *Cursor) At() int { return c.series[c.at] }

// Next moves to the next series; it is false at the end.
func (c *Cursor) Next() bool {
	c.at++
	return c.enter()
}

func (c *Cursor) enter() bool {
	if c.Done() {
		return false
	}
	c.ref = c.index.Series(c.series[c.at])
	return true
}

// Before orders cursors by the series that they are at, then by time, so that a merge appends rows in order.
func (c *Cursor) Before(o *Cursor) bool {
	if d := c.ref.ID.Compare(&o.ref.ID); d != 0 {
		return d < 0
	}
	return c.from < o.from
}

// Load fetches the bytes of some series into d, in place of what d had. Bytes that the previous call fetched are
// used again: neighbouring series share blocks of the chunk.
func (c *Cursor) Load(ctx context.Context, d *chunk.Decoder, series []int) error {
	blocks := c.index.Plan(series, c.from, c.to, -1) // -1: do not join blocks, Ranges does
	held := make(map[chunk.Range][]byte, len(blocks))
	var missing []chunk.Range
	for _, b := range blocks {
		if raw, ok := c.held[b]; ok {
			held[b] = raw
		} else {
			missing = append(missing, b)
		}
	}
	c.held = held
	if err := c.fetch.Ranges(ctx, c.o, missing, func(r chunk.Range, raw []byte) { held[r] = raw }); err != nil {
		return err
	}
	d.Reset(c.index)
	for r, raw := range held {
		d.Put(r.Offset, raw)
	}
	return nil
}

// Rows of a series: those of Columns from index From up to, not including, To.
type Rows struct {
	*chunk.Columns
	From, To int
}

// Rows decodes the rows that count of a series that was loaded into d.
func (c *Cursor) Rows(d *chunk.Decoder, series int) (Rows, error) {
	cols := &chunk.Columns{} // not reused: the caller keeps the histograms in it
	if _, err := d.Series(series, c.from, c.to, chunk.AllColumns, cols); err != nil {
		return Rows{}, fmt.Errorf("chunk %q: %w", c.o.ChunkKey, err)
	}
	// A block of the chunk can reach over the edges of the piece, so rows outside of its hours are cut off.
	from := sort.Search(len(cols.T), func(i int) bool { return cols.T[i] >= c.from })
	to := from + sort.Search(len(cols.T)-from, func(i int) bool { return cols.T[from+i] > c.to })
	return Rows{cols, from, to}, nil
}
