package chunk

import (
	"cmp"
	"slices"
)

// Decoder reads series of a chunk from ranges of its bytes. It is for one goroutine.
type Decoder struct {
	x     *Index
	lim   Limits
	known codecs
	parts []fetched
	// Parsed blocks of values and times, by number; the latest ones.
	values, times map[uint32]*block
	spare         []*block
	old           []uint32 // blocks of values, oldest first
	part          Columns
	// Times that were decoded, by set; bounded by maxTimes values.
	sets   map[uint32]*Columns
	cached int
}

type fetched struct {
	at int64
	b  []byte
}

// maxParsed bounds the parsed blocks of values that a decoder keeps.
const maxParsed = 8

// NewDecoder returns a decoder of the chunk of x.
func NewDecoder(x *Index, lim Limits) *Decoder {
	return &Decoder{x: x, lim: lim.orDefault(), known: codecOf, values: map[uint32]*block{}, times: map[uint32]*block{}, sets: map[uint32]*Columns{}}
}

// Put hands in bytes of the chunk from offset on; they must not change until Reset.
func (d *Decoder) Put(offset int64, b []byte) {
	i, _ := slices.BinarySearchFunc(d.parts, offset, func(f fetched, at int64) int { return cmp.Compare(f.at, at) })
	d.parts = slices.Insert(d.parts, i, fetched{offset, b})
}

// Reset forgets all bytes, and continues with the chunk of x.
func (d *Decoder) Reset(x *Index) {
	d.x = x
	clear(d.sets)
	d.cached = 0
	clear(d.parts)
	d.parts, d.old = d.parts[:0], d.old[:0]
	for _, m := range [...]map[uint32]*block{d.values, d.times} {
		for k, b := range m {
			d.spare = append(d.spare, b)
			delete(m, k)
		}
	}
}

// get returns the bytes of a range.
func (d *Decoder) get(r Range) ([]byte, error) {
	i, ok := slices.BinarySearchFunc(d.parts, r.Offset, func(f fetched, at int64) int { return cmp.Compare(f.at, at) })
	if !ok {
		// i is where the part would be inserted; the one before it begins below the range.
		i--
	}
	// Parts may overlap: one that begins earlier may be the one that reaches far enough.
	for ; i >= 0 && i < len(d.parts); i-- {
		if f := d.parts[i]; f.at <= r.Offset && r.End() <= f.at+int64(len(f.b)) {
			return f.b[r.Offset-f.at : r.End()-f.at], nil
		}
	}
	return nil, refuse(MissingRange, "bytes %d to %d of the chunk", r.Offset, r.End())
}

func (d *Decoder) open(m map[uint32]*block, ranges []Range, i uint32, kind byte) (*block, error) {
	if b := m[i]; b != nil {
		return b, nil
	}
	raw, err := d.get(ranges[i])
	if err != nil {
		return nil, err
	}
	// Blocks of values are read one after the other, and the oldest makes room. Those of times are few and
	// serve all series, so they stay.
	if kind == kindValues {
		if len(d.old) == maxParsed {
			d.spare = append(d.spare, m[d.old[0]])
			delete(m, d.old[0])
			d.old = append(d.old[:0], d.old[1:]...)
		}
	}
	b := new(block)
	if n := len(d.spare); n > 0 {
		b, d.spare = d.spare[n-1], d.spare[:n-1]
	}
	if err := b.parse(raw, d.known, &d.lim); err != nil {
		d.spare = append(d.spare, b)
		return nil, err
	}
	if b.kind != kind {
		d.spare = append(d.spare, b)
		return nil, refuse(BadBlock, "block of kind %d, want %d", b.kind, kind)
	}
	// Only a block that passed every check is remembered; a bad one fails at each read.
	m[i] = b
	if kind == kindValues {
		d.old = append(d.old, i)
	}
	return b, nil
}

// Series fills into with the rows of series i whose blocks have times within mint and maxt;
// rows outside may be among them. want says which columns; T is always there. The memory
// of into is used again. It reports the number of rows, which may be 0. Errors are *Error.
func (d *Decoder) Series(i int, mint, maxt int64, want Mask, into *Columns) (int, error) {
	rows := 0
	for _, p := range d.x.partsOf(i) {
		t := &d.x.times[p.times]
		if t.minT > maxt || t.maxT < mint {
			continue
		}
		// The index gives the number of rows before a block is decoded and memory is taken.
		if rows+int(t.rows) > d.lim.SeriesRows {
			return 0, refuse(TooLarge, "series %d has more than %d rows", i, d.lim.SeriesRows)
		}
		// The first part is decoded in place, as most series have only one; further ones are copied behind
		// it.
		dst := into
		if rows > 0 {
			dst = &d.part
		}
		if err := d.read(p, t, want, dst); err != nil {
			return 0, err
		}
		if rows > 0 {
			if err := into.append(dst); err != nil {
				return 0, err
			}
		}
		rows = len(into.T)
	}
	// The columns of an earlier series must not be taken for those of this one. T keeps its memory.
	if rows == 0 {
		*into = Columns{T: into.T[:0]}
	}
	return rows, nil
}

func (d *Decoder) read(p part, t *timeInfo, want Mask, into *Columns) error {
	tb, err := d.open(d.times, d.x.timeBlocks, t.block, kindTimes)
	if err != nil {
		return err
	}
	// Chunk and index have a checksum each, so both may be sound and not belong together.
	if int(t.slot) >= len(tb.slots) || tb.slots[t.slot].rows != int(t.rows) {
		return refuse(BadBlock, "no times of %d rows in slot %d", t.rows, t.slot)
	}
	set := d.sets[p.times]
	if set == nil {
		// All are dropped at once: series share few sets of times, so this is rare, and tracking their use
		// would cost more.
		if d.cached > maxTimes {
			clear(d.sets)
			d.cached = 0
		}
		set = &Columns{}
		if err := tb.readTimes(int(t.slot), set); err != nil {
			return err
		}
		d.sets[p.times] = set
		d.cached += len(set.T) + len(set.FirstT) + len(set.LastT)
	}
	// Copied, since the set is shared by other series and into belongs to the caller.
	into.T = append(into.T[:0], set.T...)
	into.FirstT, into.LastT = wanted(into.FirstT, set.FirstT, want&ColFirstT), wanted(into.LastT, set.LastT, want&ColLastT)
	b, err := d.open(d.values, d.x.blocks, p.block, kindValues)
	if err != nil {
		return err
	}
	if int(p.slot) >= len(b.slots) || b.slots[p.slot].rows != int(t.rows) {
		return refuse(BadBlock, "no series of %d rows in slot %d", t.rows, p.slot)
	}
	return b.readValues(int(p.slot), want, into)
}

// maxTimes bounds the times that a decoder keeps.
const maxTimes = 1 << 20

func wanted(dst, src []int64, want Mask) []int64 {
	if want == 0 || src == nil {
		return nil
	}
	return append(dst[:0], src...)
}
