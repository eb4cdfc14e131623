package engine

import (
	"encoding/binary"
	"hash/crc32"
)

// A CRC of 32 bits is enough to find a single damaged byte in a short text. It is not enough
// to trust the correction: many wrong texts have the right CRC. So the callers use a corrected
// record only where something else confirms it: the sequence that is due, and a valid record
// where this one ends.

// maxCorrected bounds the bytes among which a damaged one is searched. Beyond it the search
// would be slow, and two places that explain one CRC become likely.
const maxCorrected = 64 << 10

// correctHead gives the record head at the start of b, with one damaged byte corrected, and its
// length. fits must refuse heads that cannot be at this place.
func correctHead(b []byte, salt uint32, fits func(*record) bool) (record, int, bool) {
	if len(b) < headSize {
		return record{}, 0, false
	}
	c := append([]byte(nil), b[:min(len(b), maxCorrected)]...)
	// First the fixed fields. Lengths are among them, and each value of a length selects other
	// bytes for the checksum, so every value of every byte is tried.
	for i := 4; i < headSize; i++ {
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
	// The fixed fields are right, so the head's length is known. The damage is in the checksum
	// itself, or in the bucket, key or metadata.
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

// correctBody corrects the one damaged byte of b in place. False: no single byte explains the
// difference to the checksum want.
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

// locate finds the byte among n, counted from the end, whose change by v changes a CRC by wrong.
// A CRC is linear: the effect of changing one byte depends on how many bytes follow it, and not
// on their values. effect has that effect for each v, one step further from the end per round.
func locate(wrong uint32, n int) (fromEnd int, v byte, ok bool) {
	var effect [256]uint32
	copy(effect[:], castagnoli[:])
	for i := range n {
		for v := 1; v < 256; v++ {
			if effect[v] == wrong {
				return i, byte(v), true
			}
			// One more byte follows: feed a zero through the CRC.
			effect[v] = castagnoli[byte(effect[v])] ^ effect[v]>>8
		}
	}
	return 0, 0, false
}

// saltOf computes the salt of an undamaged head, by running the CRC backwards from its stored
// value over the head's bytes. The top byte of each table entry is unique, so each step has one
// predecessor.
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
