package chunk

import (
	"encoding/binary"

	"github.com/klauspost/compress/zstd"
)

// indexMagic starts an index: 0x89 "LMI", version 1, compression zstd, zeros.
var indexMagic = []byte{0x89, 'L', 'M', 'I', 1, 1, 0, 0}

// indexHeader is the magic and the decoded length.
const indexHeader = 12

// fileWriter writes an index. It reuses its memory.
type fileWriter struct {
	payload, out []byte
	z            *zstd.Encoder
}

func (w *fileWriter) append(x *Index) []byte {
	w.payload = x.append(w.payload[:0])
	return w.wrap(w.payload)
}

// wrap compresses a payload and puts the header before it.
func (w *fileWriter) wrap(payload []byte) []byte {
	if w.z == nil {
		var err error
		w.z, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true), zstd.WithLowerEncoderMem(true))
		if err != nil {
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
