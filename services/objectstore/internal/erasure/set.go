package erasure

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/reedsolomon"
)

// Set is the shards of one generation of a body, or one copy of it. It may be read by many at once.
type Set struct {
	info Info // of any of them
	rs   reedsolomon.Encoder
	// Bad is told of a shard that turned out to be damaged; it may be nil.
	Bad func(index int, err error)

	files []*File // by index; nil: missing

	mu  sync.Mutex
	bad []error // by index: what was found wrong with a file
}

// NewSet puts shards together. All must be of one generation. Shards that are missing are nil, or
// absent from the end of the list.
func NewSet(files []*File) (*Set, error) {
	s := &Set{}
	for _, f := range files {
		if f == nil {
			continue
		}
		i := f.info
		if s.files == nil {
			s.info, s.files, s.bad = i, make([]*File, i.K+i.M), make([]error, i.K+i.M)
		}
		if i.Generation != s.info.Generation || !slices.Equal(i.Digests, s.info.Digests) {
			return nil, fmt.Errorf("%s is of another generation than %s", i.Fragment, s.info.Fragment)
		}
		s.files[i.Index] = f
	}
	if s.files == nil {
		return nil, fmt.Errorf("%w: there is none", ErrTooFew)
	}
	var err error
	if s.info.M > 0 {
		s.rs, err = coder(s.info.K, s.info.M)
	}
	return s, err
}

// Info is what a shard says of itself; its index has no meaning here.
func (s *Set) Info() Info { return s.info }

// Readable reports whether there are enough shards.
func (s *Set) Readable() bool { return len(s.Missing()) <= s.info.M }

// Missing gives the shards that are absent or were found damaged.
func (s *Set) Missing() (indexes []int) {
	for i := range s.files {
		if !s.whole(i) {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// whole reports whether a shard is there, and nothing was found wrong with it.
func (s *Set) whole(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[i] != nil && s.bad[i] == nil
}

// damaged notes that a shard has a bad block. It is used only where the others do not suffice: its
// other blocks may be whole, and two shards that are damaged at different places are two good ones
// at every place but those.
func (s *Set) damaged(i int, err error) {
	s.mu.Lock()
	first := s.bad[i] == nil
	if first {
		s.bad[i] = err
	}
	s.mu.Unlock()
	if first && s.Bad != nil {
		s.Bad(i, err)
	}
}

var errUnread = fmt.Errorf("%w: %w", ErrTooFew, ErrUnread)

// tooFew names what is not there.
func (s *Set) tooFew() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lost []string
	kind := ErrTooFew
	for i, f := range s.files {
		switch {
		case f != nil && s.bad[i] == nil:
		case f != nil:
			if !errors.Is(s.bad[i], ErrCorrupt) {
				kind = errUnread
			}
			lost = append(lost, fmt.Sprintf("%d (%v)", i, s.bad[i]))
		default:
			lost = append(lost, fmt.Sprintf("%d (missing)", i))
		}
	}
	return fmt.Errorf("%w: %s needs %d of %d shards, and has not: %s",
		kind, s.info.Fragment.Body, s.info.K, s.info.K+s.info.M, strings.Join(lost, ", "))
}

// readChunk reads verified bytes of one chunk, of any range. Blocks that are not wanted whole are
// read into memory of their own.
func (s *Set) readChunk(f *File, p []byte, stripe, off int64) error {
	size := s.info.Layout.length(stripe, f.info.Index)
	for len(p) > 0 {
		begin := off / BlockSize * BlockSize
		end := off + int64(len(p))
		if begin == off && (end == size || len(p) >= BlockSize) {
			n := len(p)
			if end != size {
				n -= n % BlockSize
			}
			if err := f.readBlocks(p[:n], stripe, off); err != nil {
				return err
			}
			p, off = p[n:], off+int64(n)
			continue
		}
		block, _ := blocks.Get().(*[BlockSize]byte)
		b := block[:min(BlockSize, size-begin)]
		err := f.readBlocks(b, stripe, begin)
		n := 0
		if err == nil {
			n = copy(p, b[off-begin:])
		}
		blocks.Put(block)
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

var blocks = sync.Pool{New: func() any { return new([BlockSize]byte) }}

// decode fills the wanted shards of a window: off and the window's width are of the chunks of a
// stripe. Where no K shards are whole in all of the window, it goes block by block.
func (s *Set) decode(w *window, stripe, off int64, want []bool) error {
	have, err := s.gather(w, stripe, off)
	if err == nil {
		return s.fill(w, have, want)
	}
	n := int64(len(w.shards[0]))
	if off%BlockSize+n <= BlockSize {
		return err
	}
	for at := int64(0); at < n; {
		// Up to the end of a block: the window may begin within one.
		end := min(n, at+BlockSize-(off+at)%BlockSize)
		if err := s.decode(w.slice(at, end), stripe, off+at, want); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// gather fills K shards of a window with verified bytes. Data shards are preferred, and those with
// which nothing was wrong before. It gives which shards were read.
func (s *Set) gather(w *window, stripe, off int64) (have []bool, err error) {
	have = make([]bool, len(s.files))
	order := s.order()
	for left := s.info.K; left > 0; {
		n := min(left, len(order))
		if n == 0 {
			return nil, s.tooFew()
		}
		errs := make([]error, n)
		var wg sync.WaitGroup
		for at, i := range order[:n] {
			wg.Go(func() {
				errs[at] = s.readChunk(s.files[i], w.shards[i][:w.real[i]], stripe, off)
				clear(w.shards[i][w.real[i]:])
			})
		}
		wg.Wait()
		for at, i := range order[:n] {
			if errs[at] != nil {
				s.damaged(i, errs[at])
				continue
			}
			have[i] = true
			left--
		}
		order = order[n:]
	}
	return have, nil
}

// order gives the shards in the order in which they are tried.
func (s *Set) order() (order []int) {
	for _, whole := range []bool{true, false} {
		for i, f := range s.files {
			if f != nil && s.whole(i) == whole {
				order = append(order, i)
			}
		}
	}
	return order
}

// fill computes the wanted shards of a window from those that were read.
func (s *Set) fill(w *window, have, want []bool) error {
	if s.rs == nil {
		return nil
	}
	missing := false
	for i := range have {
		missing = missing || want[i] && !have[i]
	}
	if !missing {
		return nil
	}
	in := make([][]byte, len(have))
	for i, b := range w.shards {
		if have[i] {
			in[i] = b
		} else {
			in[i] = b[:0:len(b)] // empty, with room: it is computed in place
		}
	}
	required := slices.Clone(want)
	for i := range required {
		required[i] = want[i] && !have[i]
	}
	if err := s.rs.ReconstructSome(in, required); err != nil {
		return fmt.Errorf("reconstruct %s: %w", s.info.Fragment.Body, err)
	}
	return nil
}

// Rebuild writes files of shards again, from any K others: of those whose writer is not nil. What
// was computed is compared with the digests that the other shards have of it, and is not written to
// the end when it differs. A writer's error is in failed; err is of the shards that are read.
func (s *Set) Rebuild(out []io.Writer) (failed []error, err error) {
	if len(out) != len(s.files) {
		return nil, fmt.Errorf("rebuild %s: %d writers of %d", s.info.Fragment.Body, len(out), len(s.files))
	}
	l := s.info.Layout
	e, err := newEncoder(l, out)
	if err != nil {
		return nil, err
	}
	want := make([]bool, len(out))
	for i := range out {
		want[i] = out[i] != nil
		f := s.info.Fragment
		f.Index = i
		e.write(i, header(f))
	}
	w := newWindow(l, windowBytes(l))
	defer w.free()
	for p := range places(l) {
		w.cut(l, p.stripe, p.off, p.n)
		if err := s.decode(w, p.stripe, p.off, want); err != nil {
			return nil, err
		}
		for i := range out {
			if want[i] {
				e.sums[i].set(l, p.stripe, p.off, w.shards[i][:w.real[i]])
				e.write(i, w.shards[i][:w.real[i]])
			}
		}
	}
	for i := range out {
		if !want[i] {
			continue
		}
		info := s.info
		info.Index = i
		if hashOf(e.sums[i]) != info.Digest() {
			e.failed[i] = errors.Join(e.failed[i], fmt.Errorf("%w: %s comes out with another digest", ErrCorrupt, info.Fragment))
			continue
		}
		e.write(i, footer(info, e.sums[i]))
	}
	return e.failed, nil
}
