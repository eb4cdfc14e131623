package engine

import (
	"encoding/binary"
	"hash/crc32"
)

// A checksum of 32 bits names the place of a single damaged byte. What is corrected here
// is used only where more than the checksum says that it is right: the sequence that is
// due, and a valid record where this one ends.

// maxCorrected bounds the bytes among which a damaged one is searched.
const maxCorrected = 64 << 10

// correctHead gives the head at the begin of b, of which one byte is damaged, and how
// long it is. fits must refuse what cannot stand there.
func correctHead(b []byte, salt uint32, fits func(*record) bool) (record, int, bool) {
	if len(b) < headSize {
		return record{}, 0, false
	}
	c := append([]byte(nil), b[:min(len(b), maxCorrected)]...)
	for i := 4; i < headSize; i++ { // lengths among them: each value gives another head
		good := c[i]
		for v := range 256 {
			if c[i] = byte(v); byte(v) == good {
				continue
			}
			if r, n, err := decodeHead(c, salt); err == nil && fits(&r) {
				return r, n, true
			}
		}
		c[i] = good
	}
	n := headSize + int(c[7]) + int(binary.LittleEndian.Uint16(c[8:])) + int(binary.LittleEndian.Uint32(c[12:]))
	if n > len(c) || n < headSize {
		return record{}, 0, false
	}
	sum := crc32.Update(salt, castagnoli, c[4:n])
	binary.LittleEndian.PutUint32(c, sum) // the checksum itself may be what is damaged
	wrong := sum ^ binary.LittleEndian.Uint32(b)
	if oneByte(wrong) {
		if r, n, err := decodeHead(c, salt); err == nil && fits(&r) {
			return r, n, true
		}
	}
	binary.LittleEndian.PutUint32(c, binary.LittleEndian.Uint32(b))
	if i, v, ok := locate(wrong, n-headSize); ok {
		c[n-1-i] ^= v
		if r, n, err := decodeHead(c, salt); err == nil && fits(&r) {
			return r, n, true
		}
	}
	return record{}, 0, false
}

// correctBody puts the one damaged byte of b right, when there is one that explains the checksum.
func correctBody(b []byte, want uint32) bool {
	if len(b) > maxCorrected {
		return false
	}
	i, v, ok := locate(crc32.Checksum(b, castagnoli)^want, len(b))
	if ok {
		b[len(b)-1-i] ^= v
	}
	return ok
}

func oneByte(v uint32) bool {
	return v != 0 && (v&^0xff == 0 || v&^0xff00 == 0 || v&^0xff0000 == 0 || v&^0xff000000 == 0)
}

// locate finds the byte, counted from the end, whose change by v makes the difference wrong
// in a checksum; checksums are linear, so what follows and comes before does not matter.
func locate(wrong uint32, n int) (fromEnd int, v byte, ok bool) {
	var effect [256]uint32
	copy(effect[:], castagnoli[:])
	for i := range n {
		for v := 1; v < 256; v++ {
			if effect[v] == wrong {
				return i, byte(v), true
			}
			effect[v] = castagnoli[byte(effect[v])] ^ effect[v]>>8
		}
	}
	return 0, 0, false
}

// saltOf runs the checksum of a whole head backwards: the salt with which it was made.
func saltOf(head []byte) (uint32, bool) {
	var byTop [256]int
	for i := range byTop {
		byTop[i] = -1
	}
	for i, v := range castagnoli {
		byTop[v>>24] = i
	}
	c := ^binary.LittleEndian.Uint32(head)
	for i := len(head) - 1; i >= 4; i-- {
		k := byTop[c>>24]
		if k < 0 {
			return 0, false
		}
		c = (c^castagnoli[k])<<8 | uint32(byte(k)^head[i])
	}
	return ^c, true
}
