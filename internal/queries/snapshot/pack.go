package snapshot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Bounds of a pack.
const (
	MaxPackBatches = 1000
	MaxPackBytes   = 16 << 20
)

// packMagic begins every pack: a byte that is not text, a name and a version.
var packMagic = [8]byte{0x89, 'L', 'M', 'P', 'A', 'C', 'K', 1}

// prefixBytes come before the header: magic, length and CRC32C of the header.
const prefixBytes = 16

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type packHeader struct {
	Shard   shard.ID         `json:"shard"`
	Shards  uint32           `json:"shards"`
	Entries []accepted.Batch `json:"entries"`
}

// Pack is the exact frames of some batches of one shard. Its slices share the bytes from which it was read.
type Pack struct {
	Shard   shard.ID
	Shards  uint32
	Entries []accepted.Batch
	frames  [][]byte
}

// Batch is an accepted batch with its frame.
type Batch struct {
	accepted.Batch
	Raw []byte
}

// EncodePack writes a pack: the same batches give the same bytes, in any order. Frames must be those of their
// entries.
func EncodePack(s shard.ID, shards uint32, batches []Batch) ([]byte, error) {
	batches = slices.Clone(batches)
	slices.SortFunc(batches, func(a, b Batch) int { return a.Claim().Compare(b.Claim()) })
	h := packHeader{Shard: s, Shards: shards, Entries: make([]accepted.Batch, len(batches))}
	size := uint64(0)
	for i, b := range batches {
		// A reader checks the same; a pack with other bytes would be written for nothing.
		if uint64(len(b.Raw)) != b.FrameBytes || identity.Sum(b.Raw) != b.FrameSHA256 {
			return nil, fmt.Errorf("pack of shard %s: the frame of %s is not the accepted one", s, b.Identity)
		}
		h.Entries[i] = b.Batch
		size += b.FrameBytes
	}
	if err := h.validate(); err != nil {
		return nil, err
	}
	js := PackKind.Marshal(h)
	if n := prefixBytes + uint64(len(js)) + size; n > MaxPackBytes {
		return nil, fmt.Errorf("pack of shard %s: %d bytes, at most %d", s, n, MaxPackBytes)
	}
	out := make([]byte, 0, prefixBytes+len(js)+int(size))
	out = append(out, packMagic[:]...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(js)))
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(js, castagnoli))
	out = append(out, js...)
	for _, b := range batches {
		out = append(out, b.Raw...)
	}
	return out, nil
}

// DecodePack reads the header and cuts the frames apart without decoding them. Errors wrap record.ErrCorrupt or
// record.ErrNewerVersion.
func DecodePack(b []byte) (*Pack, error) {
	if len(b) < prefixBytes || len(b) > MaxPackBytes || !bytes.Equal(b[:8], packMagic[:]) {
		return nil, PackKind.Corrupt("", "%d bytes are no pack", len(b))
	}
	// Compared with what is there before anything is cut, as the length may be damaged too.
	n := binary.LittleEndian.Uint32(b[8:])
	if uint64(n) > uint64(len(b)-prefixBytes) {
		return nil, PackKind.Corrupt("", "a header of %d bytes in a pack of %d", n, len(b))
	}
	js, rest := b[prefixBytes:prefixBytes+int(n)], b[prefixBytes+int(n):]
	if crc32.Checksum(js, castagnoli) != binary.LittleEndian.Uint32(b[12:]) {
		return nil, PackKind.Corrupt("", "the header's checksum differs")
	}
	var h packHeader
	if err := PackKind.Unmarshal(js, &h); err != nil {
		return nil, err
	}
	if err := h.validate(); err != nil {
		return nil, PackKind.Wrap("", err)
	}
	p := &Pack{Shard: h.Shard, Shards: h.Shards, Entries: h.Entries, frames: make([][]byte, len(h.Entries))}
	for i, e := range h.Entries {
		if e.FrameBytes > uint64(len(rest)) {
			return nil, PackKind.Corrupt("", "the frames are cut short")
		}
		// The capacity ends with the frame, so that nobody can append into the next one.
		p.frames[i], rest = rest[:e.FrameBytes:e.FrameBytes], rest[e.FrameBytes:]
	}
	if len(rest) > 0 {
		return nil, PackKind.Corrupt("", "%d bytes behind the last frame", len(rest))
	}
	return p, nil
}

// Bytes returns what is in the place of frame i, whose hash the caller checks.
func (p *Pack) Bytes(i int) []byte { return p.frames[i] }

// Frame returns frame i if its bytes hash to the entry's digest, else record.ErrCorrupt.
func (p *Pack) Frame(i int) ([]byte, error) {
	if identity.Sum(p.frames[i]) != p.Entries[i].FrameSHA256 {
		return nil, PackKind.Corrupt("", "the frame of %s has other bytes", p.Entries[i].Identity)
	}
	return p.frames[i], nil
}

func (h *packHeader) validate() error {
	switch {
	case len(h.Entries) == 0 || len(h.Entries) > MaxPackBatches:
		return fmt.Errorf("pack: %d batches, 1 to %d", len(h.Entries), MaxPackBatches)
	}
	if err := shard.CheckCount(h.Shards); err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	seen := make(map[identity.Batch]struct{}, len(h.Entries))
	for i, e := range h.Entries {
		if err := e.Validate(); err != nil {
			return fmt.Errorf("pack: %w", err)
		}
		if got := shard.Of(e.Agent, h.Shards); got != h.Shard {
			return fmt.Errorf("pack: agent %q is of shard %s, not %s", e.Agent, got, h.Shard)
		}
		// One order only, so that equal batches are equal bytes and hence one object.
		if i > 0 && h.Entries[i-1].Claim().Compare(e.Claim()) >= 0 {
			return fmt.Errorf("pack: %s is out of order", e.Identity)
		}
		if _, ok := seen[e.Identity]; ok {
			return fmt.Errorf("pack: %s is listed twice", e.Identity)
		}
		seen[e.Identity] = struct{}{}
	}
	return nil
}
