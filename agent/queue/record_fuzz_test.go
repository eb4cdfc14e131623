package queue

import (
	"bytes"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// FuzzRecords: any bytes as a log never panic and never give a record that was not
// written; what the decoder takes is what the encoder writes.
func FuzzRecords(f *testing.F) {
	id := identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 2}
	rec := appendFrame(nil, 1, frameBody{id: id, spool: "s", created: time.Unix(1, 2), frame: []byte("frame")})
	f.Add(rec)
	f.Add(appendState(rec, 1, Acked, time.Unix(3, 4)))
	f.Add(rec[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		end, _, err := scan(bytes.NewReader(b), 0, int64(len(b)), func(off int64, h header, body []byte, damage error) error {
			if damage != nil {
				return nil
			}
			var again []byte
			if h.kind == kindFrame {
				fb, err := parseFrame(body)
				if err != nil {
					return nil
				}
				again = appendFrame(nil, h.no, fb)
				if !bytes.Equal(again[recordHeader:], body) {
					t.Fatalf("body at %d is read as %+v", off, fb)
				}
			} else if s, err := parseState(body); err == nil && (s == Pending || s > Dropped) {
				t.Fatalf("state %s", s)
			}
			return nil
		})
		if err != nil || end < 0 || end > int64(len(b)) {
			t.Fatalf("scan: end %d of %d, %v", end, len(b), err)
		}
	})
}

// FuzzSegmentHeader: what is read is what is written, and nothing else is taken.
func FuzzSegmentHeader(f *testing.F) {
	o := origin{boot: identity.Boot{Agent: "a", Boot: "b"}, spool: "s", nextEntry: 3, nextSeq: 4, created: time.Unix(5, 6)}
	f.Add(o.encode())
	f.Add([]byte(segmentMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, n, err := parseOrigin(b)
		if err == nil && !bytes.Equal(o.encode(), b[:n]) {
			t.Fatalf("%x is read as %+v", b[:n], o)
		}
	})
}
