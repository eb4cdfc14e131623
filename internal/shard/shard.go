// Package shard maps agents to the virtual shards of the rollup workers.
package shard

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
)

// Default and maximum of the number of shards of a deployment.
const (
	Default = 32
	Max     = 4096
)

// ID is a shard, from 0.
type ID uint32

// Of is the shard of an agent among n shards: SHA-256 of the agent id, its first eight
// bytes as a big-endian number, modulo n. n is at least 1.
func Of(agentID string, n uint32) ID {
	h := sha256.Sum256([]byte(agentID))
	return ID(binary.BigEndian.Uint64(h[:8]) % uint64(n))
}

// String is the shard as in keys: four digits.
func (s ID) String() string { return fmt.Sprintf("%04d", uint32(s)) }

// Parse reads what String writes.
func Parse(s string) (ID, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || len(s) != 4 || n >= Max {
		return 0, fmt.Errorf("%q is not a shard", s)
	}
	return ID(n), nil
}

// CheckCount refuses a number of shards that is out of bounds.
func CheckCount(n uint32) error {
	if n < 1 || n > Max {
		return fmt.Errorf("%d shards; there can be 1 to %d", n, Max)
	}
	return nil
}
