package ledgers

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// RootKind is the kind of the root of a checkpoint, and PartKind that of its parts. Parts are no JSON, so
// their kind has no schema: the version stands in the magic.
var (
	RootKind = record.Kind{Schema: "lightmetrics.ledgers.v1", Title: "root of the ledgers", MaxBytes: 16 << 20, Exact: true}
	PartKind = record.Kind{Title: "part of the ledgers", MaxBytes: maxPartBytes, Exact: true}
)

// Root says through which positions the ledgers of the parts are applied. They may have more.
type Root struct {
	// Number is raised by one with each move.
	Number    uint64            `json:"number"`
	Positions journal.Positions `json:"positions"`
	Boots     uint64            `json:"boots"`
	// Parts, a power of two of them: a boot stands in the one that its hash says.
	Parts []Part `json:"parts"`
}

// Part names one object of ledgers; Key is empty where it has none.
type Part struct {
	Key   string `json:"key"`
	Boots uint64 `json:"boots"`
	Bytes uint64 `json:"bytes"`
}

// Marshal writes the canonical JSON.
func (r Root) Marshal() []byte {
	if r.Positions.Runs == nil {
		r.Positions.Runs = []journal.RunPosition{}
	}
	return RootKind.Marshal(r)
}

// ParseRoot reads what Marshal writes; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseRoot(b []byte) (Root, error) {
	var r Root
	err := RootKind.Unmarshal(b, &r)
	if err == nil {
		err = r.validate()
	}
	if err != nil {
		return Root{}, RootKind.Wrap(layout.LedgersKey, err)
	}
	return r, nil
}

func (r *Root) validate() error {
	n := len(r.Parts)
	if n == 0 || n > maxParts || n&(n-1) != 0 || r.Number == 0 {
		return fmt.Errorf("number %d, %d parts", r.Number, n)
	}
	for _, p := range r.Parts {
		if (p.Key == "") != (p.Boots == 0) {
			return fmt.Errorf("part %q has %d boots", p.Key, p.Boots)
		}
		if number, _, _, err := layout.ParseLedgersPart(p.Key); p.Key != "" && (err != nil || number > r.Number) {
			return fmt.Errorf("part %q is not one of root %d", p.Key, r.Number)
		}
	}
	return r.Positions.Validate()
}

var partMagic = [6]byte{0x89, 'L', 'M', 'L', 'G', 2}

const (
	// partHeader: magic, two zero bytes, length of the payload, CRC32C of everything else.
	partHeader = 16
	// maxPartBytes bounds a part as stored, and what it decompresses to.
	maxPartBytes = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var encoder = sync.OnceValue(func() *zstd.Encoder {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic("ledgers: zstd encoder options: " + err.Error()) // the options are constants
	}
	return z
})

var decoders = sync.Pool{New: func() any {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxPartBytes))
	if err != nil {
		panic("ledgers: zstd decoder options: " + err.Error())
	}
	return z
}}

// marshalPart writes the ledgers of a part, in the order of their boots. limit is maxPartBytes, but for tests.
func marshalPart(boots map[identity.Boot]*ledger.Ledger, limit int) ([]byte, error) {
	var p []byte
	for _, b := range slices.SortedFunc(maps.Keys(boots), identity.Boot.Compare) {
		p = boots[b].AppendBinary(p)
	}
	if len(p) > limit {
		return nil, fmt.Errorf("part of the ledgers: %d bytes, at most %d", len(p), limit)
	}
	out := make([]byte, partHeader, partHeader+len(p)/2)
	copy(out, partMagic[:])
	binary.LittleEndian.PutUint32(out[8:], uint32(len(p)))
	out = encoder().EncodeAll(p, out)
	binary.LittleEndian.PutUint32(out[12:], checksum(out))
	return out, nil
}

// checksum is over everything but itself.
func checksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[partHeader:])
}

// ParsePart reads the ledgers of a part; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParsePart(b []byte) ([]*ledger.Ledger, error) {
	if len(b) < partHeader || !bytes.Equal(b[:5], partMagic[:5]) {
		return nil, PartKind.Corrupt("", "%d bytes are no ledgers", len(b))
	}
	if err := PartKind.CheckFormat(b[5], partMagic[5]); err != nil {
		return nil, err
	}
	if b[6]|b[7] != 0 || checksum(b) != binary.LittleEndian.Uint32(b[12:]) {
		return nil, PartKind.Corrupt("", "the checksum differs")
	}
	n := binary.LittleEndian.Uint32(b[8:])
	var h zstd.Header
	if err := h.Decode(b[partHeader:]); err != nil || n > maxPartBytes || h.Skippable || !h.HasFCS || h.FrameContentSize != uint64(n) || h.DictionaryID != 0 {
		return nil, PartKind.Corrupt("", "zstd: not one frame with a content of %d bytes", n)
	}
	z := decoders.Get().(*zstd.Decoder)
	defer decoders.Put(z)
	p, err := z.DecodeAll(b[partHeader:], make([]byte, 0, n))
	if err != nil || uint32(len(p)) != n {
		return nil, PartKind.Corrupt("", "zstd: %d of %d bytes: %v", len(p), n, err)
	}
	var out []*ledger.Ledger
	for len(p) > 0 {
		var l *ledger.Ledger
		if l, p, err = ledger.ReadBinary(p); err != nil {
			return nil, PartKind.Wrap("", err)
		}
		if k := len(out); k > 0 && cmp.Or(out[k-1].Boot().Compare(l.Boot())) >= 0 {
			return nil, PartKind.Wrap("", errors.New("boots are out of order"))
		}
		out = append(out, l)
	}
	return out, nil
}
