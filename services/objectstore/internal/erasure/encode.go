package erasure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime"
	"slices"
	"sync"

	"github.com/klauspost/reedsolomon"
	"github.com/zeebo/xxh3"
)

// ErrTooFew: fewer than k shards are whole. The error says which are not, and why.
var ErrTooFew = errors.New("too few shards are whole")

// ErrUnread comes with ErrTooFew where a shard could not be read for another reason than damage, such
// as a network that fails: the body may be whole.
var ErrUnread = errors.New("a shard could not be read")

// Source is a body to code.
type Source struct {
	Body string // id
	// Bytes must be verified by whoever reads them: coding finds no damage by itself.
	Bytes io.ReaderAt
	Size  int64
	// Hash is XXH3-128 of the body.
	Hash Hash
}

const (
	// windowBlocks is the number of blocks of each shard that one goroutine codes at a time.
	windowBlocks = 2
	// maxParallel is the most goroutines that code one body.
	maxParallel = 4
)

// shardSums are the checksums of a shard's blocks.
type shardSums []byte

// set takes the bytes from off on of a chunk, which end with a block or with the chunk. Goroutines
// may set those of different blocks.
func (s shardSums) set(l Layout, stripe, off int64, p []byte) {
	block := stripe*ceilDiv(l.Chunk, BlockSize) + off/BlockSize
	for len(p) > 0 {
		b := p[:min(BlockSize, len(p))]
		binary.LittleEndian.PutUint64(s[block*sumSize:], xxh3.Hash(b))
		p, block = p[len(b):], block+1
	}
}

// coders keeps the matrices: there are few pairs of k and m in a process.
var coders sync.Map // [2]int -> reedsolomon.Encoder

func coder(k, m int) (reedsolomon.Encoder, error) {
	if c, ok := coders.Load([2]int{k, m}); ok {
		return c.(reedsolomon.Encoder), nil
	}
	// One goroutine: a window is small, and starting goroutines for it costs more than it gains.
	c, err := reedsolomon.New(k, m, reedsolomon.WithMaxGoroutines(1))
	if err != nil {
		return nil, fmt.Errorf("code of %d+%d shards: %w", k, m, err)
	}
	coders.Store([2]int{k, m}, c)
	return c, nil
}

// Encode codes a body into K+M files and writes those whose writer is not nil. Memory is bounded by
// K+M times half a MiB. A writer that fails gets no more, and its error is in failed; the others go
// on. err is of the body, and then no file is complete.
func Encode(src Source, policy uint32, p Params, out []io.Writer) (infos []Info, failed []error, err error) {
	l := p.Layout(src.Size)
	infos = make([]Info, p.K+p.M)
	for i := range infos {
		f := Fragment{src.Body, policy, p.K, p.M, i}
		infos[i] = Info{Fragment: f, Layout: l, BodyHash: src.Hash, Generation: Generation(f, l, src.Hash)}
		if err := errors.Join(f.valid(), p.Validate()); err != nil || policy == 0 || len(out) != len(infos) {
			return nil, nil, errors.Join(fmt.Errorf("encode %s under policy %d to %d writers", src.Body, policy, len(out)), err)
		}
	}
	e, err := newEncoder(l, out)
	if err != nil {
		return nil, nil, err
	}
	for i, info := range infos {
		e.write(i, header(info.Fragment))
	}
	if err := e.stripes(src); err != nil {
		return nil, nil, fmt.Errorf("encode %s: %w", src.Body, err)
	}
	digests := make([]Hash, len(infos))
	for i := range digests {
		digests[i] = hashOf(e.sums[i])
	}
	for i := range infos {
		infos[i].Digests = digests
		e.write(i, footer(infos[i], e.sums[i]))
	}
	return infos, e.failed, nil
}

// encoder codes a body window by window: a window is the same few blocks of each chunk of a stripe.
type encoder struct {
	l      Layout
	rs     reedsolomon.Encoder
	out    []io.Writer
	failed []error
	sums   []shardSums
}

func newEncoder(l Layout, out []io.Writer) (*encoder, error) {
	e := &encoder{l: l, out: out, failed: make([]error, l.K+l.M), sums: make([]shardSums, l.K+l.M)}
	for i := range e.sums {
		e.sums[i] = make(shardSums, l.blocks(i)*sumSize)
	}
	var err error
	if l.M > 0 {
		e.rs, err = coder(l.K, l.M)
	}
	return e, err
}

func (e *encoder) write(i int, p []byte) {
	if e.out[i] != nil && e.failed[i] == nil && len(p) > 0 {
		_, e.failed[i] = e.out[i].Write(p)
	}
}

// window is a share of all chunks of a stripe, in memory.
type window struct {
	shards [][]byte // all of one width
	real   []int64  // of each, the bytes that are stored
	memory *[]byte
}

// newWindow has room for width bytes of each shard. Its memory is given back with free.
func newWindow(l Layout, width int64) *window {
	n := l.K + l.M
	return &window{shards: make([][]byte, n), real: make([]int64, n), memory: takeMemory(int64(n) * width)}
}

func (w *window) free() {
	memory.Put(w.memory)
	w.memory = nil
}

// memory is that of windows: it is large, and clearing it for every body would cost as much as coding.
var memory sync.Pool

func takeMemory(n int64) *[]byte {
	if b, ok := memory.Get().(*[]byte); ok && int64(cap(*b)) >= n {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n)
	return &b
}

// windowBytes is the width of a window.
func windowBytes(l Layout) int64 { return min(windowBlocks*BlockSize, l.Chunk) }

// cut gives the window its place: n bytes from off on of each chunk of a stripe.
func (w *window) cut(l Layout, stripe, off, n int64) {
	wide := int64(len(*w.memory) / len(w.shards))
	for i := range w.shards {
		w.shards[i] = (*w.memory)[int64(i)*wide:][:n:n]
		w.real[i] = min(max(l.length(stripe, i)-off, 0), n)
	}
}

// slice is a part of a window, in the same memory.
func (w *window) slice(at, end int64) *window {
	part := &window{shards: make([][]byte, len(w.shards)), real: make([]int64, len(w.shards))}
	for i, b := range w.shards {
		part.shards[i], part.real[i] = b[at:end:end], min(max(w.real[i]-at, 0), end-at)
	}
	return part
}

// place is where a window is in the body.
type place struct{ stripe, off, n int64 }

// places gives the places of all windows, in order.
func places(l Layout) iter.Seq[place] {
	return func(yield func(place) bool) {
		wide := windowBytes(l)
		for stripe := range l.Stripes() {
			width := l.width(stripe)
			for off := int64(0); off < width; off += wide {
				if !yield(place{stripe, off, min(wide, width-off)}) {
					return
				}
			}
		}
	}
}

// stripes codes the body: a few windows at the same time, and while they are written the next few.
func (e *encoder) stripes(src Source) error {
	var written sync.WaitGroup
	var spare [2][]*window
	parallel := min(maxParallel, runtime.GOMAXPROCS(0))
	turn, batch := 0, make([]place, 0, parallel)
	defer func() {
		written.Wait()
		for _, w := range slices.Concat(spare[:]...) {
			w.free()
		}
	}()
	flush := func() error {
		ws := spare[turn]
		for len(ws) < len(batch) {
			ws = append(ws, newWindow(e.l, windowBytes(e.l)))
		}
		spare[turn], turn = ws, 1-turn
		if err := e.codeAll(src, ws, batch); err != nil {
			return err
		}
		written.Wait()
		n := len(batch)
		batch = batch[:0]
		for i := range e.out {
			if e.out[i] == nil {
				continue
			}
			written.Go(func() {
				for _, w := range ws[:n] {
					e.write(i, w.shards[i][:w.real[i]])
				}
			})
		}
		return nil
	}
	for p := range places(e.l) {
		if batch = append(batch, p); len(batch) == parallel {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// codeAll reads and codes windows at the same time.
func (e *encoder) codeAll(src Source, ws []*window, at []place) error {
	errs := make([]error, len(at))
	var wg sync.WaitGroup
	one := func(n int) {
		w, p := ws[n], at[n]
		w.cut(e.l, p.stripe, p.off, p.n)
		if errs[n] = e.read(src, w, p.stripe, p.off); errs[n] == nil {
			errs[n] = e.code(w, p.stripe, p.off)
		}
	}
	for n := 1; n < len(at); n++ {
		wg.Go(func() { one(n) })
	}
	if len(at) > 0 {
		one(0)
	}
	wg.Wait()
	return errors.Join(errs...)
}

// read fills the data chunks of a window.
func (e *encoder) read(src Source, w *window, stripe, off int64) error {
	for i := range e.l.K {
		p := w.shards[i][:w.real[i]]
		if got, err := src.Bytes.ReadAt(p, e.l.start(stripe, i)+off); got < len(p) {
			if errors.Is(err, io.EOF) || err == nil {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		clear(w.shards[i][w.real[i]:])
	}
	return nil
}

// code computes parity and checksums, a block at a time: the bytes are in the processor's cache for
// both then.
func (e *encoder) code(w *window, stripe, at int64) error {
	n := int64(len(w.shards[0]))
	part := make([][]byte, len(w.shards))
	for off := int64(0); off < n; off += BlockSize {
		end := min(off+BlockSize, n)
		for i, s := range w.shards {
			part[i] = s[off:end]
		}
		if e.rs != nil {
			if err := e.rs.Encode(part); err != nil {
				return err
			}
		}
		for i, p := range part {
			e.sums[i].set(e.l, stripe, at+off, p[:min(max(w.real[i]-off, 0), end-off)])
		}
	}
	return nil
}
