package engine

import (
	"fmt"
	"io"
	"testing"
)

// BenchmarkLargeBody puts and reads bodies that lie outside the log.
func BenchmarkLargeBody(b *testing.B) {
	e := openTest(b, Options{Dir: b.TempDir()})
	defer e.done()
	large := pattern(4<<20, 1)
	b.Run("put", func(b *testing.B) {
		b.SetBytes(int64(len(large)))
		b.ReportAllocs()
		for i := range b.N {
			e.putFile(fmt.Sprint("k/", i%16), large)
		}
	})
	e.putFile("read", large)
	b.Run("get", func(b *testing.B) {
		b.SetBytes(int64(len(large)))
		b.ReportAllocs()
		for range b.N {
			h, err := e.Get("bkt", "read")
			if err != nil {
				b.Fatal(err)
			}
			if err := h.Copy(io.Discard, 0, h.Object.Size); err != nil {
				b.Fatal(err)
			}
			h.Close()
		}
	})
}
