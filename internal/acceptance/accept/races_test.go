package accept_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
)

func TestAcceptedDuplicateConflict(t *testing.T) {
	s := mem.New(nil)
	p, q := protocol(t, s, "c1", nil), protocol(t, s, "c2", nil)
	a, b := submission(testID, "a"), submission(testID, "b")

	first := mustAccept(t, p, a, accept.Accepted)
	dup := mustAccept(t, q, a, accept.Duplicate)
	if !bytes.Equal(first.ManifestBytes, dup.ManifestBytes) || first.Manifest != dup.Manifest || dup.ManifestKey != layout.Accepted(testID) {
		t.Errorf("the duplicate does not show the manifest that was there")
	}
	lost := mustAccept(t, q, b, accept.Conflict)
	if lost.Manifest != first.Manifest || lost.QuarantineKey != layout.Quarantine(testID, b.SHA256) {
		t.Errorf("conflict shows %+v", lost)
	}
	raw, _, err := s.Get(t.Context(), lost.QuarantineKey, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := accept.ParseConflictRecord(raw)
	if err != nil || rec.AcceptedSHA256 != a.SHA256 || rec.SubmittedSHA256 != b.SHA256 || rec.CollectorID != "c2" ||
		rec.AcceptedBlobKey != layout.Blob(a.SHA256, 0) || rec.SubmittedBlobKey != layout.Blob(b.SHA256, 0) {
		t.Errorf("quarantine record is %+v, %v", rec, err)
	}
	mustAccept(t, p, b, accept.Conflict) // again: the record exists
	if !readable(t, s, a.Frame) || !readable(t, s, b.Frame) {
		t.Error("a frame is not readable")
	}
}

func TestCommonPathIsThreeRequests(t *testing.T) {
	h := &hooked{Store: mem.New(nil)}
	p := protocol(t, h, "c1", nil)
	mustAccept(t, p, submission(testID, "a"), accept.Accepted)
	next := testID
	next.SeqStart, next.SeqEnd = 20, 29
	h.ops = nil
	sub := submission(next, "a")
	mustAccept(t, p, sub, accept.Accepted)
	want := []string{"create " + layout.Blob(sub.SHA256, 0), "create " + layout.Accepted(next), "get " + layout.Condemned(sub.SHA256, 0)}
	if got := strings.Join(h.ops, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("requests:\n%s", got)
	}
}

// A collector crashed, its blob was collected, then its manifest landed; the retry finds "same hash".
func TestRaceManifestLandsAfterItsBlobWasCollected(t *testing.T) {
	s := mem.New(nil)
	sub := submission(testID, "a")
	p := protocol(t, s, "c1", nil)
	mustAccept(t, p, sub, accept.Accepted)
	condemn(t, s, sub.SHA256, 0, true)
	res := mustAccept(t, protocol(t, s, "c2", nil), sub, accept.Duplicate)
	if res.Manifest.RawBlobKey != layout.Blob(sub.SHA256, 0) {
		t.Error("the manifest changed")
	}
	// The delete may come once more: generation 0 is nothing to rely on.
	condemn(t, s, sub.SHA256, 0, true)
	if !readable(t, s, sub.Frame) {
		t.Error("no generation is left")
	}
}

// An old orphan is found to exist, and is condemned and deleted before the manifest is there.
func TestRaceOrphanReusedWhileCollected(t *testing.T) {
	s := mem.New(nil)
	sub := submission(testID, "a")
	put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
	h := &hooked{Store: s, before: func(_ int, op, key string) error {
		if op == "create" && strings.HasPrefix(key, layout.AcceptedPrefix) {
			condemn(t, s, sub.SHA256, 0, true)
		}
		return nil
	}}
	mustAccept(t, protocol(t, h, "c1", nil), sub, accept.Accepted)
	if !exists(t, s, layout.Blob(sub.SHA256, 1)) || !readable(t, s, sub.Frame) {
		t.Error("generation 1 was not written")
	}
}

// A collector sleeps for days between blob and manifest, and a delete that timed out lands after the reply.
func TestRaceSleepAndLateDelete(t *testing.T) {
	s := mem.New(nil)
	sub := submission(testID, "a")
	h := &hooked{Store: s, after: func(_ int, op, key string) error {
		if op == "create" && strings.HasPrefix(key, layout.RawBlobsPrefix) && !exists(t, s, layout.Condemned(sub.SHA256, 1)) {
			_, gen, _ := layout.ParseBlob(key)
			condemn(t, s, sub.SHA256, gen, false) // generations 0 and 1 fall
		}
		return nil
	}}
	mustAccept(t, protocol(t, h, "c1", nil), sub, accept.Accepted)
	condemn(t, s, sub.SHA256, 0, true)
	condemn(t, s, sub.SHA256, 1, true)
	if !readable(t, s, sub.Frame) {
		t.Error("the late deletes took the last generation")
	}
}

// The existing generation vanishes between "exists" and the look: it is not written again.
func TestRaceGoneGenerationIsNotReused(t *testing.T) {
	s := mem.New(nil)
	sub := submission(testID, "a")
	put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
	h := &hooked{Store: s, before: func(_ int, op, key string) error {
		if op == "head" {
			condemn(t, s, sub.SHA256, 0, true)
		}
		return nil
	}}
	res := mustAccept(t, protocol(t, h, "c1", nil), sub, accept.Accepted)
	if res.Manifest.RawBlobKey != layout.Blob(sub.SHA256, 1) || exists(t, s, layout.Blob(sub.SHA256, 0)) {
		t.Errorf("relies on %s", res.Manifest.RawBlobKey)
	}
}

// The loser's blob is collected while it is being quarantined.
func TestRaceLoserCollectedWhileQuarantined(t *testing.T) {
	s := mem.New(nil)
	mustAccept(t, protocol(t, s, "c1", nil), submission(testID, "a"), accept.Accepted)
	sub := submission(testID, "b")
	h := &hooked{Store: s, before: func(_ int, op, key string) error {
		if op == "create" && strings.HasPrefix(key, layout.QuarantinePrefix) {
			condemn(t, s, sub.SHA256, 0, true)
		}
		return nil
	}}
	mustAccept(t, protocol(t, h, "c2", nil), sub, accept.Conflict)
	if !readable(t, s, sub.Frame) {
		t.Error("the loser's bytes are gone")
	}
}

// The marker is read after the manifest, and after the quarantine record, on every path.
func TestMarkerIsReadLast(t *testing.T) {
	s := mem.New(nil)
	h := &hooked{Store: s}
	p := protocol(t, h, "c1", nil)
	for _, c := range []struct {
		variant string
		want    accept.Outcome
	}{{"a", accept.Accepted}, {"a", accept.Duplicate}, {"b", accept.Conflict}} {
		h.ops = nil
		mustAccept(t, p, submission(testID, c.variant), c.want)
		if last := h.ops[len(h.ops)-1]; !strings.HasPrefix(last, "get "+layout.CondemnedPrefix) {
			t.Errorf("%s ends with %q", c.want, last)
		}
	}
}

// A marker that can't be read is not an absent one, and one of any content condemns.
func TestMarkerInDoubt(t *testing.T) {
	s := mem.New(nil)
	sub := submission(testID, "a")
	h := &hooked{Store: s, before: func(_ int, _, key string) error {
		if strings.HasPrefix(key, layout.CondemnedPrefix) {
			return objstore.ErrUnavailable
		}
		return nil
	}}
	_, err := protocol(t, h, "c1", nil).Accept(t.Context(), sub)
	wantRetry(t, err, accept.ReasonStoreUnavailable)
	put(t, s, layout.Condemned(sub.SHA256, 0), []byte("{"))
	mustAccept(t, protocol(t, s, "c2", nil), sub, accept.Duplicate)
	if !exists(t, s, layout.Blob(sub.SHA256, 1)) {
		t.Error("a marker that does not parse was passed over")
	}
}

// A lost 200, created again, gives 412 on our own write.
func TestRaceLostAnswerIsOurOwn(t *testing.T) {
	s := mem.New(nil)
	lost := false
	h := &hooked{Store: s, after: func(_ int, op, key string) error {
		if op == "create" && strings.HasPrefix(key, layout.AcceptedPrefix) && !lost {
			lost = true
			return objstore.ErrUnknown
		}
		return nil
	}}
	own := 0
	p := protocol(t, h, "c1", func(c *accept.Config) { c.Events.OwnWrite = func(string) { own++ } })
	mustAccept(t, p, submission(testID, "a"), accept.Accepted)
	if own != 1 {
		t.Errorf("%d own writes seen, want 1", own)
	}
}

// Two calls of one collector have two attempt ids: only one of them is told accepted.
func TestAttemptIDIsPerCall(t *testing.T) {
	s := mem.New(nil)
	p := protocol(t, s, "c1", nil)
	sub := submission(testID, "a")
	first := mustAccept(t, p, sub, accept.Accepted)
	mustAccept(t, p, sub, accept.Duplicate)
	other := testID
	other.SeqStart, other.SeqEnd = 100, 100
	if second := mustAccept(t, p, submission(other, "a"), accept.Accepted); second.Manifest.AttemptID == first.Manifest.AttemptID {
		t.Error("two calls share an attempt id")
	}
}

// A timeout, then GET says 404, then the write lands: the 404 was not final.
func TestRaceNotFoundAfterUnknownIsNotFinal(t *testing.T) {
	s := mem.New(nil)
	creates, gets := 0, 0
	h := &hooked{Store: s}
	h.before = func(_ int, op, key string) error {
		if !strings.HasPrefix(key, layout.AcceptedPrefix) {
			return nil
		}
		switch {
		case op == "get":
			gets++
			if gets == 1 {
				return objstore.ErrNotFound // a stale view of the write in flight
			}
		case op == "create":
			creates++
			if creates == 1 { // in flight: it lands before the second create
				return objstore.ErrUnknown
			}
			if creates == 2 {
				b := submission(testID, "b") // another collector was first
				mustAccept(t, protocol(t, s, "c2", nil), b, accept.Accepted)
			}
		}
		return nil
	}
	res := mustAccept(t, protocol(t, h, "c1", nil), submission(testID, "a"), accept.Conflict)
	if creates < 3 || gets < 2 {
		t.Errorf("%d creates and %d reads: the 404 was believed (%s)", creates, gets, res.Manifest.FrameSHA256)
	}
}

// Nothing is cleaned up, whatever the outcome: the protocol has no delete, and what is unknown stays.
func TestUnknownLeavesEverything(t *testing.T) {
	s := mem.New(nil)
	h := &hooked{Store: s, after: func(_ int, op, key string) error {
		if op == "create" && strings.HasPrefix(key, layout.AcceptedPrefix) {
			return objstore.ErrUnknown
		}
		return nil
	}, before: func(_ int, op, key string) error {
		if op == "get" && strings.HasPrefix(key, layout.AcceptedPrefix) {
			return objstore.ErrUnavailable
		}
		return nil
	}}
	sub := submission(testID, "a")
	_, err := protocol(t, h, "c1", nil).Accept(t.Context(), sub)
	wantRetry(t, err, accept.ReasonStoreUnavailable)
	if !exists(t, s, layout.Accepted(testID)) || !readable(t, s, sub.Frame) {
		t.Error("something is missing")
	}
	mustAccept(t, protocol(t, s, "c2", nil), sub, accept.Duplicate)
}

// noChecksum is a store that keeps none.
type noChecksum struct{ accept.Store }

func (n noChecksum) Head(ctx context.Context, key string) (objstore.Info, error) {
	i, err := n.Store.Head(ctx, key)
	i.SHA256 = [32]byte{}
	return i, err
}

// An existing blob is truncated, or garbage of the right size.
func TestRaceExistingBlobIsGarbage(t *testing.T) {
	sub := submission(testID, "a")
	garbage := bytes.Repeat([]byte("x"), len(sub.Frame))
	for name, body := range map[string][]byte{"truncated": sub.Frame[:3], "garbage": garbage, "right": sub.Frame, "longer": append(bytes.Clone(sub.Frame), 1)} {
		for _, checksum := range []bool{true, false} {
			s := mem.New(nil)
			put(t, s, layout.Blob(sub.SHA256, 0), body)
			var st accept.Store = s
			if !checksum {
				st = noChecksum{s}
			}
			want := layout.Blob(sub.SHA256, 1)
			if name == "right" {
				want = layout.Blob(sub.SHA256, 0)
			}
			res := mustAccept(t, protocol(t, st, "c1", nil), sub, accept.Accepted)
			if res.Manifest.RawBlobKey != want || !readable(t, s, sub.Frame) {
				t.Errorf("%s, checksum %v: relies on %s", name, checksum, res.Manifest.RawBlobKey)
			}
			mustAccept(t, protocol(t, st, "c2", nil), sub, accept.Duplicate)
		}
	}
}

func TestBlobIsSentWithItsChecksum(t *testing.T) {
	s := mem.New(nil)
	sub := submission(testID, "a")
	mustAccept(t, protocol(t, s, "c1", nil), sub, accept.Accepted)
	sub.Identity.SeqStart++
	sub.Records--
	sub.Frame = append(bytes.Clone(sub.Frame), 'x') // SHA256 is no longer its hash
	sub.SHA256[0]++                                 // nor of anything that exists
	_, err := protocol(t, s, "c1", nil).Accept(t.Context(), sub)
	var refused *accept.RefusedError
	if !errors.As(err, &refused) || exists(t, s, layout.Accepted(sub.Identity)) || exists(t, s, layout.Blob(sub.SHA256, 0)) {
		t.Errorf("a frame with a wrong hash: %v", err)
	}
}

// A clone of a machine has the boot id, and another spool id.
func TestRaceCloneWithTheSameBootID(t *testing.T) {
	s := mem.New(nil)
	p, q := protocol(t, s, "c1", nil), protocol(t, s, "c2", nil)
	a, b := submission(testID, "a"), submission(testID, "b")
	b.SpoolID = "spool-2"
	mustAccept(t, p, a, accept.Accepted)
	before := s.Len()
	for _, c := range []*accept.Protocol{p, q, q} { // from the cache, from the store, cached
		_, err := c.Accept(t.Context(), b)
		var refused *accept.RefusedError
		if !errors.As(err, &refused) || refused.Reason != accept.ReasonBootIDClash {
			t.Errorf("clone: %v", err)
		}
	}
	b.SpoolID = "" // an id of its own, not a wildcard
	if _, err := q.Accept(t.Context(), b); err == nil {
		t.Error("the empty spool id passed for another's")
	}
	if s.Len() != before {
		t.Error("a clone wrote something")
	}
	mustAccept(t, q, a, accept.Duplicate)
}

func TestBootCacheIsBoundedAndRight(t *testing.T) {
	h := &hooked{Store: mem.New(nil)}
	p := protocol(t, h, "c1", func(c *accept.Config) { c.BootCache = 2 })
	for range 2 {
		for _, name := range []string{"x", "y", "z"} {
			b := testID.BootOf()
			b.Boot = name
			if err := p.ClaimBoot(t.Context(), b, "spool-"+name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(h.ops); n != 3+3*2 {
		t.Errorf("%d requests: %v", n, h.ops)
	}
}

// Another authority's bucket or prefix is refused, at the start and at a manifest.
func TestRaceTwoAuthorities(t *testing.T) {
	s := mem.New(nil)
	ctx := t.Context()
	if _, err := accept.EnsureAuthority(ctx, s, "authority-1", false); !errors.Is(err, accept.ErrNoAuthority) {
		t.Errorf("empty store: %v", err)
	}
	for range 2 {
		if _, err := accept.EnsureAuthority(ctx, s, "authority-1", true); err != nil {
			t.Fatal(err)
		}
	}
	var other *accept.AuthorityError
	if _, err := accept.EnsureAuthority(ctx, s, "authority-2", true); !errors.As(err, &other) || other.Got != "authority-1" {
		t.Errorf("other authority: %v", err)
	}
	sub := submission(testID, "a")
	mustAccept(t, protocol(t, s, "c1", nil), sub, accept.Accepted)
	p := protocol(t, s, "c2", func(c *accept.Config) { c.AuthorityID = "authority-2" })
	_, err := p.Accept(ctx, sub)
	wantRetry(t, err, accept.ReasonCorruptBootRecord)
	if err := s.Delete(ctx, layout.Boot(testID.BootOf())); err != nil {
		t.Fatal(err)
	}
	_, err = p.Accept(ctx, sub)
	wantRetry(t, err, accept.ReasonCorruptManifest)
}

// A record of a newer release is not called corrupt, and nothing is decided from it; a field that may be ignored changes nothing.
func TestRecordsOfANewerRelease(t *testing.T) {
	sub := submission(testID, "a")
	for _, key := range []string{layout.Accepted(testID), layout.Boot(testID.BootOf())} {
		s := mem.New(nil)
		mustAccept(t, protocol(t, s, "c1", nil), sub, accept.Accepted)
		b, _, err := s.Get(t.Context(), key, objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, key, append(bytes.TrimSuffix(b, []byte("}")), `,"later":{"x":1}}`...))
		mustAccept(t, protocol(t, s, "c2", nil), sub, accept.Duplicate)
		put(t, s, key, bytes.Replace(b, []byte(".v1"), []byte(".v9"), 1))
		corrupt := 0
		_, err = protocol(t, s, "c3", func(c *accept.Config) {
			c.Events.CorruptRecord = func(accept.Step, string, error) { corrupt++ }
		}).Accept(t.Context(), sub)
		wantRetry(t, err, accept.ReasonNewerRecord)
		if corrupt > 0 || !errors.Is(err, record.ErrNewerVersion) {
			t.Errorf("%s: %v, %d reports of a corrupt record", key, err, corrupt)
		}
	}
}

// A manifest of our hash with another length is not believed.
func TestManifestOfAnotherLength(t *testing.T) {
	s := mem.New(nil)
	sub := submission(testID, "a")
	m := mustAccept(t, protocol(t, s, "c1", nil), sub, accept.Accepted).Manifest
	m.FrameBytes++
	put(t, s, layout.Accepted(testID), m.Marshal())
	_, err := protocol(t, s, "c2", nil).Accept(t.Context(), sub)
	wantRetry(t, err, accept.ReasonCorruptManifest)
}

// replacing is a store with hooks, and the replaces of the one below.
type replacing struct {
	*hooked
	objstore.Replacer
}

func TestEnsureAuthorityResolvesUnknown(t *testing.T) {
	for _, applied := range []bool{true, false} {
		s := mem.New(nil)
		h := &hooked{Store: s}
		fail := func(_ int, op, _ string) error {
			if op == "create" && len(h.ops) < 4 {
				return objstore.ErrUnknown
			}
			return nil
		}
		if applied {
			h.after = fail
		} else {
			h.before = fail
		}
		if _, err := accept.EnsureAuthority(t.Context(), replacing{h, s}, "authority-1", true); err != nil {
			t.Errorf("applied %v: %v", applied, err)
		}
	}
}

// checksumKept is a store that kept the checksum of what it was sent, and lost a part of the bytes.
type checksumKept struct {
	accept.Store
	sub accept.Submission
}

func (c checksumKept) Head(ctx context.Context, key string) (objstore.Info, error) {
	i, err := c.Store.Head(ctx, key)
	i.SHA256 = c.sub.SHA256
	return i, err
}

func TestExistingBlobOfAnotherSize(t *testing.T) {
	s := mem.New(nil)
	sub := submission(testID, "a")
	put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame[:3])
	mustAccept(t, protocol(t, checksumKept{s, sub}, "c1", nil), sub, accept.Accepted)
	if !readable(t, s, sub.Frame) {
		t.Error("a truncated blob was relied on")
	}
}
