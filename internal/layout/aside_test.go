package layout

import (
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

func TestAsideKeys(t *testing.T) {
	h := timegrid.Hour(498_000)
	key := RollupAside(h, 3, "a/b é")
	if !strings.HasPrefix(key, RollupAsides(3)) || strings.Count(key, "/") != 6 {
		t.Errorf("key %q", key)
	}
	gh, s, agent, err := ParseRollupAside(key)
	if err != nil || gh != h || s != 3 || agent != "a/b é" {
		t.Errorf("%v %v %q %v", gh, s, agent, err)
	}
	for _, bad := range []string{"", key + "x", strings.Replace(key, "agent=", "agent=AB", 1), strings.Replace(key, "aside", "orders", 1), RepairRequest(h, 3), strings.TrimSuffix(key, ".json")} {
		if _, _, _, err := ParseRollupAside(bad); err == nil {
			t.Errorf("%q is taken for a key", bad)
		}
	}
	if RollupAttempt(h, 3) == RollupAttempt(h, 4) || RollupAttempt(h, shard.ID(3)) == RollupAttempt(h+1, 3) {
		t.Error("attempts of two hours share a key")
	}
}
