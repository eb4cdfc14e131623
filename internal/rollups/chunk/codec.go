package chunk

// Encoding says which codec wrote the columns of a block. It is the second byte of every
// block, so that one chunk may have blocks of several codecs: a new codec needs no new
// version of the format, and old blocks stay as they are. See prometheus' tsdb/chunkenc,
// whose seam this one follows.
type Encoding byte

// Encodings. A number is never used again for another codec.
const (
	// DefaultEncoding stands for Integers in Options; no block carries it.
	DefaultEncoding Encoding = 0
	// Integers makes integers of all values and writes what is left of them after a
	// prediction in Huffman codes that the columns of a block share. See ADR 0005.
	Integers Encoding = 1
)

// codec is one way to encode the columns of blocks. The same for all codecs are the blocks'
// frame and directory (block.go), header and footer (file.go), the
// index, and how series are cut into slots of blocks (writer.go).
//
// Equal slots give equal bytes. TestCodecs checks every codec against these comments.
type codec interface {
	encoding() Encoding
	newEncoder() columnEncoder
	newDecoder() columnDecoder
}

// columnEncoder encodes the payload of one block after the other. It reuses its memory.
type columnEncoder interface {
	// reset begins a block.
	reset()
	// addValues appends a slot with the columns of c, but for T, FirstT and LastT. Slots
	// of a block with the same number of times have those three in common. What c refers
	// to does not change before the next reset.
	addValues(c *Columns, times int)
	// addTimes appends a slot with T and, where c has them, FirstT and LastT. A block has
	// slots of either kind only.
	addTimes(c *Columns)
	// appendPayload appends what columnDecoder.open reads: at least one byte for each column.
	appendPayload(dst []byte) []byte
}

// columnDecoder reads slots of one block after the other. It reuses its memory. Payloads are
// bytes that somebody wrote: their checksum says nothing about what they mean. Errors are
// *Error, and memory is bounded by the limits and by what the directory says.
type columnDecoder interface {
	// open begins a block. It checks what all slots share. The arguments are kept until the
	// next open.
	open(payload []byte, slots []slotHead, lim *Limits) error
	// readValues fills into with the columns of slot i that want asks for and the slot has.
	// Others become nil, but for T, FirstT and LastT, which are not touched. The memory of
	// into is used again.
	readValues(i int, want Mask, into *Columns) error
	// readTimes fills T and those of FirstT and LastT that the slot has. That T ascends is
	// checked by the caller.
	readTimes(i int, into *Columns) error
}

// codecOf gives the codec of an encoding, nil when this program has none.
func codecOf(e Encoding) codec {
	switch e {
	case DefaultEncoding:
		return nil
	case Integers:
		return integerCodec{}
	}
	return nil
}

// codecs finds a codec; tests put other tables in the place of codecOf.
type codecs func(Encoding) codec
