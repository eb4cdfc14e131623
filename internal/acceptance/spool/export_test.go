package spool

import (
	"encoding/binary"
	"hash/crc32"
)

// Reseal gives a file that was changed the checksum of its head.
func Reseal(file []byte) []byte {
	at := fileHeader - 4
	m, s := binary.LittleEndian.Uint32(file[8:]), binary.LittleEndian.Uint32(file[12:])
	crc := crc32.Update(crc32.Checksum(file[:at], castagnoli), castagnoli, file[fileHeader:fileHeader+int(m+s)])
	binary.LittleEndian.PutUint32(file[at:], crc)
	return file
}
