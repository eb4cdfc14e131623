package erasure

import (
	"bytes"
	"context"
	"io"
	"testing"
)

// FuzzOpenFile: no bytes make opening or reading a fragment panic, or give bytes that are not covered.
func FuzzOpenFile(f *testing.F) {
	for _, b := range encode(f, anID, 1, Params{2, 1, 10, 100}, content(1, 450)) {
		f.Add(b)
	}
	f.Add(copyFile(f, anID, content(1, 100), 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := open(b)
		if err != nil {
			return
		}
		if file.Info().FileSize() != int64(len(b)) {
			t.Errorf("a file of %d bytes says %d", len(b), file.Info().FileSize())
		}
		_ = file.Verify(context.Background())
		if s, err := NewSet([]*File{file}); err == nil {
			_, _ = readAll(s, nil)
		}
	})
}

// FuzzLossAndDamage: whatever is lost or changed, the body's own bytes are read, or an error.
func FuzzLossAndDamage(f *testing.F) {
	f.Add([]byte("some bytes of a body"), uint8(3), uint8(2), uint16(7), uint16(1), uint32(50))
	f.Fuzz(func(t *testing.T, body []byte, k, m uint8, chunk, lost uint16, flip uint32) {
		p := Params{int(k%8) + 1, int(m % 5), 1, int64(chunk) + 1}
		if len(body)/int(p.MaxChunk) > 2000 {
			return
		}
		files := encode(t, anID, 1, p, body)
		n := len(files)
		bad := map[int]bool{}
		for i := range files {
			if lost>>i&1 == 1 {
				files[i], bad[i] = nil, true
			}
		}
		if v := int(flip) % n; files[v] != nil {
			files[v][int(flip)/n%len(files[v])] ^= byte(flip>>24) | 1
			bad[v] = true
		}
		s, err := NewSet(openAll(files))
		if err != nil {
			if len(bad) <= p.M {
				t.Fatal(err)
			}
			return
		}
		got, err := readAll(s, NewBudget(1<<16))
		if err == nil && !bytes.Equal(got, body) {
			t.Fatal("other bytes")
		}
		if err != nil && len(bad) <= p.M {
			t.Fatal(err)
		}
		out := make([]io.Writer, n)
		var again bytes.Buffer
		out[0] = &again
		if failed, err := s.Rebuild(out); err == nil && failed[0] == nil {
			if want := encode(t, anID, 1, p, body); !bytes.Equal(again.Bytes(), want[0]) {
				t.Fatal("another shard was rebuilt")
			}
		}
	})
}
