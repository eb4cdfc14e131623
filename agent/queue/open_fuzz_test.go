package queue

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// FuzzOpen: a directory with any segments opens, or is corrupt; what is pending can be read
// or is corrupt, and the next batch takes a number that no pending one of its boot has.
func FuzzOpen(f *testing.F) {
	o := origin{boot: identity.Boot{Agent: "a", Boot: "b"}, spool: "s", nextEntry: 1, nextSeq: 1, created: time.Unix(5, 6)}
	id := identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 2}
	seg := appendFrame(o.encode(), 1, frameBody{id: id, spool: "s", created: time.Unix(1, 2), frame: []byte("frame")})
	acked := appendState(bytes.Clone(seg), 1, Acked, time.Unix(3, 4))
	f.Add(seg, acked)
	f.Add(seg[:len(seg)-1], []byte{})
	f.Add([]byte(segmentMagic), seg)
	last := id
	last.SeqStart, last.SeqEnd = 1<<64-2, 1<<64-1
	f.Add(appendFrame(o.encode(), 1<<64-1, frameBody{id: last, spool: "s", created: time.Unix(1, 2), frame: []byte("x")}), seg)
	f.Fuzz(func(t *testing.T, first, second []byte) {
		dir := t.TempDir()
		for no, b := range [][]byte{first, second} {
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(segmentName("", uint64(no+1)))), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		q, err := Open(vfs.OS, dir, Options{Agent: "a", MaxBytes: 1 << 20, SegmentBytes: 1 << 18, Policy: RefuseNew,
			Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			if !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrNewerVersion) {
				t.Fatalf("%v", err)
			}
			return
		}
		defer q.Close()
		fresh, err := q.Append(Part{Records: 2, Encode: func(identity.Batch) ([]byte, error) { return []byte("new"), nil }})
		if err != nil {
			return // numbers may have come to their end
		}
		got := fresh[0].Identity
		for _, e := range q.entries {
			if e.done || e.no == fresh[0].No {
				continue
			}
			if e.boot.boot == got.BootOf() && e.seqStart <= got.SeqEnd && got.SeqStart <= e.seqEnd {
				t.Fatalf("%v was given again: %d-%d", got, e.seqStart, e.seqEnd)
			}
		}
	})
}
