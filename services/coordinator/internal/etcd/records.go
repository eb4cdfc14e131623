package etcd

import (
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// Kinds of the values in etcd. None is exact: unknown fields are ignored, so that coordinators
// of two releases can share one etcd.
var (
	shardsKind   = record.Kind{Schema: "lightmetrics.etcd_shards.v1", Title: "number of shards in etcd", MaxBytes: maxValue}
	sessionKind  = record.Kind{Schema: "lightmetrics.etcd_session.v1", Title: "session in etcd", MaxBytes: maxValue}
	targetsKind  = record.Kind{Schema: "lightmetrics.etcd_targets.v1", Title: "targets in etcd", MaxBytes: maxValue}
	grantKind    = record.Kind{Schema: "lightmetrics.etcd_grant.v1", Title: "grant in etcd", MaxBytes: maxValue}
	epochKind    = record.Kind{Schema: "lightmetrics.etcd_epoch.v1", Title: "epoch of a shard in etcd", MaxBytes: maxValue}
	movesKind    = record.Kind{Schema: "lightmetrics.etcd_moves.v1", Title: "moves in etcd", MaxBytes: maxValue}
	messageKind  = record.Kind{Schema: "lightmetrics.etcd_message.v1", Title: "message in etcd", MaxBytes: maxValue}
	hiddenKind   = record.Kind{Schema: "lightmetrics.etcd_hidden.v1", Title: "hidden message in etcd", MaxBytes: maxValue}
	rowKind      = record.Kind{Schema: "lightmetrics.etcd_row.v1", Title: "row in etcd", MaxBytes: maxValue}
	holdKind     = record.Kind{Schema: "lightmetrics.etcd_hold.v1", Title: "hold in etcd", MaxBytes: maxValue}
	logKind      = record.Kind{Schema: "lightmetrics.etcd_log.v1", Title: "log in etcd", MaxBytes: maxValue}
	refsKind     = record.Kind{Schema: "lightmetrics.etcd_references.v1", Title: "reference set in etcd", MaxBytes: maxValue}
	refEpochKind = record.Kind{Schema: "lightmetrics.etcd_reference_epoch.v1", Title: "epoch of reference sets in etcd", MaxBytes: maxValue}
)

// maxValue is above what etcd takes in one request.
const maxValue = 2 << 20

// value is what a key holds.
type value interface{ kind() record.Kind }

func (shardsRecord) kind() record.Kind  { return shardsKind }
func (sessionRecord) kind() record.Kind { return sessionKind }
func (targetsRecord) kind() record.Kind { return targetsKind }
func (grantRecord) kind() record.Kind   { return grantKind }
func (epochRecord) kind() record.Kind   { return epochKind }
func (movesRecord) kind() record.Kind   { return movesKind }
func (message) kind() record.Kind       { return messageKind }
func (hidden) kind() record.Kind        { return hiddenKind }
func (rowRecord) kind() record.Kind     { return rowKind }
func (hold) kind() record.Kind          { return holdKind }
func (logRecord) kind() record.Kind     { return logKind }
func (base) kind() record.Kind          { return refsKind }
func (refEpoch) kind() record.Kind      { return refEpochKind }

func encode(v value) string { return string(v.kind().Marshal(v)) }

// decode reads the value of a key. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func decode[V value](v *kv, to *V) error {
	k := (*to).kind()
	return k.Wrap(string(v.Key), k.Unmarshal(v.Value, to))
}

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

// movesRecord are the last changes of an assignment.
type movesRecord struct {
	Moves []Move `json:"moves"`
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
	// The capacity is cut so that append copies: the slice belongs to a state that others read.
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

// termBits: a fence is the leader's term above this many bits of etcd's revision.
const termBits = 40

func fence(term uint64, modRevision int64) ownership.Fence {
	return ownership.Fence(term<<termBits | uint64(modRevision)&(1<<termBits-1))
}
