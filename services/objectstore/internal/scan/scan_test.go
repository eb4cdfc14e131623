package scan

import (
	"encoding/binary"
	"testing"
)

// TestScanner: what was written is read, and every value that is cut off is bad at the end.
func TestScanner(t *testing.T) {
	b := binary.AppendUvarint(nil, 1<<40)
	b = append(append(binary.AppendUvarint(b, 4), "text"...), 7)
	b = append(b, "rest"...)
	s := New(b)
	if n, text, c, rest := s.Num(), s.Text(), s.Byte(), s.Rest(); n != 1<<40 || text != "text" || c != 7 || rest != "rest" || s.Bad {
		t.Errorf("%d %q %d %q, bad %t", n, text, c, rest, s.Bad)
	}
	for n := range len(b) - len("rest") {
		s := New(b[:n])
		s.Num()
		s.Text()
		s.Byte()
		if !s.Bad {
			t.Errorf("%d bytes of the value pass for all of it", n)
		}
	}
	for _, bad := range [][]byte{{0x80}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}} {
		if s := New(bad); s.Num() != 0 || !s.Bad || len(s.B) > 0 {
			t.Errorf("%x is a number", bad)
		}
	}
}
