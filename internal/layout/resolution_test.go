package layout_test

import (
	"errors"
	"math"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func TestResolutionKeys(t *testing.T) {
	for _, n := range []uint64{1, 10, math.MaxUint64} {
		got, err := layout.ParseResolution(layout.Resolution(n))
		if err != nil || got != n {
			t.Errorf("%d: %d, %v", n, got, err)
		}
	}
	id, sum := identity.Batch{Agent: "a/b", Boot: "b", SeqStart: 5, SeqEnd: 14}, identity.Sum([]byte("frame"))
	key := layout.Settled(id, sum)
	gotID, gotSum, err := layout.ParseSettled(key)
	if err != nil || gotID != id || gotSum != sum {
		t.Errorf("%s: %v %s %v", key, gotID, gotSum, err)
	}
	parked := layout.Parked(id, sum)
	gotID, gotSum, err = layout.ParseParked(parked)
	if err != nil || gotID != id || gotSum != sum || parked == key {
		t.Errorf("%s: %v %s %v", parked, gotID, gotSum, err)
	}
	clash := layout.Clash(id.BootOf(), "spool/1")
	gotBoot, gotSum, err := layout.ParseClash(clash)
	if err != nil || gotBoot != id.BootOf() || gotSum != identity.Sum([]byte("spool/1")) {
		t.Errorf("%s: %v %s %v", clash, gotBoot, gotSum, err)
	}
	for _, bad := range []string{"", layout.ResolutionLogPrefix, layout.Resolution(0), layout.ResolutionLogPrefix + "1.json", layout.Resolution(1) + "x", layout.Quarantine(id, sum), key + "x", parked + "x", clash + "x", layout.ClashesOf(id.BootOf()), clash[:len(clash)-len(".json")]} {
		if _, err := layout.ParseResolution(bad); !errors.Is(err, layout.ErrNotAKey) {
			t.Errorf("resolution %q: %v", bad, err)
		}
		if _, _, err := layout.ParseSettled(bad); !errors.Is(err, layout.ErrNotAKey) {
			t.Errorf("settled %q: %v", bad, err)
		}
		if _, _, err := layout.ParseParked(bad); !errors.Is(err, layout.ErrNotAKey) {
			t.Errorf("parked %q: %v", bad, err)
		}
		if _, _, err := layout.ParseClash(bad); !errors.Is(err, layout.ErrNotAKey) {
			t.Errorf("clash %q: %v", bad, err)
		}
	}
}
