package etcd

import (
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

type kv = mvccpb.KeyValue

// keys builds every key of the coordinator in etcd.
type keys struct{ prefix string }

func (k keys) ownership() string { return k.prefix + "/ownership/v1/" }
func (k keys) election() string  { return k.prefix + "/coordinator/v1/leader" }

func (k keys) kind(kind ownership.Kind) string    { return k.ownership() + string(kind) + "/" }
func (k keys) shards(kind ownership.Kind) string  { return k.kind(kind) + "shards" }
func (k keys) targets(kind ownership.Kind) string { return k.kind(kind) + "targets" }
func (k keys) moves(kind ownership.Kind) string   { return k.kind(kind) + "moves" }

func (k keys) session(kind ownership.Kind, s ownership.Session) string {
	return fmt.Sprintf("%ssessions/%016x", k.kind(kind), uint64(s))
}

func (k keys) grant(kind ownership.Kind, s shard.ID) string {
	return k.kind(kind) + "grants/" + s.String()
}

func (k keys) epoch(kind ownership.Kind, s shard.ID) string {
	return k.kind(kind) + "epochs/" + s.String()
}

// family of a key below a kind.
type family string

const (
	familyShards   family = "shards"
	familyTargets  family = "targets"
	familyMoves    family = "moves"
	familySessions family = "sessions"
	familyGrants   family = "grants"
	familyEpochs   family = "epochs"
)

// parse takes a key below ownership() apart; false for one that is not ours.
func (k keys) parse(key string) (ownership.Kind, family, string, bool) {
	rest, ok := strings.CutPrefix(key, k.ownership())
	if !ok {
		return "", "", "", false
	}
	parts := strings.SplitN(rest, "/", 3)
	kind, err := ownership.ParseKind(parts[0])
	if err != nil || len(parts) < 2 {
		return "", "", "", false
	}
	name := ""
	if len(parts) == 3 {
		name = parts[2]
	}
	return kind, family(parts[1]), name, true
}

func parseSession(name string) (ownership.Session, error) {
	n, err := strconv.ParseUint(name, 16, 64)
	if err != nil || len(name) != 16 {
		return 0, fmt.Errorf("%q is not a session", name)
	}
	return ownership.Session(n), nil
}
