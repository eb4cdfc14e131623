package ingest_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// reheader changes a frame's header and makes its checksum right again.
func reheader(f []byte, change func([]byte)) []byte {
	f = bytes.Clone(f)
	n := int(binary.LittleEndian.Uint16(f[8:]))
	change(f)
	binary.LittleEndian.PutUint32(f[n-4:], crc32.Checksum(f[:n-4], crc32.MakeTable(crc32.Castagnoli)))
	return f
}

// encodeLabel makes a frame with one label value that its own limits allow.
func encodeLabel(t testing.TB, b identity.Boot, value string) []byte {
	t.Helper()
	fb := frame.NewBuilder()
	id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "m"}, {Name: "l", Value: value}}, series.Gauge, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := fb.Append(id, 1, 1); err != nil {
		t.Fatal(err)
	}
	batch, err := fb.Build(b, 1)
	if err != nil {
		t.Fatal(err)
	}
	f, err := frame.Encode(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// encodeTimes makes a frame with samples at these times.
func encodeTimes(t testing.TB, b identity.Boot, times ...int64) []byte {
	t.Helper()
	fb := frame.NewBuilder()
	id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "m"}}, series.Gauge, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range times {
		if err := fb.Append(id, at, 1); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := fb.Build(b, 1)
	if err != nil {
		t.Fatal(err)
	}
	f, err := frame.Encode(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// declare makes a compressed frame declare another decoded length.
func declare(t testing.TB, decoded uint32) []byte {
	t.Helper()
	f := encode(t, boot, 1, 500, 0)
	if h, err := frame.ParseHeader(f); err != nil || h.Compression != frame.Zstd {
		t.Fatalf("frame of 500 records: %+v, %v", h, err)
	}
	return reheader(f, func(b []byte) { binary.LittleEndian.PutUint32(b[16:], decoded) })
}
