package live

import (
	"fmt"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
)

// Segments of closed windows are packed when memory gets scarce: their floats are encoded as they are in published
// chunks, at about a tenth of the size. Reading them then costs time, as does packing, so a store that has room keeps
// them as they are. Histograms stay.

const (
	// packSeries is how many series a block has. A reader of one of them reads what they share.
	packSeries = 16
	// packRows is how many rows a segment has at most that is packed: more do not fit into a block. Only windows of
	// more than a thousand rows a second have so many.
	packRows = 1 << 16
	// packAhead is how many values are packed, at most, for each that is inserted, and one segment more.
	packAhead = 4
)

// packed is the values of a segment: blocks of packSeries series.
type packed struct {
	bytes []byte
	ends  []uint32 // of the blocks in bytes
}

// size estimates their heap bytes.
func (p *packed) size() int64 { return int64(cap(p.bytes)) + 4*int64(cap(p.ends)) + packedOverhead }

// packedOverhead estimates the memory of packed values besides their bytes.
const packedOverhead = 64

// packer packs under the store's lock.
type packer struct {
	enc    chunk.FloatsEncoder
	buffer []byte
}

// scarce reports whether segments are to be packed.
func (s *Store) scarce() bool { return s.bytes > s.cfg.PackAt }

// pack packs segments of closed windows of a group, the oldest first, while memory is scarce, after so many values were
// inserted. What belongs to agents that send no more stays as it is: it expires soon.
func (s *Store) pack(g *shapeGroup, inserted int) {
	if !s.scarce() {
		return
	}
	// A map, as there may be very many.
	open, cloned := make(map[int64]bool, len(g.open)), false
	for _, o := range g.open {
		open[o.number] = true
	}
	for at, left := 0, inserted*packAhead; at < len(g.segments) && left > 0 && s.scarce(); at++ {
		seg := g.segments[at]
		if seg.values == nil || seg.dense || len(seg.ms) > packRows || open[windowOf(seg.minT(), g.width)] {
			continue
		}
		left -= len(seg.values)
		s.packed += uint64(len(seg.values))
		m := *seg
		if p := s.packer.encode(seg); p.size() < 8*int64(len(seg.values)) {
			m.values, m.packed = nil, p
		} else {
			m.dense = true
		}
		s.recharge(seg, -1)
		s.recharge(&m, 1)
		// Readers may hold the old slice, so it is replaced and not changed.
		if !cloned {
			g.segments, cloned = slices.Clone(g.segments), true
		}
		g.segments[at] = &m
	}
}

// hasPacked notes that a packed segment came, or went.
func (s *Store) hasPacked(seg *segment, sign int64) {
	if seg.packed != nil {
		s.held += sign * seg.packed.size()
	}
}

func (k *packer) encode(seg *segment) *packed {
	p := &packed{}
	k.buffer = k.buffer[:0]
	rows := len(seg.ms)
	for v := seg.values; len(v) > 0; {
		n := min(len(v), packSeries*rows)
		k.buffer = k.enc.Append(k.buffer, v[:n], rows)
		p.ends = append(p.ends, uint32(len(k.buffer)))
		v = v[n:]
	}
	p.ends = slices.Clip(p.ends)
	p.bytes = append(make([]byte, 0, len(k.buffer)), k.buffer...)
	return p
}

// unpacker reads packed values. It reuses its memory.
type unpacker struct {
	dec   chunk.FloatsDecoder
	of    *packed // the values and the number of the block that is open
	block int
}

// unpackers are shared, because each has tables of some ten KiB, and an engine makes a reader for every series.
var unpackers = sync.Pool{New: func() any { return &unpacker{} }}

// append appends the values of the series at pos.
func (p *packed) append(dst []float64, pos uint32) []float64 {
	u := unpackers.Get().(*unpacker)
	if n := int(pos / packSeries); u.of != p || u.block != n {
		from := uint32(0)
		if n > 0 {
			from = p.ends[n-1]
		}
		u.of = nil
		must(u.dec.Open(p.bytes[from:p.ends[n]]))
		u.of, u.block = p, n
	}
	dst, err := u.dec.Append(dst, int(pos%packSeries))
	must(err)
	unpackers.Put(u)
	return dst
}

// must: what this process has encoded can be decoded, as long as its memory is sound.
func must(err error) {
	if err != nil {
		panic(fmt.Errorf("live: packed values: %w", err))
	}
}

// column of the series at pos; into is used for it if it is packed.
func (s *segment) column(pos uint32, into *[]float64) []float64 {
	if s.packed == nil {
		rows := len(s.ms)
		return s.values[int(pos)*rows : (int(pos)+1)*rows]
	}
	*into = s.packed.append((*into)[:0], pos)
	return *into
}
