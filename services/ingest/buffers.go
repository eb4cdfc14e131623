package ingest

import (
	"math/bits"
	"sync"
)

// buffers lends byte slices for frames, in powers of two from 4 KiB on, so that a
// steady flow of frames allocates nothing.
type buffers struct {
	classes [19]sync.Pool // 4 KiB to 1 GiB, of *[]byte
}

const smallestClass = 12

func class(n int) int {
	return max(bits.Len(uint(n-1)), smallestClass) - smallestClass
}

// get lends a slice of n bytes with arbitrary contents.
func (p *buffers) get(n int) []byte {
	if n == 0 {
		return nil
	}
	c := class(n)
	if b, ok := p.classes[c].Get().(*[]byte); ok {
		return (*b)[:n]
	}
	// A frame is rarely a power of two; rounding up costs address space, not memory, until it is used.
	return make([]byte, n, 1<<(c+smallestClass))
}

// put takes a slice of get back. Slices that get did not make are dropped.
func (p *buffers) put(b []byte) {
	n := cap(b)
	if n < 1<<smallestClass || n&(n-1) != 0 || n > 1<<30 {
		return
	}
	b = b[:n]
	p.classes[class(n)].Put(&b)
}
