package engine

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

func TestMetaRoundTrip(t *testing.T) {
	o := Object{
		Size: 123, ETag: "e", Modified: epoch,
		Headers: []Pair{{"content-type", "a/b"}}, User: []Pair{{"k", ""}, {"l", "v"}}, Tags: []Pair{{"t", "ü"}},
		Checksum:  Checksum{"SHA256", "FULL_OBJECT", "abc="},
		PartSizes: []int64{100, 23},
		Extents: []Extent{
			{File: "aa", Size: BlockSize + 1, Blocks: []uint32{1, 2}},
			{File: "bb", Size: 4*BlockSize + 1, Wide: 2, Blocks: []uint32{1, 2}},
			{File: "cc", Size: 4*BlockSize + 17, Wide: maxWide, Blocks: []uint32{3}, Seal: &Seal{Key: seal.Version{ID: "k"}}},
			{File: "dd", Size: BlockSize, Blocks: []uint32{4}, Seal: &Seal{Key: seal.Version{ID: "k"}}},
		},
	}
	got, err := decodeMeta(encodeMeta(&o))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(o, got, cmpopts.IgnoreUnexported(Seal{})); d != "" {
		t.Error(d)
	}
}

// FuzzDecodeRecord: no input makes decoding panic or read beyond its end, and what
// decodes encodes to the same bytes.
func FuzzDecodeRecord(f *testing.F) {
	const salt = 7
	r := record{kind: kindPut, bucket: "bkt", key: "key", meta: encodeMeta(&Object{ETag: "x", Modified: epoch}), seq: 9, batch: 40}
	whole := r.appendHead(nil, salt)
	f.Add(whole, false)
	f.Add(whole[:20], false)
	f.Add(whole[4:], true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix { // give the bytes a valid checksum, so that the fields are reached
			b = append([]byte{0, 0, 0, 0}, b...)
			if _, need, err := decodeHead(b, salt); err == nil || need > len(b) || need == 0 {
				if len(b) < headSize {
					return
				}
				need = headSize + int(b[7]) + int(b[8]) + int(b[9])<<8 + int(b[12]) + int(b[13])<<8
				if need > len(b) {
					return
				}
				b = b[:need]
			}
		}
		r, need, err := decodeHead(b, salt)
		if err != nil {
			if errors.Is(err, errShort) && need <= len(b) {
				t.Fatalf("short, but %d of %d bytes are there", len(b), need)
			}
			return
		}
		if again := r.appendHead(nil, salt); !bytes.Equal(again, b[:need]) {
			t.Fatal("encodes to other bytes")
		}
		_, _ = decodeMeta(r.meta)
	})
}

// FuzzDecodeMeta: no input makes decoding panic.
func FuzzDecodeMeta(f *testing.F) {
	f.Add(encodeMeta(&Object{ETag: "x", Modified: epoch, Tags: []Pair{{"a", "b"}}, Extents: []Extent{{File: "f", Size: 5, Blocks: []uint32{1}}}}))
	f.Add(encodeMeta(&Object{Modified: epoch, Extents: []Extent{{File: "f", Size: 9 * BlockSize, Wide: 3, Blocks: []uint32{1, 2}}}}))
	f.Add(encodeMeta(&Object{Modified: epoch, Extents: []Extent{{File: "f", Size: 2*BlockSize + 17, Wide: 1, Blocks: []uint32{1, 2}, Seal: &Seal{Key: seal.Version{ID: "k"}}}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := decodeMeta(b)
		if err != nil {
			return
		}
		again, err := decodeMeta(encodeMeta(&o))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(o, again, cmpopts.IgnoreUnexported(Seal{})); d != "" {
			t.Error(d)
		}
	})
}
