package accept_test

import (
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

// "Exists" is no proof, for ever or once: nothing is answered of a record that is not there.
func TestSaidToExistAndNotThere(t *testing.T) {
	for _, c := range []struct {
		prefix, variant string
		want            accept.Outcome
	}{
		{layout.BootsPrefix, "a", accept.Accepted},
		{layout.AcceptedPrefix, "a", accept.Accepted},
		{layout.QuarantinePrefix, "b", accept.Conflict},
	} {
		for _, times := range []int{1, 1 << 30} {
			s := mem.New(nil)
			if c.want == accept.Conflict {
				mustAccept(t, protocol(t, s, "c0", nil), submission(testID, "a"), accept.Accepted)
			}
			left := times
			h := &hooked{Store: s, before: func(_ int, op, key string) error {
				if op == "create" && strings.HasPrefix(key, c.prefix) && left > 0 {
					left--
					return objstore.ErrExists
				}
				return nil
			}}
			res, err := protocol(t, h, "c1", nil).Accept(t.Context(), submission(testID, c.variant))
			if times > 1 {
				wantRetry(t, err, accept.ReasonStoreUnavailable)
				continue
			}
			if err != nil || res.Outcome != c.want {
				t.Fatalf("%s: %s, %v", c.prefix, res.Outcome, err)
			}
			if !exists(t, s, layout.Boot(testID.BootOf())) || !exists(t, s, res.ManifestKey) ||
				c.want == accept.Conflict && !exists(t, s, res.QuarantineKey) {
				t.Errorf("%s: %s is answered, and its records are not there", c.prefix, res.Outcome)
			}
		}
	}
}

// A record that is there and damaged at rest is there: its key says what matters.
func TestDamagedQuarantineRecordIsThere(t *testing.T) {
	s := mem.New(nil)
	mustAccept(t, protocol(t, s, "c0", nil), submission(testID, "a"), accept.Accepted)
	res := mustAccept(t, protocol(t, s, "c0", nil), submission(testID, "b"), accept.Conflict)
	h := &hooked{Store: s, before: func(_ int, op, key string) error {
		if op == "get" && key == res.QuarantineKey {
			return objstore.ErrChecksum
		}
		return nil
	}}
	mustAccept(t, protocol(t, h, "c1", nil), submission(testID, "b"), accept.Conflict)
}
