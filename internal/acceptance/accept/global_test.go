package accept_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// linearizer is a model of the identity linearizer for one epoch, as docs/protocol/linearizer.md says what it answers. The real one
// is behind the same interface in services/ingest, whose tests use it.
type linearizer struct {
	claims map[identity.Batch]*accept.Claim
	state  map[identity.Batch]byte // 1 claimed, 2 durable, 3 settled
	fence  uint64
	// settles are those that wait.
	settles []accept.ClaimChange
	// fail makes a change fail before it is applied, or after.
	before, after func(accept.ClaimChange) error
	steps         []accept.ClaimStep
}

func newLinearizer() *linearizer {
	return &linearizer{claims: map[identity.Batch]*accept.Claim{}, state: map[identity.Batch]byte{}}
}

// of is the linearizer as one region reaches it.
func (l *linearizer) of(region string) accept.Claims { return regional{l, region} }

type regional struct {
	l      *linearizer
	region string
}

func (r regional) Settle(c accept.ClaimChange) { r.l.settles = append(r.l.settles, c) }

func (r regional) Change(_ context.Context, c accept.ClaimChange) (accept.ClaimAnswer, error) {
	r.l.steps = append(r.l.steps, c.Step)
	if r.l.before != nil {
		if err := r.l.before(c); err != nil {
			return accept.ClaimAnswer{}, err
		}
	}
	a := r.change(c)
	if r.l.after != nil {
		if err := r.l.after(c); err != nil {
			return accept.ClaimAnswer{}, err
		}
	}
	return a, nil
}

func (r regional) change(c accept.ClaimChange) accept.ClaimAnswer {
	l := r.l
	there, st := l.claims[c.Identity], l.state[c.Identity]
	say := func(o accept.ClaimOutcome) accept.ClaimAnswer {
		a := accept.ClaimAnswer{Outcome: o}
		if t := l.claims[c.Identity]; t != nil {
			a.Claim = *t
			a.Claim.Settled = l.state[c.Identity] == 3
		}
		return a
	}
	if there == nil {
		for id, met := range l.claims {
			if id.Agent == c.Identity.Agent && id.Boot == c.Identity.Boot && id.SeqStart <= c.Identity.SeqEnd && c.Identity.SeqStart <= id.SeqEnd {
				if l.state[id] > 1 {
					return accept.ClaimAnswer{Outcome: accept.ClaimRangeConflict, Claim: *met}
				}
				return accept.ClaimAnswer{Outcome: accept.ClaimContested, Claim: *met}
			}
		}
		if c.Step != accept.TakeClaim {
			return say(accept.ClaimMoved)
		}
		l.take(c, r.region)
		return say(accept.ClaimHeld)
	}
	mine := there.ID == c.ID && there.Home == r.region
	switch {
	case st > 1 && there.Hash == c.Hash:
		return say(accept.ClaimDecided)
	case st > 1:
		return say(accept.ClaimConflict)
	case c.Step == accept.ReplaceClaim && mine && !there.Fixed && !there.Bound:
		l.take(c, r.region)
		return say(accept.ClaimHeld)
	case there.Hash != c.Hash:
		return say(accept.ClaimContested)
	case c.Step == accept.TakeClaim && mine:
		return say(accept.ClaimHeld)
	case c.Step == accept.TakeClaim:
		return say(accept.ClaimPending)
	case c.Step == accept.TakeClaimOver && there.ID == c.Expect && !there.Fixed:
		l.take(c, r.region)
		return say(accept.ClaimHeld)
	case c.Step == accept.CompleteClaim && mine:
		l.state[c.Identity] = 2
		return say(accept.ClaimDecided)
	}
	return say(accept.ClaimMoved)
}

func (l *linearizer) take(c accept.ClaimChange, region string) {
	l.fence++
	l.claims[c.Identity] = &accept.Claim{Identity: c.Identity, Hash: c.Hash, ID: c.ID, Home: region, Stamp: identity.Stamp{Epoch: 1, Fence: l.fence}}
	l.state[c.Identity] = 1
}

// settle settles what waits.
func (l *linearizer) settle() {
	for _, c := range l.settles {
		if l.state[c.Identity] == 2 && l.claims[c.Identity].ID == c.ID {
			l.state[c.Identity] = 3
		}
	}
	l.settles = nil
}

// global is a collector of a region.
func global(t testing.TB, s accept.Store, l *linearizer, region, name string, seed uint64, change ...func(*accept.Config)) *accept.Global {
	t.Helper()
	j := newJournal(t, s.(journal.WriterStore), seed)
	p := protocol(t, s, name, func(c *accept.Config) {
		c.Mode, c.Journal, c.Rand = accept.ModeGlobal, j, seededRand(seed)
		for _, fn := range change {
			fn(c)
		}
	})
	g, err := accept.NewGlobal(p, accept.GlobalConfig{Region: region, Claims: l.of(region), TakeOver: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func accepts(t testing.TB, g *accept.Global, s accept.Submission, want accept.Outcome) accept.Result {
	t.Helper()
	r, err := g.Accept(t.Context(), s)
	if err != nil || r.Outcome != want {
		t.Fatalf("%s (%v), want %s", r.Outcome, err, want)
	}
	return r
}

func TestGlobal(t *testing.T) {
	l, eu, us := newLinearizer(), mem.New(nil), mem.New(nil)
	a, b := submission(testID, "a"), submission(testID, "b")
	e, u := global(t, eu, l, "eu", "c1", 1), global(t, us, l, "us", "c2", 2)
	first := accepts(t, e, a, accept.Accepted)
	if m := first.Manifest; m.HomeRegion != "eu" || m.Stamp() != (identity.Stamp{Epoch: 1, Fence: 1}) || first.Elsewhere {
		t.Errorf("%+v", first)
	}
	// Durable, and not settled: its home answers, another region does not.
	accepts(t, e, a, accept.Duplicate)
	_, err := u.Accept(t.Context(), a)
	wantRetry(t, err, accept.ReasonClaimPending)
	l.settle()
	there := accepts(t, u, a, accept.Duplicate)
	if !there.Elsewhere || there.Manifest.HomeRegion != "eu" {
		t.Errorf("%+v", there)
	}
	for _, g := range []*accept.Global{e, u} {
		if r := accepts(t, g, b, accept.Conflict); r.Elsewhere != (g == u) || r.QuarantineKey == "" || r.Met != (identity.Batch{}) {
			t.Errorf("%+v", r)
		}
	}
	over := submission(testID, "c")
	over.Identity.SeqEnd, over.Records = over.Identity.SeqEnd+1, over.Records+1
	// The answer and the record name the identity that is in the way.
	met := accepts(t, u, over, accept.Conflict)
	body, _, err := us.Get(t.Context(), met.QuarantineKey, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if rec, err := accept.ParseConflictRecord(body); err != nil || !met.Elsewhere || met.Met != testID || rec.Met != testID || rec.AcceptedSHA256 != a.SHA256 || rec.Identity != over.Identity {
		t.Errorf("%+v, %+v, %v", met, rec, err)
	}
	// One manifest, in the home. One region's journal counts the batch.
	if _, err := us.Head(t.Context(), layout.Accepted(testID)); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("the other region has a manifest: %v", err)
	}
	all, _ := entries(t, us)
	if n := countOf(all, testID, a.SHA256); n != 0 {
		t.Errorf("the other region counts it %d times", n)
	}
	if !slices.ContainsFunc(all, func(e journal.Entry) bool { return e.Outcome == journal.Elsewhere && e.HomeRegion == "eu" }) {
		t.Error("what was answered there is not in its journal")
	}
	if all, _ = entries(t, eu); countOf(all, testID, a.SHA256) == 0 {
		t.Error("its home does not count it")
	}
}

func countOf(all []journal.Entry, id identity.Batch, sum identity.Digest) (n int) {
	for _, e := range all {
		if e.ID == id && e.SHA256 == sum && e.Outcome.Counts() {
			n++
		}
	}
	return n
}

// The requests of each outcome, in their order, those to the linearizer among them.
func TestRequestsOfGlobalOutcomes(t *testing.T) {
	s, l := mem.New(nil), newLinearizer()
	h := &hooked{Store: s}
	names := map[accept.ClaimStep]string{accept.TakeClaim: "claim", accept.CompleteClaim: "complete", accept.ReplaceClaim: "replace", accept.TakeClaimOver: "take over"}
	l.before = func(c accept.ClaimChange) error { h.ops = append(h.ops, names[c.Step]+" /"); return nil }
	g := global(t, h, l, "eu", "c1", 1)
	warm := submission(testID, "warm")
	warm.Identity.SeqStart, warm.Identity.SeqEnd, warm.Records = 100, 100, 1
	accepts(t, g, warm, accept.Accepted)
	for _, c := range []struct {
		variant string
		outcome accept.Outcome
		want    string
	}{
		{"a", accept.Accepted, "create raw-blobs, claim , create accepted, get gc, complete , create journal"},
		{"a", accept.Duplicate, "create raw-blobs, head raw-blobs, claim , create accepted, get accepted, get gc, get gc, create journal"},
		{"b", accept.Conflict, "create raw-blobs, claim , create quarantine, get gc, create journal"},
	} {
		h.ops = nil
		accepts(t, g, submission(testID, c.variant), c.outcome)
		var got []string
		for _, op := range h.ops {
			name, key, _ := strings.Cut(op, " ")
			if name == "take" {
				name = "take over"
			}
			got = append(got, name+" "+objstore.Family(key))
		}
		if all := strings.Join(got, ", "); all != c.want {
			t.Errorf("%s: %s\nwant %s", c.outcome, all, c.want)
		}
	}
}

// The claim of a region that does not go on is taken over after a while, and its late manifest is nobody's.
func TestTakeOver(t *testing.T) {
	l, eu, us := newLinearizer(), mem.New(nil), mem.New(nil)
	dead := &hooked{Store: eu, before: func(_ int, op, key string) error {
		if objstore.Family(key) == "accepted" {
			return objstore.ErrUnavailable
		}
		return nil
	}}
	a := submission(testID, "a")
	if _, err := global(t, dead, l, "eu", "c1", 1).Accept(t.Context(), a); err == nil {
		t.Fatal("accepted without a manifest")
	}
	u := global(t, us, l, "us", "c2", 2)
	_, err := u.Accept(t.Context(), a)
	wantRetry(t, err, accept.ReasonClaimPending)
	var r accept.Result
	for range 50 { // the clock goes on with every look
		if r, err = u.Accept(t.Context(), a); err == nil {
			break
		}
	}
	if err != nil || r.Outcome != accept.Accepted || r.Manifest.HomeRegion != "us" {
		t.Fatalf("%+v, %v", r, err)
	}
	l.settle()
	if r := accepts(t, global(t, eu, l, "eu", "c3", 3), a, accept.Duplicate); !r.Elsewhere {
		t.Errorf("%+v", r)
	}
}

// A claim that somebody may have been answered by is taken over by nobody.
func TestFixedClaims(t *testing.T) {
	l, eu, us := newLinearizer(), mem.New(nil), mem.New(nil)
	a := submission(testID, "a")
	l.take(accept.ClaimChange{Identity: a.Identity, Hash: a.SHA256, ID: accept.ClaimID{7}}, "eu")
	l.claims[a.Identity].Fixed = true
	u := global(t, us, l, "us", "c1", 1)
	for range 50 {
		_, err := u.Accept(t.Context(), a)
		wantRetry(t, err, accept.ReasonClaimPending)
	}
	// Its home goes on with it, also by another call than the one that claimed.
	if r := accepts(t, global(t, eu, l, "eu", "c2", 2), a, accept.Accepted); r.Manifest.ClaimFence != 1 {
		t.Errorf("%+v", r.Manifest)
	}
}

// A retired region had accepted the frame. Where the region's key has another one the sender tries another region, which takes the claim
// over.
func TestBoundClaims(t *testing.T) {
	eu, us, l := mem.New(nil), mem.New(nil), newLinearizer()
	a, b := submission(testID, "a"), submission(testID, "b")
	l.before = func(c accept.ClaimChange) error {
		if c.Step == accept.CompleteClaim {
			return errors.New("away")
		}
		return nil
	}
	if _, err := global(t, eu, l, "eu", "c1", 1).Accept(t.Context(), b); err == nil {
		t.Fatal("accepted")
	}
	l.before = nil
	l.take(accept.ClaimChange{Identity: a.Identity, Hash: a.SHA256, ID: accept.ClaimID{7}}, "eu")
	l.claims[a.Identity].Bound = true
	l.steps = nil
	_, err := global(t, eu, l, "eu", "c2", 2).Accept(t.Context(), a)
	wantRetry(t, err, accept.ReasonHomeLost)
	if slices.Contains(l.steps, accept.ReplaceClaim) {
		t.Error("the hash was to be replaced")
	}
	u := global(t, us, l, "us", "c3", 3)
	var r accept.Result
	for range 50 { // the clock goes on with every look
		if r, err = u.Accept(t.Context(), a); err == nil {
			break
		}
	}
	if err != nil || r.Outcome != accept.Accepted || r.Manifest.HomeRegion != "us" {
		t.Fatalf("%+v, %v", r, err)
	}
}

// A manifest that was left behind under an earlier claim is affirmed before its claim is completed.
func TestAnOldManifestIsAffirmed(t *testing.T) {
	s, l := mem.New(nil), newLinearizer()
	a := submission(testID, "a")
	l.before = func(c accept.ClaimChange) error {
		if c.Step == accept.CompleteClaim {
			return errors.New("away")
		}
		return nil
	}
	if _, err := global(t, s, l, "eu", "c1", 1).Accept(t.Context(), a); err == nil {
		t.Fatal("accepted")
	}
	l.before = nil
	delete(l.claims, a.Identity) // released
	r := accepts(t, global(t, s, l, "eu", "c2", 2), a, accept.Duplicate)
	if r.Manifest.Stamp() != (identity.Stamp{Epoch: 1, Fence: 1}) {
		t.Errorf("%+v", r.Manifest)
	}
	b, _, err := s.Get(t.Context(), layout.Affirmation(a.Identity, identity.Stamp{Epoch: 1, Fence: 2}), objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if f, err := accept.ParseAffirmation(b); err != nil || f.FrameSHA256 != a.SHA256 || f.HomeRegion != "eu" {
		t.Errorf("%+v, %v", f, err)
	}
}

// granted is a bucket with what a collector may do, and no more.
type granted struct{ *mem.Store }

func (g granted) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if !bucketpolicy.May([]bucketpolicy.Role{bucketpolicy.Ingest}, bucketpolicy.Get, key) {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrDenied}
	}
	return g.Store.Get(ctx, key, o)
}

// An affirmation that exists is read, since "exists" alone may be wrong: collectors may do that. One that is away between affirmation
// and completion leaves such a batch, and one whose store refused the request would never be ready again.
func TestAnAffirmationThatExists(t *testing.T) {
	s, l := mem.New(nil), newLinearizer()
	a := submission(testID, "a")
	away := func(c accept.ClaimChange) error {
		if c.Step == accept.CompleteClaim {
			return errors.New("away")
		}
		return nil
	}
	for i := range 2 {
		l.before = away
		if _, err := global(t, granted{s}, l, "eu", "c", uint64(i+1)).Accept(t.Context(), a); err == nil {
			t.Fatal("accepted")
		}
		l.before = nil
		if i == 0 {
			delete(l.claims, a.Identity) // released
		}
	}
	if _, err := s.Head(t.Context(), layout.Affirmation(a.Identity, identity.Stamp{Epoch: 1, Fence: 2})); err != nil {
		t.Fatal(err)
	}
	accepts(t, global(t, granted{s}, l, "eu", "c", 3), a, accept.Duplicate)
}

// The region's key has another frame: the claim becomes one for that, and nobody is answered before it is completed.
func TestAKeyWithAnotherFrame(t *testing.T) {
	s, l := mem.New(nil), newLinearizer()
	a, b := submission(testID, "a"), submission(testID, "b")
	l.before = func(c accept.ClaimChange) error {
		if c.Step == accept.CompleteClaim {
			return errors.New("away")
		}
		return nil
	}
	if _, err := global(t, s, l, "eu", "c1", 1).Accept(t.Context(), a); err == nil {
		t.Fatal("accepted")
	}
	l.before = nil
	delete(l.claims, a.Identity)
	g := global(t, s, l, "eu", "c2", 2)
	_, err := g.Accept(t.Context(), b)
	wantRetry(t, err, accept.ReasonClaimContested)
	if c := l.claims[a.Identity]; c.Hash != a.SHA256 {
		t.Errorf("%+v", c)
	}
	accepts(t, g, a, accept.Duplicate) // here its sender; else the reconciler
	accepts(t, g, b, accept.Conflict)
}

// Without the linearizer nothing is accepted.
func TestWithoutTheLinearizer(t *testing.T) {
	s, l := mem.New(nil), newLinearizer()
	l.before = func(accept.ClaimChange) error { return errors.New("away") }
	_, err := global(t, s, l, "eu", "c1", 1).Accept(t.Context(), submission(testID, "a"))
	wantRetry(t, err, accept.ReasonLinearizer)
	if _, err := s.Head(t.Context(), layout.Accepted(testID)); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("a manifest without a claim: %v", err)
	}
}

// One that refuses this collector is not one that is away: waiting does not mend credentials.
func TestALinearizerThatDenies(t *testing.T) {
	s, l := mem.New(nil), newLinearizer()
	for step, denied := range map[accept.ClaimStep]bool{accept.TakeClaim: true, accept.CompleteClaim: true} {
		l.before = func(c accept.ClaimChange) error {
			if c.Step == step && denied {
				return fmt.Errorf("%w: bound to another region", accept.ErrClaimDenied)
			}
			return nil
		}
		_, err := global(t, s, l, "eu", "c1", 1).Accept(t.Context(), submission(testID, "a"))
		wantRetry(t, err, accept.ReasonLinearizerDenied)
	}
	l.before = nil
	accepts(t, global(t, s, l, "eu", "c1", 2), submission(testID, "a"), accept.Duplicate) // its manifest was there
}

// A sender whose batch waited for the linearizer until its time was over is told so; nothing is decided for one that has left.
func TestALinearizerThatHangs(t *testing.T) {
	l := newLinearizer()
	g := global(t, mem.New(nil), l, "eu", "c1", 1)
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(20*time.Millisecond))
	defer cancel()
	l.before = func(accept.ClaimChange) error { <-late.Done(); return late.Err() }
	_, err := g.Accept(late, submission(testID, "a"))
	wantRetry(t, err, accept.ReasonLinearizer)
	gone, leave := context.WithCancel(t.Context())
	l.before = func(accept.ClaimChange) error { leave(); return gone.Err() }
	var retry *accept.RetryError
	if _, err := g.Accept(gone, submission(testID, "a")); !errors.Is(err, context.Canceled) || errors.As(err, &retry) {
		t.Errorf("its caller has left: %v", err)
	}
}

// Collectors of two regions that die at any request to a store or to the linearizer, with frames of two senders. What was answered
// stays so, one region counts the batch, and in the end everybody is answered.
func TestGlobalKilledAtEveryRequest(t *testing.T) {
	errDead := fmt.Errorf("%w: the process has died", objstore.ErrUnknown)
	a, b := submission(testID, "a"), submission(testID, "b")
	most := 0
	for dead := 0; dead <= most; dead++ {
		for _, applied := range []bool{false, true} {
			n := 0
			died := func(after bool) error {
				if n > dead+1 || n == dead+1 && (after || !applied) {
					return errDead
				}
				return nil
			}
			l := newLinearizer()
			stores := map[string]*hooked{}
			for _, r := range []string{"eu", "us"} {
				stores[r] = &hooked{Store: mem.New(nil)}
			}
			arm := func(on bool) {
				for _, h := range stores {
					h.before, h.after = nil, nil
					if on {
						h.before = func(int, string, string) error { n++; return died(false) }
						h.after = func(int, string, string) error { return died(true) }
					}
				}
				l.before, l.after = nil, nil
				if on {
					l.before = func(accept.ClaimChange) error { n++; return died(false) }
					l.after = func(accept.ClaimChange) error { return died(true) }
				}
			}
			answered := map[identity.Digest]accept.Outcome{}
			answer := func(g *accept.Global, s accept.Submission) bool {
				r, err := g.Accept(t.Context(), s)
				if err != nil {
					return false
				}
				if was := answered[s.SHA256]; was != 0 && (was == accept.Conflict) != (r.Outcome == accept.Conflict) {
					t.Fatalf("request %d: %s after %s", dead, r.Outcome, was)
				}
				answered[s.SHA256] = r.Outcome
				return true
			}
			arm(true)
			answer(global(t, stores["eu"], l, "eu", "c1", 1), a)
			answer(global(t, stores["eu"], l, "eu", "c1", 4), b)
			most = max(most, n)
			arm(false)
			u, e := global(t, stores["us"], l, "us", "c2", 2), global(t, stores["eu"], l, "eu", "c3", 3)
			for i := 0; ; i++ {
				l.settle()
				done := true
				for _, s := range []accept.Submission{a, b} {
					// First the other region, which takes over; then that of the dead collector.
					other, own := answer(u, s), answer(e, s)
					done = done && other && own
				}
				if done {
					break
				}
				if i == 200 {
					t.Fatalf("request %d, applied %t: nobody is answered", dead, applied)
				}
			}
			if (answered[a.SHA256] == accept.Conflict) == (answered[b.SHA256] == accept.Conflict) {
				t.Fatalf("request %d: %v", dead, answered)
			}
			counted := 0
			for r, h := range stores {
				all, _ := entries(t, h.Store.(journal.FollowerStore))
				for _, s := range []accept.Submission{a, b} {
					if countOf(all, testID, s.SHA256) == 0 {
						continue
					}
					counted++
					if answered[s.SHA256] == accept.Conflict {
						t.Fatalf("request %d: %s counts the frame that lost", dead, r)
					}
				}
			}
			if counted != 1 {
				t.Fatalf("request %d, applied %t: %d regions count the batch", dead, applied, counted)
			}
		}
	}
	if most < 10 {
		t.Errorf("%d requests", most)
	}
}
