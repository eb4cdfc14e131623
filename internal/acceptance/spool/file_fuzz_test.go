package spool

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// FuzzFile: a spool file is read as what was written, or is corrupt.
func FuzzFile(f *testing.F) {
	frame := []byte("frame")
	d := identity.Sum(frame)
	m := accept.Manifest{AuthorityID: "auth", Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 2}, FrameSHA256: d,
		FrameBytes: uint64(len(frame)), RawBlobKey: layout.Blob(d, 0), AcceptedAt: 1, CollectorID: "c", WireVersion: 1, FrameVersion: 1,
		AttemptID: strings.Repeat("0", 32), RecordCount: 2, MinTime: 1, MaxTime: 2}.Marshal()
	whole := append(encodeHead(m, "spool-1", len(frame)), frame...)
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(append(bytes.Clone(whole), 0))
	f.Add([]byte(fileMagic))
	f.Add(append([]byte(fileMagic), bytes.Repeat([]byte{0xff}, 64)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, frame, err := decodeFile(b)
		if err != nil {
			if !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrNewerVersion) {
				t.Fatalf("%v", err)
			}
			return
		}
		if again := append(encodeHead(h.manifestBytes, h.spoolID, len(frame)), frame...); !bytes.Equal(again, b) {
			t.Fatalf("%x is read as %x", b, again)
		}
	})
}
