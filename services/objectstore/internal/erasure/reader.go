package erasure

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// Budget bounds the memory of readers that keep a stripe they had to decode, bytes.
type Budget struct{ left atomic.Int64 }

// NewBudget gives a budget of n bytes.
func NewBudget(n int64) *Budget {
	b := &Budget{}
	b.left.Store(n)
	return b
}

func (b *Budget) take(n int64) bool {
	if b == nil {
		return false
	}
	if b.left.Add(-n) >= 0 {
		return true
	}
	b.left.Add(n)
	return false
}

func (b *Budget) give(n int64) { b.left.Add(n) }

// Reader reads a body from its shards. Data shards are read directly; where one is missing or
// damaged, its bytes are computed from K others. It may be used by many at once.
type Reader struct {
	set    *Set
	budget *Budget
	// Piece is how much of each shard is read at once to decode a stripe, bytes: a multiple of BlockSize.
	// 0 is all of it, in one request; little pieces of local files stay in the processor's cache.
	Piece int64
	// Decoded counts the bytes that were computed; it may be nil.
	Decoded func(n int64)

	mu     sync.Mutex
	stripe int64 // that memory has; -1 none
	memory *window
	held   int64
}

// LocalPiece is the Piece for files of this machine.
const LocalPiece = 2 * BlockSize

// NewReader reads a set. With a budget it keeps the last stripe that it decoded, so that reading a
// body from its beginning to its end reads each shard once. Close gives the memory back.
func NewReader(s *Set, budget *Budget) *Reader {
	return &Reader{set: s, budget: budget, stripe: -1}
}

// Close gives back memory. It does not close the files.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held > 0 {
		r.budget.give(r.held)
		r.memory.free()
	}
	r.held, r.memory, r.stripe = 0, nil, -1
}

// Size is that of the body, bytes.
func (r *Reader) Size() int64 { return r.set.info.Layout.Size }

// ReadAt implements io.ReaderAt. An error that wraps ErrTooFew says that the body is not readable
// from these shards.
func (r *Reader) ReadAt(p []byte, off int64) (n int, err error) {
	l := r.set.info.Layout
	if off < 0 {
		return 0, fmt.Errorf("read %s from %d", r.set.info.Fragment.Body, off)
	}
	for n < len(p) && off < l.Size {
		stripe := off / (int64(l.K) * l.Chunk)
		i := int(off / l.Chunk % int64(l.K))
		at := off % l.Chunk
		part := p[n:]
		part = part[:min(int64(len(part)), l.length(stripe, i)-at)]
		if err := r.read(part, stripe, i, at); err != nil {
			return n, err
		}
		n, off = n+len(part), off+int64(len(part))
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// read gives bytes of one chunk.
func (r *Reader) read(p []byte, stripe int64, i int, at int64) error {
	if r.kept(p, stripe, i, at) {
		return nil
	}
	// Without parity there is nothing else, so a shard that was damaged elsewhere is tried again.
	if f := r.set.files[i]; f != nil && (r.set.info.M == 0 || r.set.whole(i)) {
		err := r.set.readChunk(f, p, stripe, at)
		if err == nil {
			return nil
		}
		r.set.damaged(i, err)
	}
	if r.set.info.M == 0 {
		return r.set.tooFew()
	}
	if r.Decoded != nil {
		r.Decoded(int64(len(p)))
	}
	if done, err := r.fromStripe(p, stripe, i, at); done || err != nil {
		return err
	}
	return r.fromWindows(p, stripe, i, at)
}

// kept gives bytes of the stripe that was decoded last; false when it was another.
func (r *Reader) kept(p []byte, stripe int64, i int, at int64) bool {
	if r.set.info.M == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stripe != stripe {
		return false
	}
	copy(p, r.memory.shards[i][at:])
	return true
}

// fromStripe decodes a whole stripe and keeps it; false when there is no memory for that.
func (r *Reader) fromStripe(p []byte, stripe int64, i int, at int64) (bool, error) {
	l := r.set.info.Layout
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil {
		n := l.width(0) * int64(l.K+l.M)
		if !r.budget.take(n) {
			return false, nil
		}
		r.held, r.memory = n, newWindow(l, l.width(0))
	}
	if r.stripe != stripe {
		r.stripe = -1
		r.memory.cut(l, stripe, 0, l.width(stripe))
		if err := r.decodeStripe(stripe); err != nil {
			return false, err
		}
		r.stripe = stripe
	}
	copy(p, r.memory.shards[i][at:])
	return true, nil
}

// decodeStripe fills the memory with all data of a stripe, a few pieces at the same time.
func (r *Reader) decodeStripe(stripe int64) error {
	n, want := int64(len(r.memory.shards[0])), r.set.wanted(-1)
	piece := n
	if r.Piece > 0 {
		piece = r.Piece
	}
	parallel := min(int64(maxParallel), int64(runtime.GOMAXPROCS(0)), ceilDiv(n, max(piece, 1)))
	errs := make([]error, parallel)
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for at := next.Add(piece) - piece; at < n; at = next.Add(piece) - piece {
				if errs[w] = r.set.decode(r.memory.slice(at, min(at+piece, n)), stripe, at, want); errs[w] != nil {
					next.Add(n) // the stripe is of no use, so nobody begins another piece
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// wanted selects a data shard, or all where i is negative.
func (s *Set) wanted(i int) []bool {
	want := make([]bool, len(s.files))
	for j := range s.info.K {
		want[j] = i < 0 || j == i
	}
	return want
}

// fromWindows computes only the bytes that are wanted, with little memory.
func (r *Reader) fromWindows(p []byte, stripe int64, i int, at int64) error {
	l := r.set.info.Layout
	w, want := newWindow(l, windowBytes(l)), r.set.wanted(i)
	defer w.free()
	for len(p) > 0 {
		n := min(windowBytes(l), l.width(stripe)-at, int64(len(p)))
		w.cut(l, stripe, at, n)
		if err := r.set.decode(w, stripe, at, want); err != nil {
			return err
		}
		k := copy(p, w.shards[i][:w.real[i]])
		p, at = p[k:], at+int64(k)
	}
	return nil
}

// VerifyBody reads the whole body from the set and compares it with the hash that its shards have.
func (s *Set) VerifyBody() error {
	r := NewReader(s, nil)
	h := xxh3.New()
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, io.NewSectionReader(r, 0, r.Size()), make([]byte, verifyPiece)); err != nil {
		return err
	}
	if h.Sum128().Bytes() != s.info.BodyHash {
		return fmt.Errorf("%w: the hash of the body is another", ErrCorrupt)
	}
	return nil
}

// HashBody gives the hash of a body, and reads all of it.
func HashBody(r io.ReaderAt, size int64) (Hash, error) {
	h := xxh3.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, io.NewSectionReader(r, 0, size), make([]byte, verifyPiece))
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return h.Sum128().Bytes(), err
}
