package erasure

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// CopySums makes the file of a whole body whose bytes come one after the other. The file is Header,
// the bytes given to Add, Footer.
type CopySums struct {
	name  Fragment
	size  int64
	sums  []byte
	block []byte // of a block that is not complete
	whole *xxh3.Hasher
}

// NewCopy begins a copy.
func NewCopy(body string) (*CopySums, error) {
	f := CopyOf(body)
	if err := f.valid(); err != nil {
		return nil, err
	}
	return &CopySums{name: f, whole: xxh3.New()}, nil
}

// Header is the beginning of the file.
func (c *CopySums) Header() []byte { return header(c.name) }

// Add takes the next bytes of the body.
func (c *CopySums) Add(p []byte) {
	c.size += int64(len(p))
	_, _ = c.whole.Write(p)
	for len(p) > 0 {
		if len(c.block) == 0 && len(p) >= BlockSize {
			c.sums = binary.LittleEndian.AppendUint64(c.sums, xxh3.Hash(p[:BlockSize]))
			p = p[BlockSize:]
			continue
		}
		n := min(len(p), BlockSize-len(c.block))
		c.block, p = append(c.block, p[:n]...), p[n:]
		if len(c.block) == BlockSize {
			c.endBlock()
		}
	}
}

func (c *CopySums) endBlock() {
	if len(c.block) > 0 {
		c.sums = binary.LittleEndian.AppendUint64(c.sums, xxh3.Hash(c.block))
		c.block = c.block[:0]
	}
}

// Footer is the end of the file, and what the file then says of itself. Nothing can be added after it.
func (c *CopySums) Footer() ([]byte, Info) {
	c.endBlock()
	l, body := copyLayout(c.size), Hash(c.whole.Sum128().Bytes())
	i := Info{Fragment: c.name, Layout: l, BodyHash: body, Generation: Generation(c.name, l, body), Digests: []Hash{hashOf(c.sums)}}
	return footer(i, c.sums), i
}

// Size is the number of bytes that were added.
func (c *CopySums) Size() int64 { return c.size }
