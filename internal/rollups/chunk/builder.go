package chunk

import (
	"crypto/sha256"
	"slices"
)

// builder writes blocks into a chunk, and their places into an index. Writer and Stream
// differ in the order in which they pass parts to it.
type builder struct {
	opt    Options
	codec  codec
	err    error // why nothing can be written
	chunk  []byte
	block  blockWriter
	values int     // in the block of values that is being written
	part   Columns // the rows that are being added: here, so that they take no memory each time
	times  timeSets
	index  Index
	tables tableWriter
	file   indexFile
}

func (b *builder) init(o Options) {
	b.opt = o.orDefault()
	b.codec = b.opt.codec
	if b.codec == nil {
		// NewWriter and NewStream return no error; Add and Finish return this one.
		b.err = refuse(UnknownEncoding, "no codec for encoding %d", b.opt.Encoding)
		return
	}
	b.block = blockWriter{encoding: b.codec.encoding(), enc: b.codec.newEncoder()}
}

// begin starts a chunk.
func (b *builder) begin() {
	b.chunk = append(b.chunk[:0], chunkMagic...)
	b.times.reset()
	b.block.reset()
	b.values = 0
}

// addPart puts the rows of b.part, which are of a series and have the set of times with that
// number, into the next slot of the block, or of the next block where this one is full.
func (b *builder) addPart(series, times int) {
	c := &b.part
	n := c.values(c.Rows())
	// A part that is larger than a block may be still gets one for itself: the bounds end a block, they
	// refuse nothing.
	if len(b.block.slots) > 0 && (len(b.block.slots) >= b.opt.BlockSeries || b.values+n > b.opt.BlockValues) {
		b.endValues()
	}
	b.values += n
	// The block being written is not in index.blocks yet and the slot not in the block, so the lengths of
	// both lists are their numbers.
	b.tables.addPart(series, part{uint32(len(b.index.blocks)), uint32(len(b.block.slots)), uint32(times)})
	b.block.addValues(c, times)
}

// endValues ends a block of values that has slots.
func (b *builder) endValues() {
	if len(b.block.slots) > 0 {
		b.index.blocks = append(b.index.blocks, b.endBlock(kindValues))
		b.values = 0
	}
}

func (b *builder) endBlock(kind byte) Range {
	from := len(b.chunk)
	b.chunk = b.block.finish(b.chunk, kind)
	b.block.reset()
	return Range{int64(from), int64(len(b.chunk) - from)}
}

// timeBlockRows bounds the rows of a block of times; FirstT and LastT count like T.
const timeBlockRows = 64 << 10

// writeTimes writes the blocks of times, behind all blocks of values.
func (b *builder) writeTimes() {
	rows := 0
	end := func() {
		b.index.timeBlocks = append(b.index.timeBlocks, b.endBlock(kindTimes))
		rows = 0
	}
	for i := range b.times.sets {
		c := &b.times.sets[i]
		n := c.Rows()
		if c.FirstT != nil {
			n *= 3
		}
		if len(b.block.slots) > 0 && (rows+n > timeBlockRows || len(b.block.slots) >= b.opt.BlockSeries) {
			end()
		}
		rows += n
		b.index.times = append(b.index.times, timeInfo{block: uint32(len(b.index.timeBlocks)), slot: uint32(len(b.block.slots)),
			rows: uint32(c.Rows()), minT: c.T[0], maxT: c.T[c.Rows()-1]})
		b.block.addTimes(c)
	}
	// Slots are left over in any case: every chunk has a series, and every series has times.
	end()
}

// finish writes times, footer and index; all blocks of values and the index's tables are there.
func (b *builder) finish(f *Files) {
	b.writeTimes()
	x := &b.index
	f.FooterOffset = int64(len(b.chunk))
	b.chunk = appendFooter(b.chunk, x.blocks, x.timeBlocks)
	// The index names the digest of the chunk, so the chunk must be complete, with its footer, before the
	// index is written.
	f.Chunk, f.ID = b.chunk, sha256.Sum256(b.chunk)
	x.Chunk, x.FooterOffset, x.Size = f.ID, f.FooterOffset, int64(len(b.chunk))
	f.Index = b.file.append(x)
	f.IndexID = sha256.Sum256(f.Index)
}

// timeSets are the distinct times of rows: T, FirstT and LastT. They are in a chunk once,
// however many series share them.
type timeSets struct {
	sets      []Columns
	byHash    map[uint64][]uint32
	byAddress map[timeAddress]int
	values    int // of all sets
}

// timeAddress is where times are in memory: equal addresses are found without a comparison.
type timeAddress struct {
	t, first, last *int64
	rows           int
}

func (s *timeSets) reset() {
	if s.byHash == nil {
		s.byHash, s.byAddress = map[uint64][]uint32{}, map[timeAddress]int{}
	}
	clear(s.byHash)
	clear(s.byAddress)
	clear(s.sets)
	s.sets, s.values = s.sets[:0], 0
}

// share gives the number of the times of c, which stay as they are until the chunk is made.
func (s *timeSets) share(c *Columns) int {
	a := addressOf(c)
	// Series of one agent mostly share the slices themselves; then nothing is hashed or compared.
	i, ok := s.byAddress[a]
	if !ok {
		i = s.find(c, func(c *Columns) Columns { return Columns{T: c.T, FirstT: c.FirstT, LastT: c.LastT} })
		s.byAddress[a] = i
	}
	return i
}

// copy gives the number of the times of c, whose memory may be used again.
func (s *timeSets) copy(c *Columns) int {
	return s.find(c, func(c *Columns) Columns {
		return Columns{T: slices.Clone(c.T), FirstT: slices.Clone(c.FirstT), LastT: slices.Clone(c.LastT)}
	})
}

func (s *timeSets) find(c *Columns, keep func(*Columns) Columns) int {
	h := hashTimes(c)
	for _, k := range s.byHash[h] {
		// The hash only finds candidates; different times may have the same one.
		if o := &s.sets[k]; sameTimes(o.T, c.T) && sameTimes(o.FirstT, c.FirstT) && sameTimes(o.LastT, c.LastT) {
			return int(k)
		}
	}
	s.sets = append(s.sets, keep(c))
	s.byHash[h] = append(s.byHash[h], uint32(len(s.sets)-1))
	s.values += len(c.T) + len(c.FirstT) + len(c.LastT)
	return len(s.sets) - 1
}

func addressOf(c *Columns) timeAddress {
	a := timeAddress{t: &c.T[0], rows: len(c.T)}
	if c.FirstT != nil {
		a.first = &c.FirstT[0]
	}
	if c.LastT != nil {
		a.last = &c.LastT[0]
	}
	return a
}

func sameTimes(a, b []int64) bool {
	if len(a) != len(b) || (a == nil) != (b == nil) {
		return false
	}
	return len(a) > 0 && &a[0] == &b[0] || slices.Equal(a, b)
}

func hashTimes(c *Columns) uint64 {
	h := uint64(len(c.T))
	for _, v := range [...][]int64{c.T, c.FirstT, c.LastT} {
		h = h*31 + uint64(len(v))
		for _, x := range v {
			h = (h ^ uint64(x)) * 0x9e3779b97f4a7c15
			h ^= h >> 32
		}
	}
	return h
}
