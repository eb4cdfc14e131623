package main

import (
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// TestAuthorityMoves: show finds that a copy is not the authority, move makes it that, after a look
// that changes nothing.
func TestAuthorityMoves(t *testing.T) {
	p := newPlant(t)
	record, _, err := p.store.Get(t.Context(), layout.AuthorityKey, objstore.GetOptions{})
	p.must(err)
	copied := strings.Replace(p.url, "/team/", "/copy/", 1)
	there, err := openBucket(t.Context(), copied)
	p.must(err)
	if code := p.lmctl(nil, "authority", "show", copied); code != cli.ExitFindings {
		t.Errorf("a prefix without a record: %d", code)
	}
	_, err = there.Create(t.Context(), layout.AuthorityKey, record, objstore.PutOptions{})
	p.must(err)

	var shown authorityView
	if code := p.lmctl(&shown, "authority", "show", p.url); code != 0 || !shown.Bound || shown.Bucket != "metrics" || shown.Prefix != "team/" || shown.Reason != "" || shown.BoundAt.IsZero() {
		t.Errorf("the authority: %d, %+v", code, shown)
	}
	if code := p.lmctl(&shown, "authority", "show", copied); code != cli.ExitFindings || shown.Reason != "OTHER_PREFIX" {
		t.Errorf("the copy: %d, %+v", code, shown)
	}
	var checked fsckView
	if code := p.lmctl(&checked, "fsck", copied); code != 0 || checked.AuthorityID != "authority" || checked.Copy != "OTHER_PREFIX" {
		t.Errorf("fsck of the copy: %d, %+v", code, checked)
	}
	for _, wrong := range [][]string{nil, {"--yes", "--dry-run"}} {
		if code := p.lmctl(nil, append([]string{"authority", "move", copied}, wrong...)...); code != cli.ExitUsage {
			t.Errorf("move with %v: %d", wrong, code)
		}
	}
	for _, key := range []string{layout.JournalBeginKey, layout.AuditPrefix + "full/x.json", layout.LedgersKey, layout.LedgersPrefix + "x.lml", layout.RollupProgress(1), layout.JournalHeadKey} {
		_, err = there.Create(t.Context(), key, []byte("{}"), objstore.PutOptions{})
		p.must(err)
	}
	var moved authorityMoveView
	if code := p.lmctl(&moved, "authority", "move", copied, "--dry-run"); code != 0 || moved.Moved || moved.From.Prefix != "team/" || moved.To.Prefix != "copy/" || len(moved.Deleted) != 4 {
		t.Errorf("dry run: %d, %+v", code, moved)
	}
	if code := p.lmctl(nil, "authority", "show", copied); code != cli.ExitFindings {
		t.Errorf("the dry run changed the record: %d", code)
	}
	if code := p.lmctl(&moved, "authority", "move", copied, "--yes"); code != 0 || !moved.Moved || moved.To.Prefix != "copy/" || !moved.To.CreatedAt.Equal(shown.CreatedAt) {
		t.Errorf("move: %d, %+v", code, moved)
	}
	if code := p.lmctl(&shown, "authority", "show", copied); code != 0 || shown.Prefix != "copy/" {
		t.Errorf("after the move: %d, %+v", code, shown)
	}
	// What says of the original that everything was seen is gone; what was copied in order stays.
	for key, want := range map[string]bool{layout.JournalBeginKey: false, layout.AuditPrefix + "full/x.json": false, layout.LedgersKey: false,
		layout.LedgersPrefix + "x.lml": false, layout.RollupProgress(1): true, layout.JournalHeadKey: true} {
		if _, err := there.Head(t.Context(), key); (err == nil) != want {
			t.Errorf("%s: %v", key, err)
		}
	}
	if c := claims(accept.Authority{Problem: &accept.AuthorityError{Reason: accept.AuthorityReplica}}); !slices.Contains(c, layout.RollupProgressPrefix) {
		t.Errorf("of a replica %q is deleted", c)
	}
	// The objects that were replicated since are this authority's from then on.
	if code := p.lmctl(&moved, "authority", "move", copied, "--yes"); code != 0 || len(moved.Deleted) != 0 || moved.To.BoundAt.Before(shown.BoundAt) || !moved.To.CreatedAt.Equal(shown.CreatedAt) {
		t.Errorf("a second move: %d, %+v", code, moved)
	}
}
