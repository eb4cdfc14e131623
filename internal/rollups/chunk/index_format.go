package chunk

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/klauspost/compress/zstd"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// indexMagic starts an index: 0x89 "LMI", version 1, compression zstd, zeros.
var indexMagic = []byte{0x89, 'L', 'M', 'I', 1, 1, 0, 0}

// indexHeader is the magic and the decoded length.
const indexHeader = 12

// indexFile writes indexes. It reuses its memory.
type indexFile struct {
	payload, out []byte
	z            *zstd.Encoder
}

func (w *indexFile) append(x *Index) []byte {
	w.payload = x.append(w.payload[:0])
	return w.wrap(w.payload)
}

// wrap compresses a payload and puts the header before it.
func (w *indexFile) wrap(payload []byte) []byte {
	if w.z == nil {
		var err error
		// The file has a checksum of its own, so zstd's is left out. A single segment names its size, so
		// that the reader allocates once.
		w.z, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true), zstd.WithLowerEncoderMem(true))
		if err != nil {
			// The options are constants: an error would be a defect of this program, not of the data.
			panic("chunk: zstd encoder options: " + err.Error())
		}
	}
	w.out = append(w.out[:0], indexMagic...)
	w.out = binary.LittleEndian.AppendUint32(w.out, uint32(len(payload)))
	w.out = w.z.EncodeAll(payload, w.out)
	w.out = seal(w.out, 0)
	return w.out
}

// append writes the payload of the index.
func (x *Index) append(b []byte) []byte {
	u := func(v int) { b = binary.AppendUvarint(b, uint64(v)) }
	b = append(b, x.Chunk[:]...)
	u(int(x.Size))
	u(int(x.FooterOffset))

	u(len(x.symbols))
	last := ""
	// Lengths and texts are separate lists: numbers of one kind next to each other compress better than
	// mixed with text.
	for _, s := range x.symbols[1:] {
		u(sharedPrefix(last, s))
		last = s
	}
	last = ""
	for _, s := range x.symbols[1:] {
		u(len(s) - sharedPrefix(last, s))
		last = s
	}
	last = ""
	for _, s := range x.symbols[1:] {
		b = append(b, s[sharedPrefix(last, s):]...)
		last = s
	}

	u(len(x.sets.ends))
	var before []labelRef
	for i := range x.sets.ends {
		set := x.sets.of(uint32(i))
		same := 0
		for same < min(len(set), len(before)) && set[same] == before[same] {
			same++
		}
		u(same)
		u(len(set) - same)
		for _, l := range set[same:] {
			u(int(l.name))
			u(int(l.value))
		}
		before = set
	}

	u(len(x.series))
	// Each field of all series is a list of its own, for the same reason. Series are sorted by name, so
	// the differences are never negative.
	name := uint32(0)
	for i := range x.series {
		u(int(x.series[i].name - name))
		name = x.series[i].name
	}
	for i := range x.series {
		u(int(x.series[i].set))
	}
	for i := range x.series {
		u(int(x.series[i].agent))
	}
	for i := range x.series {
		b = append(b, byte(x.series[i].typ))
	}
	for i := range x.series {
		u(int(x.series[i].unit))
	}
	for i := range x.series {
		u(len(x.partsOf(i)) - 1)
	}

	for _, rs := range [...][]Range{x.blocks, x.timeBlocks} {
		u(len(rs))
		for _, r := range rs {
			u(int(r.Length))
		}
	}
	u(len(x.times))
	block, minT := uint32(0), int64(0)
	for i := range x.times {
		t := &x.times[i]
		u(int(t.block - block))
		u(int(t.rows))
		b = appendZigzag(b, t.minT-minT)
		// Subtracted as unsigned numbers, since the distance of two int64 may not fit in one.
		b = binary.AppendUvarint(b, uint64(t.maxT)-uint64(t.minT))
		block, minT = t.block, t.minT
	}
	p := part{}
	for _, q := range x.parts {
		b = appendZigzag(b, int64(q.block)-int64(p.block))
		p.block = q.block
	}
	for _, q := range x.parts {
		b = appendZigzag(b, int64(q.times)-int64(p.times))
		p.times = q.times
	}
	return b
}

func sharedPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Memory of an index's tables, for Limits.IndexMemory: bytes each.
const (
	symbolCost = 16
	refCost    = 8
	seriesCost = 24
	partCost   = 12
	rangeCost  = 16
	timesCost  = 32
)

// ReadIndex reads an index. Errors are *Error.
func ReadIndex(b []byte, lim Limits) (*Index, error) {
	lim = lim.orDefault()
	payload, err := openIndex(b, &lim)
	if err != nil {
		return nil, err
	}
	r := indexReader{cursor: cursor{b: payload, reason: BadIndex}, lim: &lim, budget: lim.IndexMemory, x: &Index{}}
	r.read()
	if err := r.end("the index"); err != nil {
		return nil, err
	}
	return r.x, nil
}

// indexDecoder decodes as many indexes at once as there are processors; more wait. How much it may decode is the capacity of what
// it decodes into. It is made with the program: a channel in it that a test made inside a synctest bubble would be refused to others.
var indexDecoder = func() *zstd.Decoder {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(math.MaxUint32))
	if err != nil {
		panic("chunk: zstd decoder options: " + err.Error()) // the options are constants
	}
	return z
}()

// openIndex checks and decompresses the payload.
func openIndex(b []byte, lim *Limits) ([]byte, error) {
	switch {
	case len(b) < indexHeader+checksumBytes:
		return nil, refuse(Truncated, "index of %d bytes", len(b))
	case string(b[:4]) != string(indexMagic[:4]):
		return nil, refuse(BadMagic, "not an index")
	case string(b[4:8]) != string(indexMagic[4:]):
		return nil, refuse(UnsupportedVersion, "index version %d, compression %d", b[4], b[5])
	}
	b, err := unseal(b, lim.IndexBytes)
	if err != nil {
		return nil, err
	}
	// The decompressed length is stored in the header, so that it can be refused before memory is taken.
	n := uint64(binary.LittleEndian.Uint32(b[8:]))
	src := b[indexHeader:]
	if n > uint64(lim.IndexBytes) {
		return nil, refuse(TooLarge, "index of %d bytes decompressed, at most %d", n, lim.IndexBytes)
	}
	// The frame must agree with the header: one that declares another size or window makes the decoder
	// allocate for it.
	var h zstd.Header
	if err := h.Decode(src); err != nil || h.Skippable || !h.HasFCS || h.FrameContentSize != n || h.DictionaryID != 0 || !h.SingleSegment {
		return nil, refuse(BadCompression, "zstd: not one segment with a content size of %d: %v", n, err)
	}
	out, err := indexDecoder.DecodeAll(src, make([]byte, 0, n))
	if err != nil || uint64(len(out)) != n {
		return nil, refuse(BadCompression, "zstd: %d of %d bytes: %v", len(out), n, err)
	}
	return out, nil
}

type indexReader struct {
	cursor
	lim    *Limits
	budget int
	x      *Index
}

// spend takes n things of cost bytes from the budget.
func (r *indexReader) spend(n, cost int) {
	// Divided, since n times cost could overflow.
	if r.err == nil && n > r.budget/cost {
		r.err = refuse(TooLarge, "the index needs more than %d bytes of memory", r.lim.IndexMemory)
		r.pos = len(r.b)
	}
	if r.err == nil {
		r.budget -= n * cost
	}
}

func (r *indexReader) read() {
	x := r.x
	copy(x.Chunk[:], r.bytes(len(x.Chunk)))
	x.Size, x.FooterOffset = int64(r.uvarint()), int64(r.uvarint())
	r.symbols()
	r.sets()
	r.series()
	at := int64(len(chunkMagic))
	x.blocks, at = r.blocks(at, "blocks of values")
	x.timeBlocks, at = r.blocks(at, "blocks of times")
	if r.err == nil && (at != x.FooterOffset || x.Size < at) {
		r.fail("blocks end at %d, the footer stands at %d, the chunk ends at %d", at, x.FooterOffset, x.Size)
	}
	r.times()
	r.parts()
}

func (r *indexReader) blocks(at int64, what string) ([]Range, int64) {
	if r.err != nil {
		return nil, at
	}
	pos := r.pos
	r.spend(r.count(what, 1, r.left()), rangeCost)
	if r.err != nil {
		return nil, at
	}
	// The count was read for the budget only, before memory is taken; ranges reads it again.
	r.pos = pos
	return r.ranges(at, what)
}

func (r *indexReader) symbols() {
	n := r.count("symbols", 2, r.left()) // two lengths a symbol, but for the first
	r.spend(n, symbolCost+16)
	if r.err != nil {
		return
	}
	if n == 0 {
		r.fail("no symbols")
		return
	}
	shared := make([]uint32, n)
	rest := make([]uint32, n)
	// All lengths come before the texts, so their sum is counted against the budget before a text is
	// built.
	total := 0
	for i := 1; i < n; i++ {
		shared[i] = uint32(r.below("shared bytes", r.lim.StringBytes))
	}
	for i := 1; i < n; i++ {
		rest[i] = uint32(r.below("further bytes", r.lim.StringBytes+1))
		if l := int(shared[i] + rest[i]); l > r.lim.StringBytes || shared[i] > shared[i-1]+rest[i-1] {
			r.fail("symbol %d has %d + %d bytes", i, shared[i], rest[i])
			return
		} else {
			total += l
		}
	}
	r.spend(total, 2) // the bytes and the string
	if r.err != nil {
		return
	}
	text := make([]byte, 0, total)
	ends := make([]int, n)
	last := 0 // start of the symbol before
	for i := 1; i < n; i++ {
		start := len(text)
		text = append(text, text[last:last+int(shared[i])]...)
		text = append(text, r.bytes(int(rest[i]))...)
		if r.err != nil {
			return
		}
		ends[i] = len(text)
		last = start
	}
	// One string holds all symbols; one for each would be an allocation for each.
	all := string(text)
	r.x.symbols = make([]string, n)
	for i := 1; i < n; i++ {
		r.x.symbols[i] = all[ends[i-1]:ends[i]]
		// Readers search symbols in halves and compare their numbers in the place of their texts.
		if r.x.symbols[i] <= r.x.symbols[i-1] {
			r.fail("symbol %d is not after the one before", i)
			return
		}
	}
}

func (r *indexReader) sets() {
	x := r.x
	n := r.count("label sets", 2, r.lim.Series)
	r.spend(n, 4)
	if r.err != nil {
		return
	}
	x.sets.ends = make([]uint32, 0, n)
	for i := range n {
		var before []labelRef
		if i > 0 {
			before = x.sets.of(uint32(i - 1))
		}
		same := r.below("shared labels", len(before)+1)
		more := r.count("labels", 2, r.lim.SeriesLabels-same)
		r.spend(same+more, 2*refCost) // slices grow by doubling
		if r.err != nil {
			return
		}
		x.sets.refs = append(x.sets.refs, before[:same]...)
		for range more {
			x.sets.refs = append(x.sets.refs, labelRef{uint32(r.below("symbol", len(x.symbols))), uint32(r.below("symbol", len(x.symbols)))})
		}
		if len(x.sets.refs) > math.MaxUint32 {
			r.fail("too many labels")
		}
		x.sets.ends = append(x.sets.ends, uint32(len(x.sets.refs)))
		if r.err != nil {
			return
		}
		set := x.sets.of(uint32(i))
		// Symbol 0 is the empty string. Symbols ascend, so comparing the numbers of names compares the
		// names.
		for k, l := range set {
			if l.name == 0 || l.value == 0 || (k > 0 && l.name <= set[k-1].name) || x.symbols[l.name] == nameLabel {
				r.fail("set %d: label %d is empty, a name or not sorted", i, k)
				return
			}
		}
		// Sets must be distinct and ordered, as series are compared by the number of their set.
		if i > 0 && compareRefs(x.sets.of(uint32(i-1)), set) >= 0 {
			r.fail("set %d is not after the one before", i)
			return
		}
	}
}

func (r *indexReader) series() {
	x := r.x
	n := r.count("series", 6, r.lim.Series)
	r.spend(n, seriesCost)
	if r.err != nil {
		return
	}
	x.series = make([]indexSeries, n)
	name := uint64(0)
	for i := range x.series {
		// min keeps the sum from wrapping around to a number that looks valid.
		if name += min(r.uvarint(), math.MaxUint32); name == 0 || name >= uint64(len(x.symbols)) {
			r.fail("series %d: symbol %d of %d", i, name, len(x.symbols))
			return
		}
		x.series[i].name = uint32(name)
	}
	for i := range x.series {
		x.series[i].set = uint32(r.below("set", len(x.sets.ends)))
	}
	for i := range x.series {
		x.series[i].agent = uint32(r.below("symbol", len(x.symbols)))
	}
	for i := range x.series {
		x.series[i].typ = series.Type(r.byte())
	}
	for i := range x.series {
		x.series[i].unit = uint32(r.below("symbol", len(x.symbols)))
	}
	parts := 0
	for i := range x.series {
		x.series[i].parts = uint32(parts)
		parts += 1 + r.below("parts", r.lim.Series)
		if r.err != nil {
			return
		}
		if parts > math.MaxUint32/2 {
			r.fail("too many parts")
			return
		}
	}
	for i := 1; i < n; i++ {
		// A strict order also excludes that a series is listed twice.
		if !before(&x.series[i-1], &x.series[i]) {
			r.fail("series %d is not after the one before", i)
			return
		}
	}
	// A part takes at least a byte in each of the two lists that follow.
	if parts > r.left()/2 {
		r.fail("%d parts in %d bytes", parts, r.left())
		return
	}
	r.spend(parts, partCost)
	if r.err == nil {
		x.parts = make([]part, parts)
	}
}

func before(a, b *indexSeries) bool {
	return slices.Compare([]uint32{a.name, a.set, a.agent, uint32(a.typ), a.unit}, []uint32{b.name, b.set, b.agent, uint32(b.typ), b.unit}) < 0
}

func (r *indexReader) times() {
	x := r.x
	n := r.count("sets of times", 4, len(x.parts))
	r.spend(n, timesCost)
	if r.err != nil {
		return
	}
	x.times = make([]timeInfo, n)
	block, slot, minT := uint64(0), uint32(0), int64(0)
	for i := range x.times {
		// Sets fill the slots of a block in order, so slots need no bytes: they start at 0 with each
		// block.
		if d := r.uvarint(); d > 0 {
			block += min(d, math.MaxUint32)
			slot = 0
		}
		rows := r.uvarint()
		minT += r.zigzag()
		span := r.uvarint()
		// T ascends strictly in nanoseconds, so n rows span at least n-1.
		if r.err == nil && (block >= uint64(len(x.timeBlocks)) || rows == 0 || rows > uint64(r.lim.Rows) || span > uint64(math.MaxInt64)-uint64(minT) || span < rows-1) {
			r.fail("set %d of times: block %d, %d rows, %d and %d after it", i, block, rows, minT, span)
		}
		if r.err != nil {
			return
		}
		x.times[i] = timeInfo{uint32(block), slot, uint32(rows), minT, int64(uint64(minT) + span)}
		slot++
	}
}

func (r *indexReader) parts() {
	x := r.x
	if r.err != nil {
		return
	}
	slots := make([]uint32, len(x.blocks))
	block, times := int64(0), int64(0)
	for i := range x.parts {
		block += r.zigzag()
		if r.err == nil && uint64(block) >= uint64(len(x.blocks)) {
			r.fail("part %d in block %d of %d", i, block, len(x.blocks))
		}
		if r.err != nil {
			return
		}
		// Parts fill the slots of their block in order, too.
		x.parts[i] = part{block: uint32(block), slot: slots[block]}
		slots[block]++
	}
	for i := range x.parts {
		times += r.zigzag()
		if r.err == nil && uint64(times) >= uint64(len(x.times)) {
			r.fail("part %d has set %d of times of %d", i, times, len(x.times))
		}
		if r.err != nil {
			return
		}
		x.parts[i].times = uint32(times)
	}
	for i := range x.series {
		ps := x.partsOf(i)
		for k := 1; k < len(ps); k++ {
			// A reader appends the parts of a series one after the other, so their times must not overlap.
			if x.times[ps[k].times].minT <= x.times[ps[k-1].times].maxT || ps[k].block <= ps[k-1].block {
				r.fail("series %d: part %d is not after the one before", i, k)
				return
			}
		}
	}
}
