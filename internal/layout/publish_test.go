package layout

import (
	"errors"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

const sampleH = timegrid.Hour(498_000) // 2026-10-24T00

func TestRollupObjectsParse(t *testing.T) {
	for _, key := range []string{
		RollupChunk(timegrid.Raw, sampleH, "up", d, 0), RollupChunk(timegrid.OneHour, sampleH+5, "a.b", d, 65536), RollupChunk(timegrid.FiveMinutes, sampleH, MixedMetrics, d, 1),
		RollupIndex(sampleH, d, 0), RollupIndex(sampleH, d, 1<<32-1),
	} {
		n, err := ParseRollupObject(key)
		if err != nil || n.Key() != key || n.SHA256 != d || n.Index != strings.HasPrefix(key, IndexPrefix) {
			t.Errorf("%s: %+v, %v", key, n, err)
		}
		n.Generation++
		if n.Key() == key {
			t.Errorf("%s is the next generation of itself", key)
		}
	}
	chunk, index := RollupChunk(timegrid.Raw, sampleH, "up", d, 3), RollupIndex(sampleH, d, 0)
	for _, bad := range []string{
		"", RollupPrefix, IndexPrefix, chunk + "x", strings.Replace(chunk, "g3", "g03", 1), strings.Replace(chunk, "g3", "g0", 1), strings.Replace(chunk, "g3", "g4294967296", 1),
		strings.Replace(chunk, "=raw", "=2m", 1), strings.Replace(chunk, "metric=up/", "", 1), strings.Replace(chunk, "metric=up", "metric=", 1), strings.Replace(chunk, "metric=up", "up", 1),
		strings.Replace(chunk, "hour=00", "hour=24", 1), strings.Replace(index, "ba78", "BA78", 1), strings.Replace(index, ".lmindex", ".lmrollup", 1), BlockManifest(sampleH, 1, timegrid.Raw, 1),
		RollupPlan(sampleH, 1, 1),
	} {
		if n, err := ParseRollupObject(bad); !errors.Is(err, ErrNotAKey) {
			t.Errorf("%q: %+v, %v", bad, n, err)
		}
	}
}

func TestPlansParse(t *testing.T) {
	key := RollupPlan(sampleH, 7, 12)
	if h, s, gen, err := ParseRollupPlan(key); err != nil || h != sampleH || s != shard.ID(7) || gen != 12 {
		t.Error(h, s, gen, err)
	}
	for _, bad := range []string{"", PlansPrefix, key + "x", strings.Replace(key, "0000000012", "12", 1), strings.Replace(key, "0007", "7", 1), RollupConfigKey} {
		if _, _, _, err := ParseRollupPlan(bad); !errors.Is(err, ErrNotAKey) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestDelayedParse(t *testing.T) {
	due := time.UnixMilli(1795237506007).UTC()
	key := Delayed(due.Add(999*time.Microsecond), d)
	if key != "gc/v1/delayed/00000001795237506007-"+abc[:32]+".json" {
		t.Error(key)
	}
	if got, err := ParseDelayed(key); err != nil || got != due {
		t.Error(got, err)
	}
	if a, b := Delayed(time.Time{}, d), Delayed(due, d); a >= b || !strings.HasPrefix(a, DelayedPrefix+"00000000000000000000-") {
		t.Error(a, b)
	}
	for _, bad := range []string{"", DelayedPrefix, key + "x", strings.Replace(key, "0000000", "000000", 1), strings.Replace(key, "/0", "/+", 1), strings.Replace(key, "/0", "/-", 1), strings.Replace(key, "ba78", "BA78", 1)} {
		if _, err := ParseDelayed(bad); !errors.Is(err, ErrNotAKey) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseRollup(f *testing.F) {
	for _, key := range []string{RollupChunk(timegrid.Raw, sampleH, "up", d, 2), RollupIndex(sampleH, d, 0), RollupPlan(sampleH, 1, 2), Delayed(time.UnixMilli(5), d), BlockManifest(sampleH, 1, timegrid.Raw, 2)} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		again := key
		if n, err := ParseRollupObject(key); err == nil {
			again = n.Key()
		}
		if h, s, gen, err := ParseRollupPlan(key); err == nil {
			again = RollupPlan(h, s, gen)
		}
		if n, err := ParseBlockManifest(key); err == nil {
			again = n.Key()
		}
		if again != key {
			t.Errorf("%q became %q", key, again)
		}
		if due, err := ParseDelayed(key); err == nil && due.Before(time.UnixMilli(0)) {
			t.Errorf("%q is due at %v", key, due)
		}
	})
}

func TestOrdersParse(t *testing.T) {
	h := timegrid.HourStarting(time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC))
	key := RepairRequest(h, 7)
	if want := "rollup/v1/repair-requests/shard=0007/date=2026-11-21/hour=13.json"; key != want {
		t.Errorf("%q, want %q", key, want)
	}
	if got, s, err := ParseRepairRequest(key); err != nil || got != h || s != 7 {
		t.Errorf("%v, %v, %v", got, s, err)
	}
	for _, bad := range []string{"", RepairRequests(7), key + "x", "rollup/v1/repair-requests/shard=7/date=2026-11-21/hour=13.json",
		"rollup/v1/repair-requests/shard=0007/date=2026-11-21/hour=13/x.json", "rollup/v1/repair-requests/shard=0007/date=2026-11-21/hour=25.json"} {
		if _, _, err := ParseRepairRequest(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
