package place

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// identityName is the file of a place that says who it is.
const identityName = "PLACE"

// identityFormat is the version of that file, and of what lies beside it.
const identityFormat = 1

// maxIdentity bounds the file, bytes.
const maxIdentity = 4 << 10

// Identity says who a place is. It is written once. A drive that is mounted at another's
// directory, or that belongs to another store, is recognised by it.
type Identity struct {
	Format int    `json:"format"`
	Store  string `json:"store"` // 32 hex digits
	Place  string `json:"place"` // 32 hex digits
	Name   string `json:"name"`  // in the settings, when it was claimed
}

// NewID gives a new random id of a store or a place: 32 hex digits.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode gives the bytes of the file: a line of JSON, and a line with its checksum.
func (id Identity) encode() ([]byte, error) {
	id.Format = identityFormat
	b, err := json.Marshal(id)
	if err != nil {
		return nil, err
	}
	b = append(b, '\n')
	return fmt.Appendf(b, "crc32c %08x\n", crc32.Checksum(b, castagnoli)), nil
}

var errBadIdentity = errors.New("the file that says which place this is cannot be read")

func parseIdentity(b []byte) (id Identity, err error) {
	line, rest, ok := bytes.Cut(b, []byte("\n"))
	if !ok || string(rest) != fmt.Sprintf("crc32c %08x\n", crc32.Checksum(b[:len(line)+1], castagnoli)) {
		return id, fmt.Errorf("%w: checksum mismatch", errBadIdentity)
	}
	if err := json.Unmarshal(line, &id); err != nil {
		return id, fmt.Errorf("%w: %w", errBadIdentity, err)
	}
	switch {
	case id.Format != identityFormat:
		return id, fmt.Errorf("%w: format %d, which a later release wrote", errBadIdentity, id.Format)
	case !isID(id.Store) || !isID(id.Place):
		return id, fmt.Errorf("%w: an id is not one", errBadIdentity)
	}
	return id, nil
}

func isID(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == 32
}
