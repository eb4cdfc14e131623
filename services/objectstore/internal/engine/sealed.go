package engine

import (
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// Bodies are sealed where they are made, in Put and in a Blob, and opened in Copy. Everything else moves sealed bytes:
// records and extents have the version of the key and the salt, checksums are of what is stored, and so replay, rebuild,
// reclaiming, verification and repair need no key. A body is sealed under its bucket, its client's key and, in a file, the
// file's id: what does not change for as long as the body is there, through tags, versions, and the completion of an
// upload. See docs/adr/0065-encryption-at-rest.md.

const (
	// chunksPerBlock is how many sealed chunks are in BlockSize bytes of a file.
	chunksPerBlock = BlockSize / seal.Chunk
	sealedPerBlock = chunksPerBlock * seal.PlainChunk
	// maxStoredBytes is the length of the largest body in the log when it is sealed.
	maxStoredBytes = maxInlineBytes + (maxInlineBytes/seal.PlainChunk+1)*seal.Tag
)

// Seal says how stored bytes are encrypted.
type Seal struct {
	Key  seal.Version
	Salt seal.Salt

	name *seal.Name // of a body that this process has made; nil: it was read
}

func (s *Seal) encode(b []byte) []byte {
	b = appendText(b, s.Key.ID)
	b = append(b, s.Key.Check[:]...)
	return append(b, s.Salt[:]...)
}

// decodeSeal reads what encode wrote.
func decodeSeal(v *scanner) *Seal {
	s := &Seal{Key: seal.Version{ID: v.Text()}}
	if !seal.ValidID(s.Key.ID) {
		v.Bad = true
	}
	copy(s.Key.Check[:], v.take(seal.CheckSize))
	copy(s.Salt[:], v.take(seal.SaltSize))
	return s
}

// PlainSize is how many bytes of the body the extent holds.
func (x *Extent) PlainSize() int64 {
	if x.Seal == nil {
		return x.Size
	}
	n, _ := seal.Plain(x.Size) // decodeExtent and Blob make no other sizes
	return n
}

// perBlock is how many bytes of the body BlockSize bytes of the file hold.
func (x *Extent) perBlock() int {
	if x.Seal == nil {
		return BlockSize
	}
	return sealedPerBlock
}

// Sealed reports whether all bytes of the object are encrypted.
func (o *Object) Sealed() bool {
	for _, x := range o.Extents {
		if x.Seal == nil {
			return false
		}
	}
	return len(o.Extents) > 0 || o.Seal != nil
}

// Seals reports whether new bodies are encrypted.
func (e *Engine) Seals() bool { return e.opt.Keys.Current() != nil }

// newSeal makes the key of a new body; nil when bodies are not sealed.
func (e *Engine) newSeal(n seal.Name) (*Seal, *seal.Body, error) {
	k := e.opt.Keys.Current()
	if k == nil {
		return nil, nil, e.mayBePlain(n.Bucket)
	}
	salt, err := seal.NewSalt()
	if err != nil {
		return nil, nil, err
	}
	b, err := k.Body(salt, n)
	kept := n // and not n itself, which would take memory also where nothing is sealed
	return &Seal{Key: k.Version(), Salt: salt, name: &kept}, b, err
}

// mayBePlain refuses to store new bytes as they are in a bucket whose objects are encrypted, unless keys were given with
// none of them current, which says that it is meant.
func (e *Engine) mayBePlain(bucket string) error {
	if e.opt.Keys != nil {
		return nil
	}
	if b, err := e.Bucket(bucket); err == nil && b.Settings[settingSealed] != nil {
		return fmt.Errorf("%w: the objects of bucket %q are encrypted, and this store was given no keys", ErrNoKey, bucket)
	}
	return nil
}

// sealBody seals a body for the log and gives o its Seal. The memory is returned by the caller; nil: there is none.
func (e *Engine) sealBody(o *Object, plain []byte) (stored []byte, memory *[]byte, err error) {
	s, b, err := e.newSeal(seal.Name{Bucket: o.Bucket, Key: o.Key})
	if err != nil || b == nil {
		return plain, nil, err
	}
	o.Seal = s
	memory = takeMemory(int(seal.Sealed(int64(len(plain)))))
	return b.SealWhole((*memory)[:0], plain), memory, nil
}

// checkNames refuses extents that were sealed for another key: they could not be read.
func checkNames(bucket, key string, list []Extent) error {
	for _, x := range list {
		if x.Seal != nil && x.Seal.name != nil && (x.Seal.name.Bucket != bucket || x.Seal.name.Key != key) {
			return fmt.Errorf("body %s was made for %s/%s", x.File, x.Seal.name.Bucket, x.Seal.name.Key)
		}
	}
	return nil
}

// open derives the key of stored bytes.
func (e *Engine) open(s *Seal, n seal.Name) (*seal.Body, error) {
	k, err := e.opt.Keys.Find(s.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoKey, err)
	}
	return k.Body(s.Salt, n)
}

// sealName is what a body of the handle's object was sealed under.
func (h *Handle) sealName(file string) seal.Name {
	key := h.Object.Key
	if h.of != "" {
		key = h.of
	}
	return seal.Name{Bucket: h.Object.Bucket, Key: key, Body: file}
}

// opener gives what opens an extent; nil when it is not sealed.
func (h *Handle) opener(x *Extent) (*seal.Body, error) {
	if x.Seal == nil {
		return nil, nil
	}
	return h.e.open(x.Seal, h.sealName(x.File))
}

// openBody opens a body that is in the record, once.
func (h *Handle) openBody() error {
	s := h.Object.Seal
	if s == nil || h.opened {
		return nil
	}
	b, err := h.e.open(s, h.sealName(""))
	if err != nil {
		return err
	}
	n, ok := seal.Plain(int64(len(h.body)))
	if !ok || n != h.Object.Size || b.OpenInPlace(h.body, 0, true) != nil {
		return &CorruptError{segName(h.entry.pos.seg), h.entry.pos.off, "body: " + seal.ErrForged.Error()}
	}
	h.body, h.opened = compact(h.body, 0, n), true
	return nil
}

// openChunks opens the chunks of block i that have n bytes of the body from off on, and gives these bytes.
func openChunks(block []byte, x *Extent, b *seal.Body, i, off, n int64) ([]byte, error) {
	first := off / seal.PlainChunk
	end := min(((off+n-1)/seal.PlainChunk+1)*seal.Chunk, int64(len(block)))
	run := block[first*seal.Chunk : end]
	last := i*BlockSize+end == x.Size
	if b.OpenInPlace(run, uint64(i*chunksPerBlock+first), last) != nil {
		return nil, &CorruptError{body.Name(x.File), i*BlockSize + first*seal.Chunk, seal.ErrForged.Error()}
	}
	return compact(run, off-first*seal.PlainChunk, n), nil
}

// compact moves n bytes of opened chunks, from off on, together. Without the gaps they are one write.
func compact(run []byte, off, n int64) []byte {
	for done := int64(0); done < n; {
		at := seal.Offset(off + done)
		done += int64(copy(run[done:n], run[at:min(at+seal.PlainChunk-(off+done)%seal.PlainChunk, int64(len(run)))]))
	}
	return run[:n]
}

// verifyStored reads everything that is stored of the object, and opens nothing: it needs no key. A body in the log was
// verified by Get.
func (h *Handle) verifyStored() error {
	if len(h.bodies) == 0 {
		return nil
	}
	buf := make([]byte, BlockSize)
	for i := range h.bodies {
		if err := h.verifyExtent(i, buf); err != nil {
			h.e.quarantineRead(h.entry, h.Object.Bucket, recordKey(h.Object.Key, h.Object.Version), err)
			return err
		}
	}
	return nil
}

func (h *Handle) verifyExtent(i int, buf []byte) error {
	f, err := h.readable(i)
	if err != nil {
		return err
	}
	x := &h.Object.Extents[i]
	for block := range int64(len(x.Blocks)) {
		if x.Wide > 0 {
			if same, err := h.fine.load(f, x, block, buf); same || err != nil {
				if err != nil {
					return err
				}
				continue
			}
		}
		first := block << x.Wide
		for i := range blocksOf(min(x.blockSize(), x.Size-block*x.blockSize()), 0) {
			if _, err := readBlock(f, x, &h.fine, first+i, buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// settingSealed is the setting of a bucket whose objects are encrypted. It is in the log, so that a store which is
// started without keys by mistake writes no object as it is.
const settingSealed = "sealed"

// markBuckets gives every bucket the mark, or takes it where keys were given with none of them current.
func (e *Engine) markBuckets() {
	if e.opt.Keys == nil {
		return
	}
	o := &op{rec: record{kind: kindBuckets, flags: flagQuiet}, change: func(m map[string]Bucket) error {
		changed := false
		for name, b := range m {
			if marked, changes := e.marked(b); changes {
				m[name], changed = marked, true
			}
		}
		if !changed {
			return errUnchanged
		}
		return nil
	}}
	if e.commit([]*op{o}); o.err != nil && !errors.Is(o.err, errUnchanged) {
		e.opt.Log.Error("the buckets could not be marked as encrypted", "error", o.err)
	}
}

var errUnchanged = errors.New("nothing changed")

// marked gives a bucket with the mark that it should have, and whether that is a change.
func (e *Engine) marked(b Bucket) (Bucket, bool) {
	want := e.Seals()
	if e.opt.Keys == nil || want == (b.Settings[settingSealed] != nil) {
		return b, false
	}
	return b.with(settingSealed, map[bool][]byte{true: []byte("AES256")}[want]), true
}
