package ingest

import (
	"math/bits"
	"sync"
)

// buffers pools byte slices for frames, in powers of two from 1 KiB on, so that a
// steady flow of frames allocates nothing.
type buffers struct {
	classes [21]sync.Pool // 1 KiB to 1 GiB, of *[]byte
}

const smallestClass = 10

func class(n int) int {
	return max(bits.Len(uint(n-1)), smallestClass) - smallestClass
}

// get returns a slice of n bytes with arbitrary contents.
func (p *buffers) get(n int) []byte {
	if n == 0 {
		return nil
	}
	c := class(n)
	if b, ok := p.classes[c].Get().(*[]byte); ok {
		return (*b)[:n]
	}
	// Rounding up to a power of two costs address space, but no memory until it is written.
	return make([]byte, n, 1<<(c+smallestClass))
}

// put returns a slice of get to the pool. Slices that get did not make are dropped.
func (p *buffers) put(b []byte) {
	n := cap(b)
	if n < 1<<smallestClass || n&(n-1) != 0 || n > 1<<30 {
		return
	}
	b = b[:n]
	p.classes[class(n)].Put(&b)
}
