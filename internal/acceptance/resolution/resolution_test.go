package resolution_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

const authority = "authority-1"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func conflict(n uint64) resolution.Conflict {
	return resolution.Conflict{BootID: "boot", SeqStart: n, SeqEnd: n + 9, SubmittedSHA256: identity.Sum(fmt.Append(nil, n))}
}

func decision(who string, a resolution.Action, cs ...resolution.Conflict) resolution.Resolution {
	return resolution.Resolution{AuthorityID: authority, Action: a, AgentID: "agent", Conflicts: cs, Principal: who, DecidedAt: 5, AttemptID: who + string(a)}
}

// Two operators decide about one frame in two processes: one decision stands, and both are told which.
func TestTheFirstDecisionStands(t *testing.T) {
	ctx, store := t.Context(), mem.New(time.Now)
	one, two := resolution.NewLog(store, nil), resolution.NewLog(store, nil)
	must(t, two.Read(ctx, authority))
	first, wrote, err := one.Decide(ctx, decision("ann", resolution.AcceptExisting, conflict(1), conflict(2)))
	if err != nil || !wrote || first.Number != 1 {
		t.Fatalf("%+v, %v, %v", first, wrote, err)
	}
	_, _, err = two.Decide(ctx, decision("bob", resolution.KeepBoth, conflict(3), conflict(2)))
	var stands *resolution.StandingError
	if !errors.As(err, &stands) || stands.By.Principal != "ann" || *stands.Conflict != conflict(2) || !strings.Contains(err.Error(), `by "ann"`) {
		t.Fatalf("the second decision: %v", err)
	}
	if two.Of(conflict(3).Of("agent"), conflict(3).SubmittedSHA256) != nil || two.Through() != 1 {
		t.Error("a refused decision has left something")
	}
	// The same decision again is no new one, and the part that is new is decided alone.
	again, wrote, err := two.Decide(ctx, decision("bob", resolution.AcceptExisting, conflict(2)))
	if err != nil || wrote || again.Principal != "ann" {
		t.Errorf("the same again: %+v, %v, %v", again, wrote, err)
	}
	more, wrote, err := two.Decide(ctx, decision("bob", resolution.AcceptExisting, conflict(2), conflict(3)))
	if err != nil || !wrote || more.Number != 2 {
		t.Fatalf("%+v, %v, %v", more, wrote, err)
	}
	must(t, one.Read(ctx, authority))
	for n, who := range map[uint64]string{1: "ann", 2: "ann", 3: "bob"} {
		for _, l := range []*resolution.Log{one, two} {
			if d := l.Of(conflict(n).Of("agent"), conflict(n).SubmittedSHA256); d == nil || d.Principal != who {
				t.Errorf("conflict %d: %+v, want %s's", n, d, who)
			}
		}
	}
}

// A record that contradicts an earlier one, which no writer of this release makes, changes nothing.
func TestALaterRecordIsNoDecision(t *testing.T) {
	ctx, store := t.Context(), mem.New(time.Now)
	for i, a := range []resolution.Action{resolution.AcceptExisting, resolution.KeepBoth} {
		r := decision("ann", a, conflict(1))
		r.Number = uint64(i + 1)
		_, err := store.Create(ctx, layout.Resolution(r.Number), r.Marshal(), objstore.PutOptions{})
		must(t, err)
	}
	l := resolution.NewLog(store, nil)
	must(t, l.Read(ctx, authority))
	if d := l.Of(conflict(1).Of("agent"), conflict(1).SubmittedSHA256); d == nil || d.Action != resolution.AcceptExisting || l.Through() != 2 {
		t.Errorf("%+v", d)
	}
}

func TestQuarantineUntilReleased(t *testing.T) {
	ctx, store := t.Context(), mem.New(time.Now)
	l := resolution.NewLog(store, nil)
	if _, _, err := l.Decide(ctx, decision("ann", resolution.Release)); !errors.Is(err, resolution.ErrNotHeld) {
		t.Fatalf("release of nothing: %v", err)
	}
	boot := identity.Boot{Agent: "agent", Boot: "boot"}
	ofBoot := decision("ann", resolution.Quarantine)
	ofBoot.BootID = boot.Boot
	for _, step := range []struct {
		r           resolution.Resolution
		boot, other bool
	}{
		{ofBoot, true, false},
		{decision("bob", resolution.Quarantine), true, true},
		{decision("bob", resolution.Release), true, false}, // the boot's own stands
		{func() resolution.Resolution { r := ofBoot; r.Action = resolution.Release; return r }(), false, false},
	} {
		_, wrote, err := l.Decide(ctx, step.r)
		must(t, err)
		if !wrote || (l.Quarantined(boot) != nil) != step.boot || (l.Quarantined(identity.Boot{Agent: "agent", Boot: "other"}) != nil) != step.other {
			t.Errorf("after %s of %q: wrote %v, %+v, %+v", step.r.Action, step.r.BootID, wrote, l.Quarantined(boot), l.Senders(""))
		}
	}
	if len(l.Senders("")) != 0 || l.Quarantined(identity.Boot{Agent: "x", Boot: "boot"}) != nil {
		t.Error("somebody is still held")
	}
}

// lostAnswers applies every create, and says that the outcome is unknown.
type lostAnswers struct {
	objstore.Store
	left int
}

func (s *lostAnswers) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	i, err := s.Store.Create(ctx, key, body, o)
	if s.left--; s.left >= 0 && err == nil {
		return i, objstore.ErrUnknown
	}
	return i, err
}

// A lost answer makes no second record, and its writer knows that it was its own.
func TestALostAnswer(t *testing.T) {
	l := resolution.NewLog(&lostAnswers{mem.New(time.Now), 1}, nil)
	r, wrote, err := l.Decide(t.Context(), decision("ann", resolution.KeepBoth, conflict(1)))
	if err != nil || !wrote || r.Number != 1 || l.Through() != 1 {
		t.Errorf("%+v, %v, %v", r, wrote, err)
	}
}

// released is a store in which somebody releases the sender, after its quarantine was written and before its writer knows that.
type released struct {
	objstore.Store
	t *testing.T
}

func (s *released) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	i, err := s.Store.Create(ctx, key, body, o)
	if key != layout.Resolution(1) || err != nil {
		return i, err
	}
	_, _, rerr := resolution.NewLog(s.Store, nil).Decide(ctx, decision("bob", resolution.Release))
	must(s.t, rerr)
	return i, objstore.ErrUnknown
}

// A quarantine whose answer was lost, and that was released meanwhile, does not begin again.
func TestALostAnswerBeforeARelease(t *testing.T) {
	store := &released{mem.New(time.Now), t}
	l := resolution.NewLog(store, nil)
	r, wrote, err := l.Decide(t.Context(), decision("ann", resolution.Quarantine))
	if err != nil || !wrote || r.Number != 1 || l.Through() != 2 {
		t.Errorf("%+v, %v, %v, %d decisions", r, wrote, err, l.Through())
	}
	if q := l.Quarantined(identity.Boot{Agent: "agent", Boot: "b"}); q != nil {
		t.Errorf("in quarantine again: %+v", q)
	}
	// Asked for once more it is another decision.
	again := decision("ann", resolution.Quarantine)
	again.AttemptID = "another"
	if r, wrote, err = l.Decide(t.Context(), again); err != nil || !wrote || r.Number != 3 {
		t.Errorf("%+v, %v, %v", r, wrote, err)
	}
}

// Many at once: every number is of one decision, and nobody's is lost.
func TestManyWriters(t *testing.T) {
	ctx, store := t.Context(), mem.New(time.Now)
	var wg sync.WaitGroup
	for i := range uint64(16) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, wrote, err := resolution.NewLog(store, nil).Decide(ctx, decision(fmt.Sprint("op", i), resolution.KeepBoth, conflict(i+1)))
			if err != nil || !wrote {
				t.Errorf("%d: %v, %v", i, wrote, err)
			}
		}()
	}
	wg.Wait()
	l := resolution.NewLog(store, nil)
	must(t, l.Read(ctx, authority))
	if l.Through() != 16 {
		t.Errorf("%d decisions", l.Through())
	}
}

// What can't be read ends the reading, and what was read before stands.
func TestUnreadableRecords(t *testing.T) {
	ctx := t.Context()
	foreign := decision("x", resolution.KeepBoth, conflict(9))
	foreign.AuthorityID, foreign.Number = "other", 2
	moved := decision("x", resolution.KeepBoth, conflict(9))
	moved.Number = 3
	newer := bytes.Replace(moved.Marshal(), []byte(".v1"), []byte(".v2"), 1)
	for name, c := range map[string]struct {
		body []byte
		want error
	}{
		"torn": {[]byte("{"), record.ErrCorrupt}, "foreign": {foreign.Marshal(), record.ErrCorrupt}, "moved": {moved.Marshal(), record.ErrCorrupt}, "newer": {newer, record.ErrNewerVersion},
	} {
		store := mem.New(time.Now)
		l := resolution.NewLog(store, nil)
		_, _, err := l.Decide(ctx, decision("ann", resolution.Quarantine))
		must(t, err)
		_, err = store.Create(ctx, layout.Resolution(2), c.body, objstore.PutOptions{})
		must(t, err)
		if err := l.Read(ctx, authority); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := l.Decide(ctx, decision("ann", resolution.Release)); !errors.Is(err, c.want) {
			t.Errorf("%s: decided over it: %v", name, err)
		}
		if l.Quarantined(identity.Boot{Agent: "agent", Boot: "b"}) == nil {
			t.Errorf("%s: what was read is forgotten", name)
		}
	}
}

func TestRefusals(t *testing.T) {
	many := make([]resolution.Conflict, resolution.MaxConflicts+1)
	for i := range many {
		many[i] = conflict(uint64(i + 1))
	}
	for name, r := range map[string]resolution.Resolution{
		"no conflict": decision("a", resolution.KeepBoth), "conflicts of a quarantine": decision("a", resolution.Quarantine, conflict(1)),
		"no principal": decision("", resolution.KeepBoth, conflict(1)), "no action": decision("a", "drop", conflict(1)), "too many": decision("a", resolution.KeepBoth, many...),
		"bad range": decision("a", resolution.KeepBoth, resolution.Conflict{BootID: "b", SeqStart: 2, SeqEnd: 1}),
	} {
		if _, _, err := resolution.NewLog(mem.New(time.Now), nil).Decide(t.Context(), r); err == nil {
			t.Errorf("%s is not refused", name)
		}
	}
	if r := decision("a", resolution.KeepBoth, many[1:]...); len(r.Marshal()) > resolution.Kind.MaxBytes {
		t.Errorf("the largest record has %d bytes", len(r.Marshal()))
	}
}

func batch(t *testing.T, values ...float64) *frame.Batch {
	t.Helper()
	b := frame.NewBuilder()
	must(t, b.SetResource(series.Label{Name: "host", Value: "h"}))
	for i, v := range values {
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: fmt.Sprint("m", i)}}, series.Gauge, "", 0)
		must(t, err)
		must(t, b.Append(id, 1000, v))
	}
	out, err := b.Build(identity.Boot{Agent: "agent", Boot: "boot"}, 5)
	must(t, err)
	return out
}

func TestCompare(t *testing.T) {
	c := resolution.Compare(batch(t, 1, 2, 3), batch(t, 1, 7), 10)
	if c.Same != 1 || c.Different != 1 || c.OnlyAccepted != 1 || c.OnlySubmitted != 0 || len(c.Differences) != 2 {
		t.Fatalf("%+v", c)
	}
	if d := c.Differences[0]; d.Series != `m1{host="h"}` || d.AcceptedSeq != 6 || d.SubmittedSeq != 6 || d.Accepted != "2" || d.Submitted != "7" || d.Time != 1000 {
		t.Errorf("%+v", d)
	}
	c = resolution.Compare(batch(t, 1), batch(t, 1, 2, 3), 1)
	if c.Same != 1 || c.OnlySubmitted != 2 || len(c.Differences) != 1 || c.Differences[0].SubmittedSeq != 6 || c.Differences[0].Accepted != "" {
		t.Errorf("%+v", c)
	}
}

// The same parked frame gives the same identity and the same bytes each time, and all of its records.
func TestRenumber(t *testing.T) {
	b := batch(t, 1, 2, 3)
	parked, err := frame.Encode(nil, b)
	must(t, err)
	id, one, err := resolution.Renumber(parked)
	must(t, err)
	_, two, err := resolution.Renumber(parked)
	must(t, err)
	if want := resolution.Kept("agent", identity.Sum(parked)); id.BootOf() != want || id.SeqStart != 1 || id.SeqEnd != 3 || !bytes.Equal(one, two) {
		t.Errorf("%s, %d and %d bytes", id, len(one), len(two))
	}
	if id.Boot == resolution.KeptSpool(identity.Sum(parked)) || id.BootOf() == resolution.Kept("agent", identity.Sum(one)) {
		t.Error("ids are not of their own")
	}
	var got frame.Batch
	must(t, frame.Decode(one, &got, frame.Limits{}))
	if c := resolution.Compare(b, &got, 1); c.Same != 3 || c.Different+c.OnlyAccepted+c.OnlySubmitted != 0 {
		t.Errorf("%+v", c)
	}
	if _, _, err := resolution.Renumber([]byte("x")); err == nil {
		t.Error("no frame is renumbered")
	}
}

// overtaken has somebody else create the key first, once.
type overtaken struct {
	objstore.Store
	by func()
}

func (s *overtaken) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if by := s.by; by != nil {
		s.by = nil
		by()
	}
	return s.Store.Create(ctx, key, body, o)
}

// Two operators decide at the same moment: the one whose create comes second is told whose decision stands.
func TestOvertaken(t *testing.T) {
	ctx := t.Context()
	for _, bob := range []resolution.Resolution{decision("bob", resolution.KeepBoth, conflict(1)), decision("bob", resolution.KeepBoth, conflict(2)), decision("bob", resolution.AcceptExisting, conflict(1))} {
		store := mem.New(time.Now)
		slow := &overtaken{Store: store, by: func() {
			_, _, err := resolution.NewLog(store, nil).Decide(ctx, decision("ann", resolution.AcceptExisting, conflict(1)))
			must(t, err)
		}}
		r, wrote, err := resolution.NewLog(slow, nil).Decide(ctx, bob)
		var stands *resolution.StandingError
		switch other := bob.Conflicts[0] != conflict(1); {
		case other && (err != nil || !wrote || r.Number != 2):
			t.Errorf("about another frame: %+v, %v, %v", r, wrote, err)
		case !other && bob.Action == resolution.AcceptExisting && (err != nil || wrote || r.Principal != "ann"):
			t.Errorf("the same decision: %+v, %v, %v", r, wrote, err)
		case !other && bob.Action == resolution.KeepBoth && (!errors.As(err, &stands) || stands.By.Principal != "ann"):
			t.Errorf("another decision: %v", err)
		}
	}
}

// The longest decision that anybody may ask for can be read again: one that can't would end the log for ever.
func TestTheLongestDecisionIsRead(t *testing.T) {
	r := decision(strings.Repeat("\x01", 1024), resolution.KeepBoth)
	r.AgentID, r.Note, r.AttemptID = strings.Repeat("\x01", identity.MaxAgentIDBytes), strings.Repeat("\x01", resolution.MaxNoteBytes), "x"
	for i := range uint64(resolution.MaxConflicts) {
		c := conflict(i)
		c.BootID, c.SeqStart, c.SeqEnd = strings.Repeat("\x01", identity.MaxBootIDBytes), 1<<63+i, 1<<63+i
		r.Conflicts = append(r.Conflicts, c)
	}
	store := mem.New(time.Now)
	_, _, err := resolution.NewLog(store, nil).Decide(t.Context(), r)
	must(t, err)
	must(t, resolution.NewLog(store, nil).Read(t.Context(), authority))
}

// A log that decisions about frames have filled still takes those about senders.
func TestAFullLogStillStopsSenders(t *testing.T) {
	store := &counted{Store: mem.New(time.Now), n: 90_000}
	l := resolution.NewLog(store, nil)
	if _, _, err := l.Decide(t.Context(), decision("ann", resolution.KeepBoth, conflict(1))); !errors.Is(err, resolution.ErrFull) {
		t.Errorf("a frame: %v", err)
	}
	for _, a := range []resolution.Action{resolution.Quarantine, resolution.Release} {
		if _, wrote, err := l.Decide(t.Context(), decision("ann", a)); err != nil || !wrote {
			t.Errorf("%s: %v, %v", a, wrote, err)
		}
	}
}

// counted has n decisions about another agent, which nobody wrote.
type counted struct {
	objstore.Store
	n    uint64
	gets atomic.Int64
}

// A process that starts reads many decisions at a time, and one that follows asks for the next alone.
func TestManyDecisionsAreReadAtATime(t *testing.T) {
	store := &counted{Store: mem.New(time.Now), n: 1000}
	rounds := 0
	l := resolution.NewLog(store, func(ctx context.Context, n int, do func(context.Context, int) error) error {
		rounds++
		return run.Each(n)(ctx, n, do)
	})
	must(t, l.Read(t.Context(), authority))
	if l.Through() != 1000 || rounds > 40 {
		t.Errorf("through %d in %d rounds", l.Through(), rounds)
	}
	if l.Quarantined(identity.Boot{Agent: "another", Boot: "b"}) != nil {
		t.Error("the last decision about a sender does not stand")
	}
	store.gets.Store(0)
	must(t, l.Read(t.Context(), authority))
	if n := store.gets.Load(); n != 1 {
		t.Errorf("%d requests where there is nothing new", n)
	}
}

func (c *counted) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	c.gets.Add(1)
	var n uint64
	if _, err := fmt.Sscanf(key, layout.ResolutionLogPrefix+"%d.json", &n); err != nil || n > c.n {
		return c.Store.Get(ctx, key, o)
	}
	r := decision("op", []resolution.Action{resolution.Release, resolution.Quarantine}[n%2])
	r.AgentID, r.Number = "another", n
	return r.Marshal(), objstore.Info{}, nil
}

// Under each number that both have, the records are compared: same means the same series, time and value.
func TestCompareNumbers(t *testing.T) {
	counts := batch(t, 1, 2, 3, 4) // m0 to m3 have the numbers 5 to 8
	other := batch(t, 4, 9)
	other.Identity.SeqStart, other.Identity.SeqEnd = 8, 9 // m0 has number 8 and the same value, which m3 has there
	c := resolution.CompareNumbers(counts, other, 9)
	if c.Same != 0 || c.Different != 1 || len(c.Differences) != 1 {
		t.Fatalf("%+v", c)
	}
	if d := c.Differences[0]; d.Seq != 8 || d.Counts.Value != "4" || d.Other.Value != "4" || !strings.HasPrefix(d.Counts.Series, "m3{") || !strings.HasPrefix(d.Other.Series, "m0{") || d.Other.Time != 1000 {
		t.Errorf("%+v", d)
	}
	if c := resolution.CompareNumbers(counts, batch(t, 1, 7, 3, 5), 1); c.Same != 2 || c.Different != 2 || len(c.Differences) != 1 || c.Differences[0].Seq != 6 {
		t.Errorf("%+v", c)
	}
	far := batch(t, 1)
	far.Identity.SeqStart, far.Identity.SeqEnd = 100, 100
	if c := resolution.CompareNumbers(counts, far, 9); c.Same+c.Different != 0 {
		t.Errorf("%+v", c)
	}
}
