package ledger

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/scan"
)

// Kind says what a file of a body holds.
type Kind uint8

// Kinds of files. The values are stored.
const (
	Copy   Kind = 1 // the whole body
	Data   Kind = 2 // a data shard
	Parity Kind = 3 // a parity shard
)

func (k Kind) String() string {
	switch k {
	case Copy:
		return "copy"
	case Data:
		return "data"
	case Parity:
		return "parity"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Key names a file that a body has, or is to have. There is one row per key. A body is one part of
// one version of one object: parts never share a body, so its id stands for all three.
type Key struct {
	Body   string `json:"body"`   // 32 hex digits
	Policy uint32 `json:"policy"` // version; 0: what a write left, before any policy
	Kind   Kind   `json:"kind"`
	Index  uint16 `json:"index"` // of the copy, or of the shard: data shards come before parity shards
}

func (k Key) String() string {
	return fmt.Sprintf("%s/%d/%s/%d", k.Body, k.Policy, k.Kind, k.Index)
}

// Less orders keys by body, policy, kind and index, as a listing of the ledger does.
func (k Key) Less(o Key) bool {
	switch {
	case k.Body != o.Body:
		return k.Body < o.Body
	case k.Policy != o.Policy:
		return k.Policy < o.Policy
	case k.Kind != o.Kind:
		return k.Kind < o.Kind
	}
	return k.Index < o.Index
}

// Row is what the ledger knows of one file.
type Row struct {
	Key
	// Place is the identity of the place that has the file, or is to have it. A drive that was
	// replaced has another.
	Place string
	// K data and M parity shards has the body under the policy; 1 and 0 of a copy.
	K, M     uint8
	Size     int64  // of the body, bytes; -1 when it is not known
	Checksum uint32 // the first bytes of the digest of the file, once it was verified
	State    State
	// Lost: the file was there, and is to be made again.
	Lost  bool
	Error string // why the last step failed; empty after one that did not
	// Created, Changed and Verified are Unix nanoseconds; Verified is 0 before the first time.
	Created, Changed, Verified int64
	// Version is another one after each change, and never one that a row of this key had before. A change is applied only
	// to the version it was decided on.
	Version uint64
}

// Age is the time since the row has its state.
func (r Row) Age(now time.Time) time.Duration { return now.Sub(time.Unix(0, r.Changed)) }

const (
	rowVersion = 1
	flagLost   = 1 << 7 // in the byte of the state
	maxError   = 300    // bytes of an error that a row keeps
)

// ErrCorrupt: a stored value does not decode. The ledger is a cache: it is thrown away and rebuilt.
var ErrCorrupt = errors.New("the ledger is damaged")

const keyBytes = 16 + 4 + 1 + 2

// appendKey encodes a key so that bytes order as keys do.
func appendKey(b []byte, k Key) ([]byte, error) {
	b, err := appendBody(b, k.Body)
	if err != nil {
		return nil, err
	}
	b = binary.BigEndian.AppendUint32(b, k.Policy)
	b = append(b, byte(k.Kind))
	return binary.BigEndian.AppendUint16(b, k.Index), nil
}

func appendBody(b []byte, id string) ([]byte, error) {
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != 16 {
		return nil, fmt.Errorf("%q is no id of a body", id)
	}
	return append(b, raw...), nil
}

func decodeKey(b []byte) (Key, error) {
	if len(b) != keyBytes {
		return Key{}, fmt.Errorf("%w: a key has %d bytes", ErrCorrupt, len(b))
	}
	return Key{
		Body: hex.EncodeToString(b[:16]), Policy: binary.BigEndian.Uint32(b[16:]),
		Kind: Kind(b[20]), Index: binary.BigEndian.Uint16(b[21:]),
	}, nil
}

func (r Row) encode() []byte {
	b := []byte{rowVersion, byte(r.State)}
	if r.Lost {
		b[1] |= flagLost
	}
	b = appendText(b, r.Place)
	for _, v := range [...]uint64{uint64(r.K), uint64(r.M), uint64(r.Size + 1), uint64(r.Checksum), uint64(r.Created), uint64(r.Changed), uint64(r.Verified), r.Version} {
		b = binary.AppendUvarint(b, v)
	}
	return appendText(b, r.Error)
}

func decodeRow(k Key, b []byte) (Row, error) {
	r := Row{Key: k}
	if len(b) < 2 || b[0] != rowVersion {
		return r, fmt.Errorf("%w: row %s is of an unknown version", ErrCorrupt, k)
	}
	r.State, r.Lost = State(b[1]&^flagLost), b[1]&flagLost != 0
	s := scan.New(b[2:])
	r.Place = s.Text()
	r.K, r.M, r.Size, r.Checksum = uint8(s.Num()), uint8(s.Num()), int64(s.Num())-1, uint32(s.Num())
	r.Created, r.Changed, r.Verified = int64(s.Num()), int64(s.Num()), int64(s.Num())
	r.Version = s.Num()
	r.Error = s.Text()
	if s.Bad || len(s.B) > 0 || !r.State.valid() {
		return r, fmt.Errorf("%w: row %s", ErrCorrupt, k)
	}
	return r, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
