package redundancy

import (
	"encoding/json"
	"fmt"
	"math"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// Policy says how bodies are kept. What is written under a version keeps its meaning: other numbers are another version.
type Policy struct {
	// Version grows with each change, from 1 on. Shards have it in their names.
	Version uint32 `json:"version"`
	// Copies of a body below Threshold, each on a place of its own (rep-v1).
	Copies int `json:"copies"`
	// Data and Parity shards of the other bodies, each on a place of its own (rs-v1). Data 0: all bodies are copied.
	Data   int `json:"data"`
	Parity int `json:"parity"`
	// Threshold is the size of the smallest body that is coded, bytes.
	Threshold int64 `json:"threshold_bytes"`
	// MinChunk and MaxChunk bound the share of a shard in a stripe, bytes.
	MinChunk int64 `json:"min_chunk_bytes"`
	MaxChunk int64 `json:"max_chunk_bytes"`
}

// Coded reports whether a body of this size is kept as shards.
func (p Policy) Coded(size int64) bool { return p.Data > 0 && size >= p.Threshold }

// Files is how many files a body of this size has, and needs how many of them it can be read from.
func (p Policy) Files(size int64) (files, needs int) {
	if p.Coded(size) {
		return p.Data + p.Parity, p.Data
	}
	return p.Copies, 1
}

// Scheme is what the policy is for a body of this size, in words.
func (p Policy) Scheme(size int64) string {
	if p.Coded(size) {
		return fmt.Sprintf("rs-v1 %d+%d", p.Data, p.Parity)
	}
	return fmt.Sprintf("rep-v1 %d", p.Copies)
}

// same reports whether two policies keep bodies in the same way. A change of what is neither in the names nor in the
// bytes of shards needs no new version of them, but shards made under one version must all be alike.
func (p Policy) same(o Policy) bool {
	o.Version = p.Version
	return p == o
}

// shard gives the key of a shard.
func (p Policy) shard(body string, i int) ledger.Key {
	k := ledger.Key{Body: body, Policy: p.Version, Kind: ledger.Data, Index: uint16(i)}
	if i >= p.Data {
		k.Kind = ledger.Parity
	}
	return k
}

// valueOfPolicy is the name under which the ledger keeps the policy in force.
const valueOfPolicy = "policy"

// Adopt gives the policy of the settings its version. The one before is in the ledger; if the ledger was lost, seen is the
// highest version that the files of the places name. A policy that is not the one before gets the next version, and
// so does the first one after a loss: its shards may be of other numbers, and are read under their own version until they
// are replaced.
func Adopt(l *ledger.Ledger, want Policy, seen uint32) (Policy, error) {
	b, err := l.Value(valueOfPolicy)
	if err != nil {
		return want, err
	}
	var before Policy
	if b != nil {
		if err := json.Unmarshal(b, &before); err != nil {
			return want, fmt.Errorf("policy of the ledger: %w", err)
		}
	}
	if b != nil && before.same(want) && before.Version >= seen {
		return before, nil
	}
	if max(before.Version, seen) == math.MaxUint32 {
		return want, fmt.Errorf("there is no version after %d", uint32(math.MaxUint32))
	}
	want.Version = max(before.Version, seen) + 1
	b, err = json.Marshal(want)
	if err != nil {
		return want, err
	}
	return want, l.SetValue(valueOfPolicy, b)
}
