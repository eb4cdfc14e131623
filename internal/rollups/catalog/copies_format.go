package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/klauspost/compress/zstd"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// CopiesKind is the kind of objects of copies. They are no JSON, so it has no schema: the version stands in the
// magic. docs/format/copies.md has the layout.
var CopiesKind = record.Kind{Title: "copies of block records", MaxBytes: maxCopiesBytes, Exact: true}

var copiesMagic = [6]byte{0x89, 'L', 'M', 'B', 'C', 1}

const (
	// copiesHeader: magic, two zero bytes, length of the payload (uint32), four zero bytes, SHA-256 of all else.
	copiesHeader = 48
	// maxCopiesBytes bounds an object as stored, and what it decompresses to.
	maxCopiesBytes = 32 << 20
	// maxCopies bounds the copies of an object.
	maxCopies = 200_000
)

var copiesEncoder = sync.OnceValue(func() *zstd.Encoder {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic("catalog: zstd encoder options: " + err.Error()) // the options are constants
	}
	return z
})

var copiesDecoders = sync.Pool{New: func() any {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxCopiesBytes))
	if err != nil {
		panic("catalog: zstd decoder options: " + err.Error())
	}
	return z
}}

// Kinds of copies.
const (
	copyBlock = iota
	copyCompacted
	copyAborted
	copyRemoved
	copyUnrolled
)

// ErrCopiesTooLarge means that the copies of a day do not fit into an object.
var ErrCopiesTooLarge = errors.New("the copies are too large for an object")

// Marshal writes the object of copies, which are in order. Equal copies have equal bytes.
func (c *Copies) Marshal() ([]byte, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("copies: %w", err)
	}
	if len(c.Records) > maxCopies {
		return nil, ErrCopiesTooLarge
	}
	w := copyWriter{day: c.Day, boots: map[identity.Boot]uint64{}, inputs: map[identity.Digest]uint64{}}
	w.text(c.AuthorityID)
	w.signed(int64(c.Day))
	w.uint(uint64(len(c.Records)))
	for i := range c.Records {
		if err := w.copy(&c.Records[i]); err != nil {
			return nil, fmt.Errorf("copies: %w", err)
		}
		if len(w.b) > maxCopiesBytes {
			return nil, ErrCopiesTooLarge
		}
	}
	out := make([]byte, copiesHeader, copiesHeader+len(w.b)/2)
	copy(out, copiesMagic[:])
	binary.LittleEndian.PutUint32(out[8:], uint32(len(w.b)))
	out = copiesEncoder().EncodeAll(w.b, out)
	sum := copiesSum(out)
	copy(out[16:], sum[:])
	if len(out) > maxCopiesBytes {
		return nil, ErrCopiesTooLarge
	}
	return out, nil
}

// copiesSum is over everything but itself.
func copiesSum(b []byte) (sum identity.Digest) {
	h := sha256.New()
	h.Write(b[:16])
	h.Write(b[copiesHeader:])
	h.Sum(sum[:0])
	return sum
}

// ParseCopies reads what Marshal writes; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseCopies(b []byte) (*Copies, error) {
	if len(b) < copiesHeader || !bytes.Equal(b[:5], copiesMagic[:5]) {
		return nil, CopiesKind.Corrupt("", "%d bytes are no copies", len(b))
	}
	if err := CopiesKind.CheckFormat(b[5], copiesMagic[5]); err != nil {
		return nil, err
	}
	if sum := copiesSum(b); b[6]|b[7]|b[12]|b[13]|b[14]|b[15] != 0 || !bytes.Equal(sum[:], b[16:copiesHeader]) {
		return nil, CopiesKind.Corrupt("", "the hash differs")
	}
	n := binary.LittleEndian.Uint32(b[8:])
	var h zstd.Header
	if err := h.Decode(b[copiesHeader:]); err != nil || n > maxCopiesBytes || h.Skippable || !h.HasFCS || h.FrameContentSize != uint64(n) || h.DictionaryID != 0 {
		return nil, CopiesKind.Corrupt("", "zstd: not one frame with a content of %d bytes", n)
	}
	z := copiesDecoders.Get().(*zstd.Decoder)
	defer copiesDecoders.Put(z)
	p, err := z.DecodeAll(b[copiesHeader:], make([]byte, 0, n))
	if err != nil || len(p) != int(n) {
		return nil, CopiesKind.Corrupt("", "zstd: %d bytes of %d: %v", len(p), n, err)
	}
	r := copyReader{b: p}
	c := &Copies{AuthorityID: r.text(MaxNameBytes), Day: layout.Day(r.signed())}
	r.day, r.authority = c.Day, c.AuthorityID
	records := r.count(8)
	if records > maxCopies {
		r.fail("%d copies, at most %d", records, maxCopies)
		records = 0
	}
	c.Records = make([]Copy, records)
	for i := range c.Records {
		r.copy(&c.Records[i])
	}
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes behind the last copy", len(r.b))
	}
	if r.err == nil {
		r.err = c.validate()
	}
	if r.err != nil {
		return nil, CopiesKind.Corrupt("", "%w", r.err)
	}
	return c, nil
}

// copyWriter appends copies. Boots and inputs are numbered in the order in which they come first, where they are
// written; the resolutions of an hour share their inputs.
type copyWriter struct {
	b      []byte
	day    layout.Day
	boots  map[identity.Boot]uint64
	inputs map[identity.Digest]uint64
}

func (w *copyWriter) uint(v uint64)            { w.b = binary.AppendUvarint(w.b, v) }
func (w *copyWriter) signed(v int64)           { w.b = binary.AppendVarint(w.b, v) }
func (w *copyWriter) digest(d identity.Digest) { w.b = append(w.b, d[:]...) }
func (w *copyWriter) hour(h timegrid.Hour)     { w.signed(int64(h - w.day.First())) }
func (w *copyWriter) text(s string)            { w.uint(uint64(len(s))); w.b = append(w.b, s...) }

func (w *copyWriter) name(n Name) {
	w.hour(n.Hour)
	w.uint(uint64(n.Shard))
	w.b = append(w.b, byte(n.Resolution))
	w.uint(uint64(n.Span))
	w.uint(n.Generation)
}

func (w *copyWriter) copy(x *Copy) error {
	w.name(x.Name)
	w.text(x.ETag)
	switch s := x.Record.Block; {
	case x.Record.Aborted != nil:
		w.b = append(w.b, copyAborted)
	case x.Record.Removed != nil:
		w.b = append(w.b, copyRemoved)
		w.uint(x.Record.Removed.SupersededBy)
	case s.Redirect != nil:
		w.b = append(w.b, copyCompacted)
		w.block(s)
		w.name(s.Redirect.Name)
	case s.Unrolled:
		w.b = append(w.b, copyUnrolled)
		w.block(s)
	default:
		w.b = append(w.b, copyBlock)
		w.block(s)
		w.uint(uint64(len(s.Objects)))
		for i := range s.Objects {
			if err := w.object(&s.Name, &s.Objects[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *copyWriter) block(s *Block) {
	w.uint(uint64(s.Shards))
	w.digest(s.PlanSHA256)
	sum := s.Inputs.Digest()
	if n, ok := w.inputs[sum]; ok {
		w.uint(n)
		return
	}
	w.uint(uint64(len(w.inputs)))
	w.inputs[sum] = uint64(len(w.inputs))
	w.uint(uint64(len(s.Inputs.boots)))
	for _, b := range s.Inputs.boots {
		n, ok := w.boots[b.boot()]
		if !ok {
			n = uint64(len(w.boots))
			w.boots[b.boot()] = n
		}
		w.uint(n)
		if !ok {
			w.text(b.Agent)
			w.text(b.Boot)
		}
		w.uint(uint64(len(b.Runs)))
		for _, r := range b.Runs {
			w.uint(r.Start)
			w.uint(r.Records)
			w.uint(r.Batches)
		}
	}
}

// object writes what its keys are made of.
func (w *copyWriter) object(n *Name, o *Object) error {
	c, err := layout.ParseRollupObject(o.ChunkKey)
	if err != nil {
		return err
	}
	x, err := layout.ParseRollupObject(o.IndexKey)
	if err != nil {
		return err
	}
	if o.ChunkKey != layout.RollupChunk(n.Resolution, n.Hour, o.Metric, o.ChunkSHA256, c.Generation) || o.IndexKey != layout.RollupIndex(n.Hour, o.IndexSHA256, x.Generation) {
		return fmt.Errorf("%s has the object %q, which is not named as its are", n.Key(), o.ChunkKey)
	}
	w.text(o.Metric)
	for _, v := range [...]uint64{uint64(c.Generation), o.ChunkBytes, o.FooterOffset, uint64(x.Generation), o.IndexBytes, o.Series, o.Samples} {
		w.uint(v)
	}
	w.digest(o.ChunkSHA256)
	w.digest(o.IndexSHA256)
	w.signed(o.MinTime)
	w.signed(o.MaxTime)
	return nil
}

// copyReader reads what copyWriter writes. After the first error it reads zeros.
type copyReader struct {
	b         []byte
	day       layout.Day
	authority string
	boots     []identity.Boot
	inputs    []Inputs
	err       error
}

func (r *copyReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err, r.b = fmt.Errorf(format, args...), nil
	}
}

func (r *copyReader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail("%d bytes where %d are left", n, len(r.b))
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *copyReader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("no number")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *copyReader) signed() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("no number")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *copyReader) byte() byte {
	if b := r.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *copyReader) digest() (d identity.Digest) {
	copy(d[:], r.bytes(uint64(len(d))))
	return d
}

func (r *copyReader) text(limit int) string {
	n := r.uint()
	if n > uint64(limit) {
		r.fail("a text of %d bytes, at most %d", n, limit)
		return ""
	}
	return string(r.bytes(n))
}

// count reads a number of items of at least size bytes each: one that does not fit takes no memory.
func (r *copyReader) count(size int) int {
	n := r.uint()
	if n > uint64(len(r.b)/size) {
		r.fail("%d items in %d bytes", n, len(r.b))
		return 0
	}
	return int(n)
}

func (r *copyReader) name() Name {
	// The year 9999 bounds hours on both sides, so that sums of them stay numbers.
	const most = 100_000_000
	h, s, res, span, gen := r.signed(), r.uint(), timegrid.Resolution(r.byte()), r.uint(), r.uint()
	if h < -most || h > most || s >= shard.Max || res > timegrid.OneHour || span > MaxSpan || gen == 0 || gen > math.MaxInt64 {
		r.fail("hour %d, shard %d, resolution %d, span %d, generation %d", h, s, res, span, gen)
		return Name{}
	}
	return Name{Hour: r.day.First() + timegrid.Hour(h), Shard: shard.ID(s), Resolution: res, Span: uint16(span), Generation: gen}
}

// maxETag bounds ETags; those of stores have some tens of bytes.
const maxETag = 256

func (r *copyReader) copy(x *Copy) {
	x.Name, x.ETag = r.name(), r.text(maxETag)
	switch kind := r.byte(); kind {
	case copyAborted:
		x.Record.Aborted = &Aborted{AuthorityID: r.authority, Name: x.Name}
	case copyRemoved:
		x.Record.Removed = &Removed{AuthorityID: r.authority, Name: x.Name, SupersededBy: r.uint()}
		if by := x.Record.Removed.SupersededBy; by != 0 && by <= x.Name.Generation {
			r.fail("%s is superseded by generation %d", x.Name.Key(), by)
		}
	case copyBlock, copyCompacted, copyUnrolled:
		s := &Block{AuthorityID: r.authority, Name: x.Name, Unrolled: kind == copyUnrolled}
		r.block(s)
		if s.Unrolled {
			// Nothing follows: it has no objects.
		} else if kind == copyCompacted {
			s.Redirect = &Redirect{Name: r.name()}
		} else if n := r.count(70); n > 0 {
			s.Objects = make([]Object, n)
			for i := range s.Objects {
				r.object(&s.Name, &s.Objects[i])
			}
		}
		x.Record.Block = s
	default:
		r.fail("a copy of the kind %d", kind)
	}
}

func (r *copyReader) block(s *Block) {
	shards := r.uint()
	if shards == 0 || shards > shard.Max {
		r.fail("%d shards", shards)
	}
	s.Shards, s.PlanSHA256 = uint32(shards), r.digest()
	n := r.uint()
	if n < uint64(len(r.inputs)) {
		s.Inputs = r.inputs[n]
		return
	}
	if n > uint64(len(r.inputs)) {
		r.fail("inputs %d after %d", n, len(r.inputs))
		return
	}
	in := Inputs{boots: make([]BootInputs, r.count(5))}
	for i := range in.boots {
		k := r.uint()
		if k > uint64(len(r.boots)) {
			r.fail("boot %d after %d", k, len(r.boots))
			return
		}
		if k == uint64(len(r.boots)) {
			r.boots = append(r.boots, identity.Boot{Agent: r.text(identity.MaxAgentIDBytes), Boot: r.text(identity.MaxBootIDBytes)})
		}
		b := BootInputs{Agent: r.boots[k].Agent, Boot: r.boots[k].Boot, Runs: make([]Run, r.count(3))}
		for j := range b.Runs {
			b.Runs[j] = Run{Start: r.uint(), Records: r.uint(), Batches: r.uint()}
		}
		in.boots[i] = b
	}
	if len(in.boots) == 0 {
		in.boots = nil
	}
	if r.err == nil {
		r.err = in.check() // it also counts the batches
	}
	r.inputs = append(r.inputs, in)
	s.Inputs = in
}

func (r *copyReader) object(n *Name, o *Object) {
	o.Metric = r.text(MaxMetricBytes)
	var v [7]uint64
	for i := range v {
		v[i] = r.uint()
	}
	o.ChunkBytes, o.FooterOffset, o.IndexBytes, o.Series, o.Samples = v[1], v[2], v[4], v[5], v[6]
	o.ChunkSHA256, o.IndexSHA256 = r.digest(), r.digest()
	o.MinTime, o.MaxTime = r.signed(), r.signed()
	if v[0] > math.MaxUint32 || v[3] > math.MaxUint32 || o.FooterOffset >= o.ChunkBytes {
		r.fail("an object of %s: generations %d and %d, footer at %d of %d", n.Key(), v[0], v[3], o.FooterOffset, o.ChunkBytes)
		return
	}
	o.ChunkKey = layout.RollupChunk(n.Resolution, n.Hour, o.Metric, o.ChunkSHA256, uint32(v[0]))
	o.IndexKey = layout.RollupIndex(n.Hour, o.IndexSHA256, uint32(v[3]))
}
