package layout

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func TestRollupKeys(t *testing.T) {
	h := timegrid.HourStarting(time.Date(2026, 11, 21, 7, 59, 0, 0, time.UTC))
	d := identity.Sum([]byte("abc"))
	for got, want := range map[string]string{
		BlockManifest(h, 7, timegrid.FiveMinutes, 3):              "manifests/v1/date=2026-11-21/hour=07/0007-5m-0000000003.json",
		RollupChunk(timegrid.Raw, h, MixedMetrics, d, 0):          "rollup/v1/window=raw/date=2026-11-21/hour=07/metric=_mixed/" + abc + ".lmrollup.zst",
		RollupChunk(timegrid.OneHour, h, "node_load1", d, 2):      "rollup/v1/window=1h/date=2026-11-21/hour=07/metric=node_load1/" + abc + ".g2.lmrollup.zst",
		RollupChunk(timegrid.OneMinute, h, "a/../b é", d, 0):      "rollup/v1/window=1m/date=2026-11-21/hour=07/metric=x-612f2e2e2f6220c3a9/" + abc + ".lmrollup.zst",
		RollupChunk(timegrid.OneMinute, h, "_mixed_drinks", d, 0): "rollup/v1/window=1m/date=2026-11-21/hour=07/metric=x-5f6d697865645f6472696e6b73/" + abc + ".lmrollup.zst",
		RollupIndex(h, d, 0): "index/v1/date=2026-11-21/hour=07/" + abc + ".lmindex.zst",
		RollupPlan(h, 7, 3):  "rollup/v1/plans/shard=0007/date=2026-11-21/hour=07/0000000003.json",
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestLongMetricNamesKeepKeysShort(t *testing.T) {
	key := RollupChunk(timegrid.Raw, 0, strings.Repeat("é", 5000), identity.Digest{}, 0)
	if len(key) > 1024 {
		t.Errorf("a key of %d bytes", len(key))
	}
}

func TestRollupParsersInvertBuilders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := BlockName{
			Hour:       timegrid.Hour(rapid.Int64Range(0, 2_000_000).Draw(t, "hour")),
			Shard:      shard.ID(rapid.Uint32Range(0, shard.Max-1).Draw(t, "shard")),
			Resolution: rapid.SampledFrom(timegrid.Resolutions()).Draw(t, "window"),
			Generation: rapid.Uint64Range(1, 1<<40).Draw(t, "generation"),
		}
		if got, err := ParseBlockManifest(n.Key()); err != nil || got != n {
			t.Fatalf("ParseRollupSet(%s) = %+v, %v", n.Key(), got, err)
		}
	})
}

func TestRollupParsersRefuse(t *testing.T) {
	for _, key := range []string{
		"", "manifests/v1/", "manifests/v1/date=2026-11-21/hour=07/0007-5m-3.json",
		"manifests/v1/date=2026-11-21/hour=24/0007-5m-0000000003.json",
		"manifests/v1/date=2026-13-21/hour=07/0007-5m-0000000003.json",
		"manifests/v1/date=2026-11-21/hour=07/0007-2m-0000000003.json",
		"manifests/v1/date=2026-11-21/hour=07/9999-5m-0000000003.json",
		"manifests/v1/date=2026-11-21/hour=07/0007-5m-0000000003.json/x",
		"manifests/v1/date=2026-11-21/hour=07/0007-5m-+000000003.json",
	} {
		if n, err := ParseBlockManifest(key); err == nil {
			t.Errorf("ParseRollupSet(%q) = %+v", key, n)
		}
	}
}

// A metric's directory belongs to it alone, up to the length that is cut.
func TestMetricDirectoriesAreDistinct(t *testing.T) {
	seen := map[string]string{}
	for _, m := range []string{"a", "x-61", "_mixed", "_mixed_", "x_61", "", "\x00", "A"} {
		dir := metricDir(m)
		if other, ok := seen[dir]; ok {
			t.Errorf("%q and %q share %s", m, other, dir)
		}
		seen[dir] = m
		for _, c := range dir {
			if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:-", c) {
				t.Errorf("%q gives %q", m, dir)
			}
		}
	}
}
