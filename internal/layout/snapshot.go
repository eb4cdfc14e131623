package layout

import (
	"fmt"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Prefixes of live-state snapshots.
const (
	LivePrefix          = "live/v1/"
	LivePacksPrefix     = LivePrefix + "packs/"
	LiveSnapshotsPrefix = LivePrefix + "snapshots/"
)

// LivePack is the key of a pack of frames, written for snapshot number of the shard; d is
// the hash of its bytes.
func LivePack(s shard.ID, number uint64, d identity.Digest) string {
	return LivePacks(s) + fmt.Sprintf("%020d-%s.lmpack", number, d)
}

// LivePacks is the prefix of a shard's packs; it ends in a slash.
func LivePacks(s shard.ID) string { return LivePacksPrefix + "shard=" + s.String() + "/" }

// ParseLivePack reads the key of a pack.
func ParseLivePack(key string) (s shard.ID, number uint64, d identity.Digest, err error) {
	s, file, err := cutShard(key, LivePacksPrefix)
	digits, sum, ok := strings.Cut(strings.TrimSuffix(file, ".lmpack"), "-")
	if err != nil || !ok {
		return 0, 0, identity.Digest{}, notAKey(key, "live packs")
	}
	number, err = strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, 0, identity.Digest{}, notAKey(key, "live packs")
	}
	if d, err = identity.ParseDigest(sum); err != nil || LivePack(s, number, d) != key {
		return 0, 0, identity.Digest{}, notAKey(key, "live packs")
	}
	return s, number, d, nil
}

// LiveSnapshot is the key of a shard's snapshot; its creation publishes it as the newest.
func LiveSnapshot(s shard.ID, number uint64) string {
	return LiveSnapshots(s) + fmt.Sprintf("%020d.json", number)
}

// LiveSnapshots is the prefix of a shard's snapshots; it ends in a slash.
func LiveSnapshots(s shard.ID) string { return LiveSnapshotsPrefix + "shard=" + s.String() + "/" }

// ParseLiveSnapshot reads the key of a snapshot.
func ParseLiveSnapshot(key string) (s shard.ID, number uint64, err error) {
	s, file, err := cutShard(key, LiveSnapshotsPrefix)
	if err != nil {
		return 0, 0, notAKey(key, "live snapshots")
	}
	number, err = strconv.ParseUint(strings.TrimSuffix(file, ".json"), 10, 64)
	if err != nil || LiveSnapshot(s, number) != key {
		return 0, 0, notAKey(key, "live snapshots")
	}
	return s, number, nil
}

// cutShard splits "<prefix>shard=SSSS/rest".
func cutShard(key, prefix string) (shard.ID, string, error) {
	rest, ok := strings.CutPrefix(key, prefix+"shard=")
	name, file, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 {
		return 0, "", ErrNotAKey
	}
	s, err := shard.Parse(name)
	return s, file, err
}
