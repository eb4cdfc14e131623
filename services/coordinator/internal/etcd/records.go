package etcd

import (
	"encoding/json"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// Values in etcd are JSON. Unknown fields are let be, so that coordinators of two
// versions can share one etcd.

// shardsRecord fixes the number of shards of a kind.
type shardsRecord struct {
	Shards uint32 `json:"shards"`
}

// sessionRecord is a live worker; its key is attached to the session's lease.
type sessionRecord struct {
	Worker    string `json:"worker"`
	Address   string `json:"address,omitempty"`
	Principal string `json:"principal,omitempty"`
	// Nonce makes the token of the session one that can't be guessed.
	Nonce    string `json:"nonce"`
	SinceNS  int64  `json:"since_ns"`
	Draining bool   `json:"draining,omitempty"`
}

// targetsRecord is the assignment: Owners[shard] is an index into Workers, or -1.
type targetsRecord struct {
	Workers []string `json:"workers"`
	Owners  []int    `json:"owners"`
}

// grantRecord says who holds a shard; its key is attached to the session's lease.
type grantRecord struct {
	Worker  string            `json:"worker"`
	Session ownership.Session `json:"session"`
	Epoch   ownership.Epoch   `json:"epoch"`
	Term    uint64            `json:"term"`
}

// epochRecord is the last grant of a shard; it outlives the grant.
type epochRecord struct {
	Epoch  ownership.Epoch `json:"epoch"`
	Worker string          `json:"worker"`
	AtNS   int64           `json:"at_ns"`
}

// Move is one change of an assignment.
type Move struct {
	AtNS    int64      `json:"at_ns"`
	Joined  []string   `json:"joined,omitempty"`
	Left    []string   `json:"left,omitempty"`
	Workers int        `json:"workers"`
	Shards  []shard.ID `json:"shards"`
}

// Bounds of what is kept of moves: a value in etcd must stay small.
const (
	maxMoves      = 100
	maxMovedNames = 8192
)

// addMove puts a move at the end and lets the oldest go.
func addMove(moves []Move, m Move) []Move {
	moves = append(moves[:len(moves):len(moves)], m)
	names := 0
	for i := len(moves) - 1; i >= 0; i-- {
		names += len(moves[i].Shards) + len(moves[i].Joined) + len(moves[i].Left)
		if i < len(moves)-1 && (names > maxMovedNames || len(moves)-i > maxMoves) {
			return moves[i+1:]
		}
	}
	return moves
}

func packTargets(targets []string) targetsRecord {
	r := targetsRecord{Owners: make([]int, len(targets))}
	index := map[string]int{}
	for i, w := range targets {
		if w == "" {
			r.Owners[i] = -1
			continue
		}
		n, ok := index[w]
		if !ok {
			n = len(r.Workers)
			index[w], r.Workers = n, append(r.Workers, w)
		}
		r.Owners[i] = n
	}
	return r
}

func (r targetsRecord) unpack(shards uint32) ([]string, error) {
	if len(r.Owners) != int(shards) {
		return nil, fmt.Errorf("targets of %d shards; there are %d", len(r.Owners), shards)
	}
	out := make([]string, len(r.Owners))
	for i, n := range r.Owners {
		if n < -1 || n >= len(r.Workers) {
			return nil, fmt.Errorf("target %d of shard %d; there are %d workers", n, i, len(r.Workers))
		}
		if n >= 0 {
			out[i] = r.Workers[n]
		}
	}
	return out, nil
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // structs of strings and numbers
	}
	return string(b)
}

// termBits: a fence is the leader's term above this many bits of etcd's revision.
const termBits = 40

func fence(term uint64, modRevision int64) ownership.Fence {
	return ownership.Fence(term<<termBits | uint64(modRevision)&(1<<termBits-1))
}
