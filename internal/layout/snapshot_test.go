package layout

import (
	"errors"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func TestLiveKeysRoundTrip(t *testing.T) {
	d := identity.Sum([]byte("pack"))
	pack := LivePack(7, 12, d)
	if want := "live/v1/packs/shard=0007/00000000000000000012-" + d.String() + ".lmpack"; pack != want {
		t.Errorf("pack %q, want %q", pack, want)
	}
	if s, n, sum, err := ParseLivePack(pack); s != 7 || n != 12 || sum != d || err != nil {
		t.Errorf("ParseLivePack = %v, %d, %v, %v", s, n, sum, err)
	}
	snap := LiveSnapshot(7, 12)
	if want := "live/v1/snapshots/shard=0007/00000000000000000012.json"; snap != want {
		t.Errorf("snapshot %q, want %q", snap, want)
	}
	if s, n, err := ParseLiveSnapshot(snap); s != 7 || n != 12 || err != nil {
		t.Errorf("ParseLiveSnapshot = %v, %d, %v", s, n, err)
	}
	for _, bad := range []string{
		"", pack + "x", strings.Replace(pack, "0007", "7", 1), strings.Replace(pack, "-", "_", 1), strings.ToUpper(pack),
		snap, strings.Replace(pack, "packs", "snapshots", 1), strings.TrimSuffix(pack, ".lmpack"),
	} {
		if _, _, _, err := ParseLivePack(bad); !errors.Is(err, ErrNotAKey) {
			t.Errorf("ParseLivePack(%q): %v", bad, err)
		}
	}
	for _, bad := range []string{"", pack, snap + "x", strings.Replace(snap, "/0000", "/+000", 1), strings.TrimSuffix(snap, ".json"), strings.Replace(snap, "0007", "x", 1)} {
		if _, _, err := ParseLiveSnapshot(bad); !errors.Is(err, ErrNotAKey) {
			t.Errorf("ParseLiveSnapshot(%q): %v", bad, err)
		}
	}
}
