package queue

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The byte format is docs/format/agent-queue.md.
const (
	recordMagic  = "LMQr"
	recordHeader = 32

	kindFrame byte = 1
	kindState byte = 2

	// maxBody, bytes, bounds a record's body before memory is taken for it.
	maxBody = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// State of an entry.
type State uint8

// States. Only Pending entries are sent.
const (
	Pending State = iota
	Acked         // durable at a collector
	Parked        // held because of a conflict: bytes are in parked/
	Dead          // rejected: bytes are in dead/
	Dropped       // dropped by policy, or because its bytes are damaged
)

func (s State) String() string {
	switch s {
	case Pending:
		return "pending"
	case Acked:
		return "acked"
	case Parked:
		return "parked"
	case Dead:
		return "dead"
	case Dropped:
		return "dropped"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// header is a record's fixed part.
type header struct {
	kind    byte
	body    int
	no      uint64
	bodyCRC uint32
}

func appendHeader(b []byte, kind byte, no uint64, body []byte) []byte {
	start := len(b)
	b = append(b, recordMagic...)
	b = append(b, kind, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = binary.LittleEndian.AppendUint64(b, no)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(body, castagnoli))
	b = append(b, 0, 0, 0, 0)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

func parseHeader(b []byte) (header, error) {
	if len(b) < recordHeader {
		return header{}, entryKind.Corrupt("", "header has %d of %d bytes", len(b), recordHeader)
	}
	b = b[:recordHeader]
	if string(b[:4]) != recordMagic {
		return header{}, entryKind.Corrupt("", "bad magic %x", b[:4])
	}
	if crc32.Checksum(b[:28], castagnoli) != binary.LittleEndian.Uint32(b[28:]) {
		return header{}, entryKind.Corrupt("", "header checksum")
	}
	h := header{
		kind:    b[4],
		body:    int(binary.LittleEndian.Uint32(b[8:])),
		no:      binary.LittleEndian.Uint64(b[12:]),
		bodyCRC: binary.LittleEndian.Uint32(b[20:]),
	}
	if h.kind != kindFrame && h.kind != kindState {
		return header{}, entryKind.Corrupt("", "unknown kind %d", h.kind)
	}
	if h.body > maxBody {
		return header{}, entryKind.Corrupt("", "body of %d bytes, at most %d", h.body, maxBody)
	}
	return h, nil
}

func (h header) check(body []byte) error {
	if len(body) != h.body || crc32.Checksum(body, castagnoli) != h.bodyCRC {
		return entryKind.Corrupt("", "body checksum of entry %d", h.no)
	}
	return nil
}

// frameBody is the body of a frame record.
type frameBody struct {
	id      identity.Batch
	spool   string
	created time.Time
	frame   []byte
}

func appendFrame(b []byte, no uint64, f frameBody) []byte {
	body := make([]byte, 0, len(f.frame)+len(f.id.Agent)+len(f.id.Boot)+len(f.spool)+32)
	body = appendText(body, f.id.Agent)
	body = appendText(body, f.id.Boot)
	body = appendText(body, f.spool)
	body = binary.LittleEndian.AppendUint64(body, f.id.SeqStart)
	body = binary.LittleEndian.AppendUint64(body, f.id.SeqEnd)
	body = binary.LittleEndian.AppendUint64(body, uint64(f.created.UnixNano()))
	body = append(body, f.frame...)
	return append(appendHeader(b, kindFrame, no, body), body...)
}

// parseFrame reads a frame record's body; frame aliases b.
func parseFrame(b []byte) (frameBody, error) {
	var f frameBody
	var err error
	rest := b
	for _, dst := range []*string{&f.id.Agent, &f.id.Boot, &f.spool} {
		if *dst, rest, err = cutText(rest); err != nil {
			return f, err
		}
	}
	if len(rest) < 24 {
		return f, entryKind.Corrupt("", "frame record is short")
	}
	f.id.SeqStart = binary.LittleEndian.Uint64(rest)
	f.id.SeqEnd = binary.LittleEndian.Uint64(rest[8:])
	f.created = time.Unix(0, int64(binary.LittleEndian.Uint64(rest[16:])))
	f.frame = rest[24:]
	if err := f.id.Validate(); err != nil {
		return f, entryKind.Corrupt("", "%w", err)
	}
	return f, nil
}

func appendState(b []byte, no uint64, s State, at time.Time) []byte {
	var body [9]byte
	body[0] = byte(s)
	binary.LittleEndian.PutUint64(body[1:], uint64(at.UnixNano()))
	return append(appendHeader(b, kindState, no, body[:]), body[:]...)
}

func parseState(b []byte) (State, error) {
	if len(b) != 9 || b[0] == byte(Pending) || b[0] > byte(Dropped) {
		return 0, entryKind.Corrupt("", "state record")
	}
	return State(b[0]), nil
}

func appendText(b []byte, s string) []byte {
	return append(append(b, byte(len(s))), s...)
}

func cutText(b []byte) (string, []byte, error) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return "", nil, entryKind.Corrupt("", "text is short")
	}
	n := 1 + int(b[0])
	return string(b[1:n]), b[n:], nil
}
