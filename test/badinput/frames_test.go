package badinput

import (
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// Fields of the example in docs/format/frame.md, each in its place, so that a recipe
// can spoil any one of them and nothing else.
type field struct {
	no   int
	wire byte
	data []byte // varints as they stand on the wire
}

type message []field

func (m message) encode() []byte {
	var b []byte
	for _, f := range m {
		b = append(b, byte(f.no<<3)|f.wire)
		if f.wire == 2 {
			b = binary.AppendUvarint(b, uint64(len(f.data)))
		}
		b = append(b, f.data...)
	}
	return b
}

// plan is a frame before it is put together.
type plan struct {
	batch, identity, group message
	tail                   []byte // after the payload's fields
	agent, boot            string
	start, end             uint64
	zstd                   bool
	payload                []byte // in place of the encoded one
	decoded                int64  // in place of the decoded length; -1 is right
	encoded                int64
	header                 map[int][]byte // spoiled before the checksums
	after                  []func([]byte) []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newPlan(t testing.TB) *plan {
	x := func(s string) []byte { return expand(t, s, nil) }
	return &plan{
		identity: message{{1, 2, x(`"host-1"`)}, {2, 2, x(`"b1"`)}, {3, 0, x("05")}, {4, 0, x("06")}},
		batch:    message{{1, 2, nil}, {2, 2, x("0000")}, {3, 2, x("0802")}, {4, 2, x(`"__name__up"`)}, {6, 2, nil}},
		group: message{{1, 0, x("02")}, {2, 2, x("80c8afa025 80d4d4ab01 01")}, {3, 2, x("01")}, {4, 2, x("00")},
			{5, 2, x("00")}, {6, 2, x("01")}, {9, 2, x("10")}, {10, 2, x("0200")}},
		agent: "host-1", boot: "b1", start: 5, end: 6, decoded: -1, encoded: -1, header: map[int][]byte{},
	}
}

// apply takes one step of a recipe:
//
//	b|i|g . no = bytes   content of a field of batch, identity, group ("b.4=", "g.9=")
//	b|i|g . no -         without it;  + twice;  ^ before the field that stands before it
//	b|i|g . no / wire    another wire type
//	tail=                bytes after the last field
//	agent= boot= start= end=   of the header
//	zstd                 compressed;  payload= other bytes;  decoded= encoded= other lengths
//	h@n=                 header bytes, checksums right;  f@n= bytes of the finished frame
//	cut=n                only n bytes;  less=n  n bytes fewer;  more=  bytes after the end
func (p *plan) apply(t testing.TB, step string) {
	t.Helper()
	name, value, has := strings.Cut(step, "=")
	raw := func() []byte { return expand(t, value, nil) }
	switch {
	case len(name) > 2 && name[1] == '.':
		m := map[byte]*message{'b': &p.batch, 'i': &p.identity, 'g': &p.group}[name[0]]
		if m == nil {
			t.Fatalf("step %q", step)
		}
		op := byte('=')
		no := name[2:]
		if !has {
			if n, w, ok := strings.Cut(no, "/"); ok {
				op, no, value = '/', n, w
			} else {
				op, no = no[len(no)-1], no[:len(no)-1]
			}
		}
		m.edit(t, int(number(t, no)), op, value)
	case name == "tail":
		p.tail = raw()
	case name == "agent":
		p.agent = string(raw())
	case name == "boot":
		p.boot = string(raw())
	case name == "start":
		p.start = number(t, value)
	case name == "end":
		p.end = number(t, value)
	case name == "zstd":
		p.zstd = true
	case name == "payload":
		p.payload = append([]byte{}, raw()...)
	case name == "zeros": // compressed zeros, honest lengths
		p.zstd = true
		p.payload = squeeze(t, make([]byte, number(t, value)))
		p.decoded = int64(number(t, value))
	case name == "decoded":
		p.decoded = int64(number(t, value))
	case name == "encoded":
		p.encoded = int64(number(t, value))
	case strings.HasPrefix(name, "h@"):
		p.header[int(number(t, name[2:]))] = raw()
	case strings.HasPrefix(name, "f@"):
		p.after = append(p.after, func(f []byte) []byte { copy(f[number(t, name[2:]):], raw()); return f })
	case name == "cut":
		p.after = append(p.after, func(f []byte) []byte { return f[:number(t, value)] })
	case name == "less":
		p.after = append(p.after, func(f []byte) []byte { return f[:len(f)-int(number(t, value))] })
	case name == "more":
		p.after = append(p.after, func(f []byte) []byte { return append(f, raw()...) })
	case name == "raw":
		p.after = append(p.after, func([]byte) []byte { return raw() })
	default:
		t.Fatalf("step %q", step)
	}
}

func (m *message) edit(t testing.TB, no int, op byte, value string) {
	t.Helper()
	at := -1
	for i, f := range *m {
		if f.no == no {
			at = i
		}
	}
	if op == '=' {
		data := expand(t, value, nil)
		if at >= 0 {
			(*m)[at].data = data
			return
		}
		at = 0
		for at < len(*m) && (*m)[at].no < no {
			at++
		}
		*m = append((*m)[:at], append(message{{no, 2, data}}, (*m)[at:]...)...)
		return
	}
	if at < 0 {
		t.Fatalf("no field %d", no)
	}
	switch op {
	case '-':
		*m = append((*m)[:at:at], (*m)[at+1:]...)
	case '+':
		*m = append((*m)[:at:at], append(message{(*m)[at]}, (*m)[at:]...)...)
	case '^':
		(*m)[at-1], (*m)[at] = (*m)[at], (*m)[at-1]
	case '/':
		(*m)[at].wire = byte(number(t, value))
	default:
		t.Fatalf("operation %q", op)
	}
}

func squeeze(t testing.TB, b []byte) []byte {
	z, err := zstd.NewWriter(nil, zstd.WithSingleSegment(true), zstd.WithEncoderCRC(false))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(b, nil)
}

// build puts the frame together; its checksums are right.
func (p *plan) build(t testing.TB) []byte {
	for i := range p.batch {
		switch {
		case p.batch[i].no == 1 && p.batch[i].data == nil:
			p.batch[i].data = p.identity.encode()
		case p.batch[i].no == 6 && p.batch[i].data == nil:
			p.batch[i].data = p.group.encode()
		}
	}
	payload := append(p.batch.encode(), p.tail...)
	decoded := int64(len(payload))
	if p.zstd && p.payload == nil {
		payload = squeeze(t, payload)
	}
	if p.payload != nil {
		payload = p.payload
		if !p.zstd {
			decoded = int64(len(payload))
		}
	}
	if p.decoded >= 0 {
		decoded = p.decoded
	}
	encoded := int64(len(payload))
	if p.encoded >= 0 {
		encoded = p.encoded
	}
	le := binary.LittleEndian
	h := append([]byte("\x89LMB\x01\x00\x01\x00"), make([]byte, 32)...)
	if p.zstd {
		h[5] = 1
	}
	le.PutUint16(h[8:], uint16(48+len(p.agent)+len(p.boot)))
	le.PutUint32(h[12:], uint32(encoded))
	le.PutUint32(h[16:], uint32(decoded))
	le.PutUint64(h[20:], p.start)
	le.PutUint64(h[28:], p.end)
	h[36], h[37] = byte(len(p.agent)), byte(len(p.boot))
	h = append(append(h, p.agent...), p.boot...)
	h = le.AppendUint32(h, crc32.Checksum(payload, castagnoli))
	for at, b := range p.header {
		copy(h[at:], b)
	}
	h = le.AppendUint32(h, crc32.Checksum(h, castagnoli))
	f := append(h, payload...)
	for _, fn := range p.after {
		f = fn(f)
	}
	return f
}

// cook makes the frame of a recipe.
func cook(t testing.TB, steps []string) []byte {
	t.Helper()
	p := newPlan(t)
	for _, s := range steps {
		p.apply(t, s)
	}
	return p.build(t)
}

// goodFrame of this boot and range; the recipes spoil one like it.
func goodFrame(t testing.TB, agent, boot string, start uint64) []byte {
	t.Helper()
	p := newPlan(t)
	p.agent, p.boot, p.start, p.end = agent, boot, start, start+1
	p.identity = message{{1, 2, []byte(agent)}, {2, 2, []byte(boot)},
		{3, 0, binary.AppendUvarint(nil, start)}, {4, 0, binary.AppendUvarint(nil, start+1)}}
	return p.build(t)
}

// TestRecipeBase: without a step the recipe is a frame that holds, so a refusal is the step's doing.
func TestRecipeBase(t *testing.T) {
	for _, steps := range [][]string{nil, {"zstd"}} {
		if err := frame.Decode(cook(t, steps), &frame.Batch{}, frame.Limits{}); err != nil {
			t.Error(err)
		}
	}
	if err := frame.Decode(goodFrame(t, "a", "b", 300), &frame.Batch{}, frame.Limits{}); err != nil {
		t.Error(err)
	}
}
