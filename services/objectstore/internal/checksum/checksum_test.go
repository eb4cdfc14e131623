package checksum

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// The checksum of a text follows from those of its parts, wherever it is cut.
func TestCombine(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	text := make([]byte, 70000)
	for i := range text {
		text[i] = byte(rng.Uint32())
	}
	sum := func(a string, b []byte) []byte {
		h := New(a)
		h.Write(b)
		return h.Sum(nil)
	}
	for _, a := range Algorithms {
		if !Combines(a) {
			if Combine(a, []byte{1}, []byte{2}, 1) != nil {
				t.Errorf("%s combines", a)
			}
			continue
		}
		for _, cut := range []int{0, 1, 7, 8, 4096, 65537, len(text) - 1, len(text)} {
			if got := Combine(a, sum(a, text[:cut]), sum(a, text[cut:]), int64(len(text)-cut)); !bytes.Equal(got, sum(a, text)) {
				t.Errorf("%s cut at %d: %x, want %x", a, cut, got, sum(a, text))
			}
		}
	}
}

// Tables combine as Combine does.
func TestCombineMany(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int64{0, 1, 7, 4096, 1 << 20, 5 << 30} {
		next := NewNext32C(size)
		for range 100 {
			a, b := rng.Uint32(), rng.Uint32()
			bytesOf := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
			want := binary.BigEndian.Uint32(Combine("CRC32C", bytesOf(a), bytesOf(b), size))
			if one, many := Combine32C(a, b, size), next.Combine(a, b); one != want || many != want {
				t.Fatalf("%x, %x of %d bytes: %x and %x, want %x", a, b, size, one, many, want)
			}
		}
	}
}
