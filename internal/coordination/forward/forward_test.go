package forward

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// answering answers every change by a function.
type answering func(claims.Op) (claims.Answer, error)

func (f answering) Change(_ context.Context, op claims.Op) (claims.Answer, error) { return f(op) }

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 7
	}
	return len(b), nil
}

type fixed struct{}

func (fixed) Now() time.Time { return time.Unix(1000, 0) }

func forwarderOver(t *testing.T, s Store, change answering) *Forwarder {
	t.Helper()
	f, err := New(Config{Region: "east", Store: s, Claims: change, Rand: zeros{}, TakeOver: time.Minute,
		Accept: accept.Config{AuthorityID: "authority", CollectorID: "r1", Clock: fixed{}, Rand: zeros{}}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func plant(t *testing.T, s *mem.Store, change func(*accept.Manifest)) accept.Manifest {
	t.Helper()
	id := identity.Batch{Agent: "a", Boot: "b", SeqEnd: 9}
	frame := []byte("frame")
	m := accept.Manifest{
		AuthorityID: "authority", Identity: id, FrameSHA256: identity.Sum(frame), FrameBytes: uint64(len(frame)), RawBlobKey: layout.Blob(identity.Sum(frame), 0),
		AcceptedAt: 5, CollectorID: "c1", WireVersion: 1, FrameVersion: 1, AttemptID: strings.Repeat("0", 32), RecordCount: 10, MinTime: 1, MaxTime: 2,
		HomeRegion: "east", ClaimEpoch: 3, ClaimFence: 8,
	}
	change(&m)
	for key, b := range map[string][]byte{layout.Accepted(id): m.Marshal(), layout.Blob(m.FrameSHA256, 0): frame} {
		if _, err := s.Create(context.Background(), key, b, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func claimed(m accept.Manifest) claims.Claim {
	return claims.Claim{Identity: m.Identity, Hash: m.FrameSHA256, State: claims.Claimed, ID: claims.ID{9}, Stamp: claims.Stamp{Epoch: 3, Fence: 8}, Home: "east", ClaimedAt: 1}
}

// completing is a linearizer that does what it is asked.
func completing(c claims.Claim) answering {
	return func(op claims.Op) (claims.Answer, error) {
		c.State, c.DurableAt = claims.Durable, 4
		return claims.Answer{Outcome: claims.Decided, Epoch: op.Epoch, Claim: c}, nil
	}
}

// TestEntriesNameTheirHome: also of a manifest from before there were regions, and under the claim that was completed.
func TestEntriesNameTheirHome(t *testing.T) {
	s := mem.New(time.Now)
	m := plant(t, s, func(m *accept.Manifest) { m.HomeRegion, m.ClaimEpoch, m.ClaimFence = "", 0, 0 })
	c := claimed(m)
	r, err := forwarderOver(t, s, completing(c)).Roll(t.Context(), c)
	if err != nil || r.Action != Completed || !r.Affirmed {
		t.Fatalf("%+v, %v", r, err)
	}
	want := m.Entry(journal.AuditedAccepted)
	want.HomeRegion, want.ClaimEpoch = "east", 3
	if r.Entry != want || r.Claim.State != claims.Durable {
		t.Errorf("%+v, want %+v", r.Entry, want)
	}
	b, _, err := s.Get(t.Context(), layout.Affirmation(m.Identity, c.Stamp), objstore.GetOptions{})
	if err != nil || !strings.Contains(string(b), m.FrameSHA256.String()) {
		t.Errorf("the affirmation is %q, %v", b, err)
	}
	// Once more: it is there.
	if r, err = forwarderOver(t, s, completing(c)).Roll(t.Context(), c); err != nil || r.Action != Completed || r.Affirmed {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestWhatAPersonIsNeededFor: nothing is asked of the linearizer, and nothing is written.
func TestWhatAPersonIsNeededFor(t *testing.T) {
	for name, k := range map[string]struct {
		manifest func(*accept.Manifest)
		claim    func(*claims.Claim)
		want     Action
		why      string
	}{
		"damaged":                       {func(m *accept.Manifest) { m.AttemptID = "?" }, nil, Stuck, "can't be read"},
		"of another authority":          {func(m *accept.Manifest) { m.AuthorityID = "other" }, nil, Stuck, "authority"},
		"durable, another hash":         {nil, func(c *claims.Claim) { c.State, c.Hash = claims.Durable, identity.Digest{1} }, Stuck, "the bucket has"},
		"durable, no manifest":          {nil, func(c *claims.Claim) { c.State, c.Identity.SeqStart = claims.Durable, 5 }, Stuck, "no manifest"},
		"recovered, another hash":       {nil, func(c *claims.Claim) { c.Recovered, c.Hash = true, identity.Digest{1} }, Stuck, "the region's key has"},
		"recovered, no manifest":        {nil, func(c *claims.Claim) { c.Recovered, c.Identity.SeqStart = true, 5 }, Stuck, "not there any more"},
		"settled":                       {nil, func(c *claims.Claim) { c.State = claims.Settled }, Moved, ""},
		"an older scan than the bucket": {nil, func(c *claims.Claim) { c.Stamp.Fence = 7 }, Moved, ""},
	} {
		s := mem.New(time.Now)
		if k.manifest == nil {
			k.manifest = func(*accept.Manifest) {}
		}
		m := plant(t, s, k.manifest)
		c := claimed(m)
		if k.claim != nil {
			k.claim(&c)
		}
		before := keys(t, s)
		r, err := forwarderOver(t, s, func(op claims.Op) (claims.Answer, error) {
			t.Errorf("%s: %s is asked for", name, op.Kind)
			return claims.Answer{}, claims.ErrUnavailable
		}).Roll(t.Context(), c)
		if err != nil || r.Action != k.want || !strings.Contains(r.Why, k.why) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if after := keys(t, s); after != before {
			t.Errorf("%s: %d keys, before %d", name, after, before)
		}
	}
}

func keys(t *testing.T, s *mem.Store) (n int) {
	t.Helper()
	for _, err := range objstore.List(t.Context(), s, objstore.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// TestALostFrame: what nobody was answered is released, what a restore found waits for a person, and what retention removed is durable.
func TestALostFrame(t *testing.T) {
	for name, k := range map[string]struct {
		recovered, removed bool
		want               Action
		asks               claims.Kind
	}{
		"fresh":                  {false, false, Released, claims.DoRelease},
		"recovered":              {true, false, Stuck, 0},
		"removed by retention":   {false, true, Completed, claims.DoComplete},
		"recovered, and removed": {true, true, Completed, claims.DoComplete},
	} {
		s := mem.New(time.Now)
		m := plant(t, s, func(*accept.Manifest) {})
		if err := s.Delete(t.Context(), layout.Blob(m.FrameSHA256, 0)); err != nil {
			t.Fatal(err)
		}
		c := claimed(m)
		c.Recovered = k.recovered
		var asked claims.Kind
		f := forwarderOver(t, s, func(op claims.Op) (claims.Answer, error) {
			if asked = op.Kind; asked == claims.DoRelease {
				return claims.Answer{Outcome: claims.Released}, nil
			}
			return completing(c)(op)
		})
		f.cfg.Removed = func(context.Context, identity.Batch) (bool, error) { return k.removed, nil }
		r, err := f.Roll(t.Context(), c)
		if err != nil || r.Action != k.want || asked != k.asks {
			t.Errorf("%s: %+v, %v, asks to %s", name, r, err, asked)
		}
	}
}

// TestBoundIsReleased: a claim of what a retired region had is not kept where it can't be completed, and its hash is not changed.
func TestBoundIsReleased(t *testing.T) {
	for name, change := range map[string]func(*claims.Claim){
		"no manifest":  func(c *claims.Claim) { c.Identity.SeqStart = 5 },
		"another hash": func(c *claims.Claim) { c.Hash = identity.Digest{1} },
	} {
		s := mem.New(time.Now)
		c := claimed(plant(t, s, func(*accept.Manifest) {}))
		c.Bound = true
		change(&c)
		var asked []claims.Kind
		r, err := forwarderOver(t, s, func(op claims.Op) (claims.Answer, error) {
			asked = append(asked, op.Kind)
			return claims.Answer{Outcome: claims.Released}, nil
		}).Roll(t.Context(), c)
		if err != nil || r.Action != Released || len(asked) != 1 || asked[0] != claims.DoRelease {
			t.Errorf("%s: %+v, %v, asks to %v", name, r, err, asked)
		}
	}
}

// TestADamagedGenerationIsWrittenAnew: the bytes that a condemned generation still has become the next one's.
func TestADamagedGenerationIsWrittenAnew(t *testing.T) {
	s := mem.New(time.Now)
	m := plant(t, s, func(*accept.Manifest) {})
	if _, err := s.Create(t.Context(), layout.Condemned(m.FrameSHA256, 0), []byte("{}"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	c := claimed(m)
	r, err := forwarderOver(t, s, completing(c)).Roll(t.Context(), c)
	if err != nil || r.Action != Completed {
		t.Fatalf("%+v, %v", r, err)
	}
	b, _, err := s.Get(t.Context(), layout.Blob(m.FrameSHA256, 1), objstore.GetOptions{})
	if err != nil || identity.Sum(b) != m.FrameSHA256 {
		t.Errorf("%q, %v", b, err)
	}
}

// TestALinearizerThatIsAway: an audit concludes nothing, and enters nothing.
func TestALinearizerThatIsAway(t *testing.T) {
	s := mem.New(time.Now)
	m := plant(t, s, func(*accept.Manifest) {})
	before := keys(t, s)
	for _, away := range []error{claims.ErrUnknown, claims.ErrUnavailable, claims.ErrEpoch, claims.ErrFull, claims.ErrInvalid} {
		f := forwarderOver(t, s, func(claims.Op) (claims.Answer, error) { return claims.Answer{}, away })
		if a, err := f.Ask(t.Context(), m); !errors.Is(err, away) || a != (Asked{}) {
			t.Errorf("%+v, %v", a, err)
		}
		if r, err := f.Roll(t.Context(), claimed(m)); !errors.Is(err, away) || r != (Result{}) {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if keys(t, s) != before {
		t.Error("something was written")
	}
}

// TestVerdicts: what an audit makes of each answer.
func TestVerdicts(t *testing.T) {
	s := mem.New(time.Now)
	m := plant(t, s, func(*accept.Manifest) {})
	with := func(o claims.Outcome, change func(*claims.Claim)) claims.Answer {
		c := claimed(m)
		change(&c)
		return claims.Answer{Outcome: o, Epoch: 3, Claim: c}
	}
	west := func(c *claims.Claim) { c.Home, c.ClaimedAt = "west", time.Unix(990, 0).UnixNano() }
	for name, k := range map[string]struct {
		answer claims.Answer
		want   Verdict
	}{
		"ours":                                 {with(claims.Decided, func(c *claims.Claim) { c.State = claims.Durable }), Ours},
		"ours, settled":                        {with(claims.Decided, func(c *claims.Claim) { c.State = claims.Settled }), Ours},
		"another region's":                     {with(claims.Decided, func(c *claims.Claim) { c.State, c.Home = claims.Settled, "west" }), Secondary},
		"another region's, young":              {with(claims.Pending, west), Open},
		"another region's, recovered":          {with(claims.Pending, func(c *claims.Claim) { west(c); c.ClaimedAt, c.Recovered = 0, true }), Open},
		"contested":                            {with(claims.Contested, func(c *claims.Claim) { c.Hash = identity.Digest{1} }), Open},
		"another frame's":                      {with(claims.Conflict, func(c *claims.Claim) { c.State, c.Hash = claims.Durable, identity.Digest{1} }), Loser},
		"a range that meets another's":         {with(claims.RangeConflict, func(c *claims.Claim) { c.State, c.Hash, c.Identity.SeqEnd = claims.Settled, identity.Digest{1}, 4 }), Loser},
		"a range of a frame that nobody names": {with(claims.RangeConflict, func(c *claims.Claim) { c.State, c.Hash, c.Identity.SeqEnd = claims.Settled, identity.Digest{}, 4 }), Open},
		"folded":                               {claims.Answer{Outcome: claims.Folded}, Open},
	} {
		if err := s.Delete(t.Context(), layout.Quarantine(m.Identity, m.FrameSHA256)); err != nil { // another case's
			t.Fatal(err)
		}
		before := keys(t, s)
		a, err := forwarderOver(t, s, func(claims.Op) (claims.Answer, error) { return k.answer, nil }).Ask(t.Context(), m)
		if err != nil || a.Verdict != k.want {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		switch a.Verdict {
		case Loser:
			if a.Entry.Outcome != journal.AuditedConflict || a.Entry.SHA256 != m.FrameSHA256 || a.Entry.Validate() != nil {
				t.Errorf("%s: %+v", name, a.Entry)
			}
			b, _, err := s.Get(t.Context(), layout.Quarantine(m.Identity, m.FrameSHA256), objstore.GetOptions{})
			if rec, perr := accept.ParseConflictRecord(b); err != nil || perr != nil || rec.SubmittedBlobKey != m.RawBlobKey || rec.AcceptedSHA256 != (identity.Digest{1}) ||
				(rec.Met != identity.Batch{}) != (k.answer.Outcome == claims.RangeConflict) || rec.Met.SeqEnd != 0 && rec.Met.SeqEnd != 4 {
				t.Errorf("%s: %+v, %v, %v", name, rec, err, perr)
			}
		case Ours:
			if a.Entry.Outcome != journal.AuditedAccepted || a.Entry.HomeRegion != "east" {
				t.Errorf("%s: %+v", name, a.Entry)
			}
		default:
			if a.Entry != (journal.Entry{}) || keys(t, s) != before {
				t.Errorf("%s: %+v, and %d keys", name, a.Entry, keys(t, s))
			}
		}
	}
}
