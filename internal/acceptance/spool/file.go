package spool

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// A spool file: magic (8 bytes), then four little-endian uint32: length of the
// manifest, of the spool id, of the frame, and CRC32C of everything before it and of
// manifest and spool id; then the manifest (canonical JSON), the spool id, the frame.
// The CRC does not cover the frame, because the manifest has its SHA-256.
const (
	fileMagic   = "LMSPOOL1"
	fileHeader  = len(fileMagic) + 4*4
	maxFileHead = fileHeader + accept.MaxRecordBytes + accept.MaxNameBytes
	fileSuffix  = ".lmspool"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// fileKind names spool files in errors. They are not JSON, but their errors for damage and for
// newer releases are those of every other record.
var fileKind = record.Kind{Title: "spool file"}

type header struct {
	manifest      accept.Manifest
	manifestBytes []byte
	spoolID       string
	frameAt       int64
}

func encodeHead(manifest []byte, spoolID string, frame int) []byte {
	b := make([]byte, 0, fileHeader+len(manifest)+len(spoolID))
	b = append(b, fileMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(manifest)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(spoolID)))
	b = binary.LittleEndian.AppendUint32(b, uint32(frame))
	crc := crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, manifest)
	crc = crc32.Update(crc, castagnoli, []byte(spoolID))
	b = binary.LittleEndian.AppendUint32(b, crc)
	b = append(b, manifest...)
	return append(b, spoolID...)
}

// decodeHead reads the head of a file of size bytes, of which b is the start.
func decodeHead(b []byte, size int64) (header, error) {
	var h header
	if len(b) < fileHeader || string(b[:len(fileMagic)-1]) != fileMagic[:len(fileMagic)-1] {
		return h, fileKind.Corrupt("", "no header")
	}
	m := int64(binary.LittleEndian.Uint32(b[8:]))
	s := int64(binary.LittleEndian.Uint32(b[12:]))
	f := int64(binary.LittleEndian.Uint32(b[16:]))
	h.frameAt = int64(fileHeader) + m + s
	if m > accept.MaxRecordBytes || s > accept.MaxNameBytes || h.frameAt > int64(len(b)) || h.frameAt+f != size {
		return h, fileKind.Corrupt("", "lengths do not add up")
	}
	meta := b[fileHeader:h.frameAt]
	if crc32.Update(crc32.Checksum(b[:fileHeader-4], castagnoli), castagnoli, meta) != binary.LittleEndian.Uint32(b[20:]) {
		return h, fileKind.Corrupt("", "checksum of the head")
	}
	// The version is checked after the checksum, so that a flipped bit in it counts as damage and not as a newer release.
	if err := fileKind.CheckFormat(b[len(fileMagic)-1], fileMagic[len(fileMagic)-1]); err != nil {
		return h, err
	}
	var err error
	h.manifestBytes, h.spoolID = meta[:m], string(meta[m:])
	if h.manifest, err = accept.ParseManifest(h.manifestBytes); err != nil {
		return h, fmt.Errorf("spool file: %w", err) // corrupt, or of a newer release
	}
	if h.manifest.FrameBytes != uint64(f) {
		return h, fileKind.Corrupt("", "%d frame bytes, the manifest has %d", f, h.manifest.FrameBytes)
	}
	return h, nil
}

// decodeFile reads a whole file and checks the frame's hash.
func decodeFile(b []byte) (header, []byte, error) {
	h, err := decodeHead(b, int64(len(b)))
	if err != nil {
		return h, nil, err
	}
	frame := b[h.frameAt:]
	if identity.Sum(frame) != h.manifest.FrameSHA256 {
		return h, nil, fileKind.Corrupt("", "frame does not hash to %s", h.manifest.FrameSHA256)
	}
	return h, frame, nil
}

// Folders below the spool's directory.
const (
	batchesDir    = "batches"    // accepted, not landed
	quarantineDir = "quarantine" // lost a conflict with a batch in the spool, not landed
	conflictsDir  = "conflicts"  // lost a conflict, or refused, when landing: an operator must check them
	corruptDir    = "corrupt"    // files whose head could not be read at a start
	bootsDir      = "boots"      // claim and landing watermark of each boot
	tempDir       = "tmp"
)

func bootPath(folder string, b identity.Boot) string {
	return filepath.Join(folder, textPath("agent=", b.Agent), textPath("boot=", b.Boot))
}

func batchPath(id identity.Batch) string {
	return filepath.Join(bootPath(batchesDir, id.BootOf()), layout.SeqName(id.SeqStart, id.SeqEnd)+fileSuffix)
}

// loserPath is the path of a frame in quarantine or conflicts. One identity can have many there, so the hash is part of it.
func loserPath(folder string, id identity.Batch, d identity.Digest) string {
	return filepath.Join(bootPath(folder, id.BootOf()), layout.SeqName(id.SeqStart, id.SeqEnd), d.String()+fileSuffix)
}

// maxNameDigits keeps a file name under the 255 bytes that file systems allow: the
// hex of a long agent id continues in a folder below, and the name before it ends in "+".
const maxNameDigits = 200

func textPath(prefix, s string) string {
	h := layout.HexText(s)
	var b strings.Builder
	b.WriteString(prefix)
	for len(h) > maxNameDigits {
		b.WriteString(h[:maxNameDigits] + "+" + string(filepath.Separator))
		h = h[maxNameDigits:]
	}
	b.WriteString(h)
	return b.String()
}
