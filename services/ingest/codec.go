package ingest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that this one wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// codec decodes the messages that carry a frame without the copies of the standard codec:
// the frame is copied once, from the transport's buffers into a pooled buffer. The handler of
// the message returns the buffer. Other messages are decoded by the standard codec.
type codec struct {
	encoding.CodecV2
	buffers *buffers
}

func newCodec(b *buffers) codec {
	return codec{CodecV2: encoding.GetCodecV2("proto"), buffers: b}
}

// Field numbers of the messages that carry a frame; TestCodecFieldNumbers compares them with the descriptors.
const (
	streamHelloField = 1
	streamFrameField = 2
	submitFrameField = 1
	submitSpoolField = 2
)

var errWire = errors.New("not a protobuf message")

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *ingestv1.StreamBatchesRequest:
		return c.streamRequest(data, m)
	case *ingestv1.SubmitBatchRequest:
		return c.submitRequest(data, m)
	}
	return c.CodecV2.Unmarshal(data, v)
}

func (c codec) streamRequest(data mem.BufferSlice, m *ingestv1.StreamBatchesRequest) error {
	m.Reset()
	r := wireReader{data: data}
	for r.more() {
		field, n, err := r.field()
		if err != nil {
			return err
		}
		switch field {
		case streamFrameField:
			f, ok := m.Message.(*ingestv1.StreamBatchesRequest_Frame)
			if ok { // a repeated field: the last one counts
				c.buffers.put(f.Frame)
			}
			b := c.buffers.get(n)
			r.copy(b)
			m.Message = &ingestv1.StreamBatchesRequest_Frame{Frame: b}
		case streamHelloField:
			b := make([]byte, n)
			r.copy(b)
			h := &ingestv1.Hello{}
			if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, h); err != nil {
				return err
			}
			m.Message = &ingestv1.StreamBatchesRequest_Hello{Hello: h}
		default:
			r.skip(n)
		}
	}
	return nil
}

func (c codec) submitRequest(data mem.BufferSlice, m *ingestv1.SubmitBatchRequest) error {
	m.Reset()
	r := wireReader{data: data}
	for r.more() {
		field, n, err := r.field()
		if err != nil {
			return err
		}
		switch field {
		case submitFrameField:
			c.buffers.put(m.Frame)
			m.Frame = c.buffers.get(n)
			r.copy(m.Frame)
		case submitSpoolField:
			b := make([]byte, min(n, maxSpoolIDBytes+1)) // longer ones are refused later
			r.copy(b)
			r.skip(n - len(b))
			m.SpoolId = string(b)
		default:
			r.skip(n)
		}
	}
	return nil
}

// wireReader reads protobuf fields from a received message that is in several pieces.
type wireReader struct {
	data mem.BufferSlice
	off  int // within data[0]
}

func (r *wireReader) more() bool {
	for len(r.data) > 0 && r.off == r.data[0].Len() {
		r.data, r.off = r.data[1:], 0
	}
	return len(r.data) > 0
}

func (r *wireReader) remaining() int { return r.data.Len() - r.off }

func (r *wireReader) varint() (uint64, error) {
	var b [binary.MaxVarintLen64]byte
	for i := range b {
		if !r.more() {
			return 0, errWire
		}
		b[i] = r.data[0].ReadOnlyData()[r.off]
		r.off++
		if b[i] < 0x80 {
			v, n := binary.Uvarint(b[:i+1])
			if n <= 0 {
				return 0, errWire
			}
			return v, nil
		}
	}
	return 0, errWire
}

// field reads the next tag. For a length-delimited field it returns the length, which is
// within the message. For others it returns a negative field and the bytes left to skip.
func (r *wireReader) field() (field, n int, err error) {
	tag, err := r.varint()
	if err != nil {
		return 0, 0, err
	}
	length, err := r.value(tag, protowire.DefaultRecursionLimit)
	if err != nil {
		return 0, 0, err
	}
	field = int(tag >> 3)
	if protowire.Type(tag&7) != protowire.BytesType {
		field = -field // not one of ours: they are all length-delimited
	}
	return field, length, nil
}

// value returns how many bytes of the tag's value are left to skip: none of a varint or a
// group, which it reads itself.
func (r *wireReader) value(tag uint64, depth int) (int, error) {
	num := tag >> 3
	if num < uint64(protowire.MinValidNumber) || num > uint64(protowire.MaxValidNumber) {
		return 0, errWire
	}
	var err error
	length := uint64(0)
	switch protowire.Type(tag & 7) {
	case protowire.VarintType:
		_, err = r.varint()
	case protowire.Fixed64Type:
		length = 8
	case protowire.Fixed32Type:
		length = 4
	case protowire.BytesType:
		length, err = r.varint()
	case protowire.StartGroupType:
		err = r.group(num, depth-1)
	default:
		err = fmt.Errorf("%w: wire type %d", errWire, tag&7)
	}
	if err != nil {
		return 0, err
	}
	if length > uint64(r.remaining()) {
		return 0, fmt.Errorf("%w: field %d of %d bytes is cut", errWire, num, length)
	}
	return int(length), nil
}

// group skips an unknown group up to its end.
func (r *wireReader) group(num uint64, depth int) error {
	if depth < 0 {
		return fmt.Errorf("%w: groups are nested too deeply", errWire)
	}
	for {
		tag, err := r.varint()
		if err != nil {
			return err
		}
		if protowire.Type(tag&7) == protowire.EndGroupType {
			if tag>>3 != num {
				return fmt.Errorf("%w: group %d ends as %d", errWire, num, tag>>3)
			}
			return nil
		}
		n, err := r.value(tag, depth)
		if err != nil {
			return err
		}
		r.skip(n)
	}
}

func (r *wireReader) copy(dst []byte) {
	for len(dst) > 0 && r.more() {
		n := copy(dst, r.data[0].ReadOnlyData()[r.off:])
		dst = dst[n:]
		r.off += n
	}
}

func (r *wireReader) skip(n int) {
	for n > 0 && r.more() {
		k := min(n, r.data[0].Len()-r.off)
		n -= k
		r.off += k
	}
}
