package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStubInABody: an object may have the bytes of a stub, at the very offset at which a stub has its second half. When the header
// of its segment is damaged the segment is still none, and not a byte of it is written over.
func TestStubInABody(t *testing.T) {
	const marker = "the body begins here"
	at := int64(0)
	for _, forged := range []bool{false, true} {
		opt := Options{Dir: t.TempDir(), SegmentBytes: 4 << 10, InlineBytes: 4 << 10}
		e := openTest(t, opt)
		name := filepath.Join(opt.Dir, segName(2))
		want := map[string][]byte{"a": pattern(3000, 1), "b": pattern(3000, 2)}
		e.put("a", want["a"])
		e.put("b", want["b"])
		b := []byte(marker + strings.Repeat("x", 1000))
		if forged {
			st := stub{number: 2, version: segVersion, salt: 7, firstSeq: 1, length: 1 << 20, body: strings.Repeat("ab", 16)}
			b = append(make([]byte, (stubSize-at%stubSize)%stubSize), st.encode()[:stubSize]...)
			b = append(b, make([]byte, len(marker)+1000-len(b))...)
		}
		e.put("k", b)
		want["k"] = b
		if raw, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		} else if !forged {
			if at = int64(bytes.Index(raw, []byte(marker))); at < 0 || at > stubSize {
				t.Fatalf("the body begins at byte %d", at)
			}
			continue
		} else if _, ok := decodeStub(raw[stubSize:], 2); !ok {
			t.Fatalf("the stub is not where one is looked for: %x", raw[:stubBytes])
		}
		for i := range 10 {
			key := "more" + string(rune('0'+i))
			want[key] = pattern(2000, byte(i))
			e.put(key, want[key])
		}
		e.done()
		flipOnDisk(t, name, 33) // of the header's checksum
		before, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		e = openTest(t, opt)
		e.wantAll(want)
		e.done()
		if after, err := os.ReadFile(name); err != nil || !bytes.Equal(after[segHeaderSize:], before[segHeaderSize:]) {
			t.Errorf("the segment is another one, %v", err)
		}
	}
}
