package ingest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// pieces cuts b as a transport would.
func pieces(r *rand.Rand, b []byte) mem.BufferSlice {
	var s mem.BufferSlice
	for len(b) > 0 {
		n := 1 + r.IntN(min(len(b), 1+r.IntN(64)))
		s = append(s, mem.SliceBuffer(b[:n]))
		b = b[n:]
	}
	return s
}

// check decodes b with the codec and with protobuf's own decoder.
func check[M interface {
	*T
	proto.Message
}, T any](t *testing.T, s mem.BufferSlice, b []byte) {
	t.Helper()
	got, want := M(new(T)), M(new(T))
	err := newCodec(&buffers{}).Unmarshal(s, got)
	if werr := proto.Unmarshal(b, want); werr != nil {
		return // ours may be more lenient with fields that it skips
	}
	if err != nil {
		t.Fatalf("%x: %v", b, err)
	}
	proto.Reset(want)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Fatalf("%x: got %v, want %v", b, got, want)
	}
}

func TestCodecFieldNumbers(t *testing.T) {
	d := (&ingestv1.StreamBatchesRequest{}).ProtoReflect().Descriptor().Fields()
	if d.ByName("hello").Number() != streamHelloField || d.ByName("frame").Number() != streamFrameField || d.Len() != 2 {
		t.Error("StreamBatchesRequest changed")
	}
	d = (&ingestv1.SubmitBatchRequest{}).ProtoReflect().Descriptor().Fields()
	if d.ByName("frame").Number() != submitFrameField || d.ByName("spool_id").Number() != submitSpoolField || d.Len() != 2 {
		t.Error("SubmitBatchRequest changed")
	}
}

func TestCodecReadsWhatProtobufReads(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	frame := make([]byte, 10_000)
	for i := range frame {
		frame[i] = byte(r.Uint32())
	}
	for range 200 {
		f := frame[:r.IntN(len(frame))]
		m := &ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Frame{Frame: f}}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, 0x78, 0x96, 0x01) // an unknown varint field
		check[*ingestv1.StreamBatchesRequest](t, pieces(r, b), b)
		h := &ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{
			Hello: &ingestv1.Hello{AgentId: "a", BootId: "b", SpoolId: "s", NextSeq: r.Uint64()}}}
		if b, err = proto.Marshal(h); err != nil {
			t.Fatal(err)
		}
		check[*ingestv1.StreamBatchesRequest](t, pieces(r, b), b)
		if b, err = proto.Marshal(&ingestv1.SubmitBatchRequest{Frame: f, SpoolId: "spool"}); err != nil {
			t.Fatal(err)
		}
		check[*ingestv1.SubmitBatchRequest](t, pieces(r, b), b)
	}
}

func FuzzCodec(f *testing.F) {
	f.Add([]byte{0x12, 0x03, 1, 2, 3}, uint64(1))
	f.Add([]byte{0x0a, 0x02, 0x0a, 0x00, 0x12, 0x00}, uint64(2))
	f.Add(bytes.Repeat([]byte{0xff}, 20), uint64(3))
	f.Add([]byte("\n\x0200"), uint64(1))                                           // an unknown field within the hello
	f.Add([]byte{0x12, 0xff, 0xff, 0xff, 0xff, 0x0f}, uint64(4))                   // longer than the message
	f.Add([]byte{0x43, 0x4b, 0x08, 0x01, 0x4c, 0x12, 0x01, 0x00, 0x44}, uint64(5)) // groups
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		check[*ingestv1.StreamBatchesRequest](t, pieces(r, b), b)
	})
}

func TestBuffersAreReusedAndForeignOnesDropped(t *testing.T) {
	p := &buffers{}
	for _, n := range []int{1, 4095, 4096, 4097, 1 << 20, 4<<20 + 1} {
		b := p.get(n)
		if len(b) != n || cap(b)&(cap(b)-1) != 0 {
			t.Errorf("get(%d): length %d, capacity %d", n, len(b), cap(b))
		}
		p.put(b)
	}
	p.put(nil)
	p.put(make([]byte, 5000)) // not of get: must not come back as 8 KiB
	if b := p.get(8 << 10); cap(b) != 8<<10 {
		t.Errorf("capacity %d", cap(b))
	}
	if b := p.get(0); b != nil {
		t.Errorf("get(0) is %d bytes", len(b))
	}
}
