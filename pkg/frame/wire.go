package frame

import "encoding/binary"

// fields reads a protobuf message whose fields are in ascending order. The
// first fault stops it and is kept in err.
type fields struct {
	b   []byte
	pos int
	err error
}

// tag consumes the tag of the field if it is the next one.
func (f *fields) tag(field, wire int) bool {
	if f.err != nil || f.pos == len(f.b) || f.b[f.pos] != byte(field<<3|wire) {
		return false
	}
	f.pos++
	return true
}

// bytes reads a length-delimited field; nil if it is not the next one.
func (f *fields) bytes(field int) []byte {
	if !f.tag(field, wireBytes) {
		return nil
	}
	n, pos := uvarint(f.b, f.pos)
	if pos < 0 || n > uint64(len(f.b)-pos) {
		f.err = refuse(BadPayload, "field %d ends beyond its message", field)
		return nil
	}
	f.pos = pos + int(n)
	return f.b[pos:f.pos:f.pos]
}

// uvarint reads a varint field; 0 if it is not the next one.
func (f *fields) uvarint(field int) uint64 {
	if !f.tag(field, wireVarint) {
		return 0
	}
	u, pos := uvarint(f.b, f.pos)
	if pos < 0 {
		f.err = refuse(BadPayload, "field %d is not a varint", field)
		return 0
	}
	f.pos = pos
	return u
}

// fixed64 reads an 8-byte field; 0 if it is not the next one.
func (f *fields) fixed64(field int) uint64 {
	if !f.tag(field, wireFixed64) {
		return 0
	}
	if len(f.b)-f.pos < 8 {
		f.err = refuse(BadPayload, "field %d ends beyond its message", field)
		return 0
	}
	u := binary.LittleEndian.Uint64(f.b[f.pos:])
	f.pos += 8
	return u
}

// end refuses a rest: an unknown, repeated or misplaced field.
func (f *fields) end(message string) error {
	if f.err == nil && f.pos != len(f.b) {
		f.err = refuse(BadPayload, "%s: unknown, repeated or misplaced field at byte %d (tag 0x%02x)", message, f.pos, f.b[f.pos])
	}
	return f.err
}
