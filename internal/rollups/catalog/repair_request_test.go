package catalog

import (
	"errors"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

func TestOrdersRoundTrip(t *testing.T) {
	h := timegrid.Hour(498_000)
	o := RepairRequest{AuthorityID: "a", Shard: 3, Hour: h, Above: 4, Damaged: []string{layout.BlockManifest(h, 3, timegrid.Raw, 4)}, Reason: "damaged", By: "lmctl", RequestedAt: 5}
	b := o.Marshal()
	got, err := ParseRepairRequest(o.Key(), b)
	if err != nil || string(got.Marshal()) != string(b) {
		t.Fatalf("%+v, %v", got, err)
	}
	other := o
	other.Shard = 2
	for name, bad := range map[string]string{
		"empty": "", "cut": string(b[:len(b)-1]), "space": string(b) + " ", "of another": string(other.Marshal()),
		"schema":     strings.Replace(string(b), "request.v1", "requests.v1", 1),
		"above":      strings.Replace(string(b), `"above":4`, `"above":0`, 1),
		"generation": strings.Replace(string(b), `"above":4`, `"above":3`, 1),
		"reason":     strings.Replace(string(b), `"reason":"damaged"`, `"reason":""`, 1),
	} {
		if _, err := ParseRepairRequest(o.Key(), []byte(bad)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
