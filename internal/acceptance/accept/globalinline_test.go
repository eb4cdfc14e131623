package accept_test

import (
	"context"
	"fmt"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// saidClaims answers each step as told.
type saidClaims map[accept.ClaimStep]accept.ClaimAnswer

func (s saidClaims) Change(_ context.Context, c accept.ClaimChange) (accept.ClaimAnswer, error) {
	return s[c.Step], nil
}
func (saidClaims) Settle(accept.ClaimChange) {}

// TestGlobalInlineNeedsABlob: a collector whose records carry frames finds the record of one that writes blobs and has died. The
// blob that the record names is collected, and another object has generation 0: this call writes the frame.
func TestGlobalInlineNeedsABlob(t *testing.T) {
	a := submission(testID, "a")
	claim := accept.Claim{Identity: a.Identity, Hash: a.SHA256, ID: accept.ClaimID{1}, Home: "eu", Stamp: identity.Stamp{Epoch: 1, Fence: 2}}
	other := claim
	other.Hash = identity.Sum([]byte("other"))
	for name, c := range map[string]struct {
		says saidClaims
		want accept.Outcome
	}{
		"manifest": {saidClaims{accept.TakeClaim: {Outcome: accept.ClaimHeld, Claim: claim}, accept.CompleteClaim: {Outcome: accept.ClaimDecided, Claim: claim}}, accept.Duplicate},
		"conflict": {saidClaims{accept.TakeClaim: {Outcome: accept.ClaimConflict, Claim: other}}, accept.Conflict},
	} {
		s := mem.New(nil)
		put(t, s, layout.Blob(a.SHA256, 0), []byte("x"))
		global := func(inline int) *accept.Global {
			p := protocol(t, s, fmt.Sprint("c", inline), func(c *accept.Config) { c.Mode, c.InlineBelow = accept.ModeGlobal, inline })
			g, err := accept.NewGlobal(p, accept.GlobalConfig{Region: "eu", Claims: c.says})
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		if _, err := global(0).Accept(t.Context(), a); err != nil {
			t.Fatal(name, err)
		}
		condemn(t, s, a.SHA256, 1, true)
		mustAccept(t, global(1<<20), a, c.want)
		if !readable(t, s, a.Frame) {
			t.Errorf("%s: the bytes are gone", name)
		}
	}
}
