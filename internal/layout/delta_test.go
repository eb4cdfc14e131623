package layout

import (
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func TestDeltaKeys(t *testing.T) {
	n := DeltaName{Shard: 3, From: timegrid.Hour(498_000), To: timegrid.Hour(498_023), SHA256: identity.Sum([]byte("x"))}
	key := n.Key()
	if !strings.HasPrefix(key, RollupDeltas(3)) || !strings.HasPrefix(key, RollupPrefix) {
		t.Errorf("key %q", key)
	}
	if got, err := ParseRollupDelta(key); err != nil || got != n {
		t.Errorf("%+v %v, want %+v", got, err, n)
	}
	back := n
	back.From, back.To = n.To, n.From
	for _, bad := range []string{"", key + "x", strings.TrimSuffix(key, ".lmdelta"), strings.Replace(key, "_", "-", 1), strings.Replace(key, "shard=0003", "shard=3", 1), strings.ToUpper(key), back.Key(), RollupDeltas(3) + ".lmdelta"} {
		if _, err := ParseRollupDelta(bad); err == nil {
			t.Errorf("%q is taken for a key", bad)
		}
	}
}
