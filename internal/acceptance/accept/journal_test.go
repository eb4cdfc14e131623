package accept_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

// plainJournal writes each entry when it is waited for.
type plainJournal struct {
	w   *journal.Writer
	err error // of Add
}

func newJournal(t testing.TB, s journal.WriterStore, seed uint64) *plainJournal {
	t.Helper()
	w, err := journal.NewWriter(journal.WriterConfig{
		Store: s, Rand: seededRand(seed), Clock: func() int64 { return 1 },
		Opening: journal.Opening{Writer: "w", Role: journal.RoleCollector, Authority: "authority-1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &plainJournal{w: w}
}

func (j *plainJournal) Add(e journal.Entry) (journal.Ticket, error) {
	if j.err != nil {
		return nil, j.err
	}
	n, err := j.w.Add(e)
	return plainTicket{j, n}, err
}

type plainTicket struct {
	j *plainJournal
	n uint64
}

func (k plainTicket) Wait(ctx context.Context) (journal.Position, error) {
	for {
		at, done, err := k.j.w.Flush(ctx)
		if err != nil || done >= k.n {
			return at, err
		}
	}
}

func (k plainTicket) Spared() bool { return k.j.w.Spared(k.n) }

// entries reads the journal.
func entries(t testing.TB, s journal.FollowerStore) (all []journal.Entry, at map[journal.Position][]journal.Entry) {
	t.Helper()
	at = map[journal.Position][]journal.Entry{}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: "authority-1",
		Segment: func(_ context.Context, seg *journal.Segment) error {
			all = append(all, seg.Entries...)
			at[seg.Position] = seg.Entries
			return nil
		},
		Folded: func(context.Context, []journal.Entry) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return all, at
}

// Every outcome stands in the journal where the result says, as an entry with which nobody needs the manifest.
func TestOutcomesStandInTheJournal(t *testing.T) {
	s := mem.New(nil)
	p := protocol(t, s, "c1", func(c *accept.Config) { c.Journal = newJournal(t, s, 1) })
	a, b := submission(testID, "a"), submission(testID, "b")
	first := mustAccept(t, p, a, accept.Accepted)
	again := mustAccept(t, p, a, accept.Duplicate)
	lost := mustAccept(t, p, b, accept.Conflict)
	_, at := entries(t, s)
	for _, c := range []struct {
		result  accept.Result
		outcome journal.Outcome
		sub     accept.Submission
	}{{first, journal.Accepted, a}, {again, journal.Duplicate, a}, {lost, journal.Conflict, b}} {
		es := at[c.result.Position]
		if c.outcome == journal.Conflict && len(es) == 2 && es[0].SHA256 == a.SHA256 {
			es = es[1:] // the first is of the batch that holds the identity
		}
		if len(es) != 1 {
			t.Fatalf("%s: %d entries at %v", c.outcome, len(es), c.result.Position)
		}
		e := es[0]
		if e.Outcome != c.outcome || e.ID != testID || e.SHA256 != c.sub.SHA256 || e.Bytes != uint64(len(c.sub.Frame)) ||
			e.MinTime != 1 || e.MaxTime != 2 || e.At == 0 || e.Generation != 0 {
			t.Errorf("%s: %+v", c.outcome, e)
		}
	}
	// A refusal has no outcome, so nothing of it is in the journal.
	other := submission(testID, "c")
	other.SpoolID = "spool-2"
	if _, err := p.Accept(t.Context(), other); err == nil {
		t.Error("another spool's batch was accepted")
	}
	if all, _ := entries(t, s); len(all) != 4 {
		t.Errorf("%d entries, want 4", len(all))
	}
}

// A manifest that nobody was answered for, because its collector died before its entry: the conflict that finds it journals it
// before it is answered, and so do others of other identities; a storm of conflicts over one writes it once.
func TestAConflictJournalsTheHolder(t *testing.T) {
	s := mem.New(nil)
	died := protocol(t, s, "c1", func(c *accept.Config) { c.Journal = &plainJournal{err: errors.New("killed")} })
	a := submission(testID, "a")
	if _, err := died.Accept(t.Context(), a); err == nil {
		t.Fatal("answered without a journal")
	}
	j := newJournal(t, s, 1)
	p := protocol(t, s, "c2", func(c *accept.Config) { c.Journal = j })
	j.err = errors.New("full")
	if _, err := p.Accept(t.Context(), submission(testID, "b")); err == nil {
		t.Fatal("a conflict is answered without the journal")
	}
	j.err = nil // what was not given to the journal is not remembered
	for i := range 20 {
		mustAccept(t, p, submission(testID, fmt.Sprint("b", i)), accept.Conflict)
	}
	all, _ := entries(t, s)
	holders, conflicts := 0, 0
	for i := range all {
		switch e := &all[i]; {
		case e.Outcome.Conflict():
			conflicts++
		case e.ID == testID && e.SHA256 == a.SHA256 && e.Bytes == uint64(len(a.Frame)):
			if holders++; conflicts > 0 {
				t.Error("the holder stands behind a conflict that was answered")
			}
		}
	}
	if holders != 1 || conflicts != 20 {
		t.Errorf("%d entries of the holder, %d of conflicts", holders, conflicts)
	}
}

// The requests of each outcome, in their order. An entry is given only after what it says was observed, and
// the answer comes after the segment. A batch of a claimed boot costs three requests and its share of a segment.
func TestRequestsOfAnOutcome(t *testing.T) {
	s := mem.New(nil)
	h := &hooked{Store: s}
	p := protocol(t, h, "c1", func(c *accept.Config) { c.Journal = newJournal(t, h, 1) })
	warm := submission(testID, "warm")
	warm.Identity.SeqStart, warm.Identity.SeqEnd, warm.Records = 100, 100, 1
	mustAccept(t, p, warm, accept.Accepted)
	for _, c := range []struct {
		variant string
		outcome accept.Outcome
		want    string
	}{
		{"a", accept.Accepted, "create raw-blobs, create accepted, get gc, create journal"},
		{"a", accept.Duplicate, "create raw-blobs, head raw-blobs, create accepted, get accepted, get gc, get gc, create journal"},
		{"b", accept.Conflict, "create raw-blobs, create accepted, get accepted, create quarantine, get gc, create journal"},
	} {
		h.ops = nil
		mustAccept(t, p, submission(testID, c.variant), c.outcome)
		var got []string
		for _, op := range h.ops {
			name, key, _ := strings.Cut(op, " ")
			got = append(got, name+" "+objstore.Family(key))
		}
		if all := strings.Join(got, ", "); all != c.want {
			t.Errorf("%s: %s\nwant %s", c.outcome, all, c.want)
		}
	}
}

// addedAt notes what exists when an entry is given.
type addedAt struct {
	accept.Journal
	check func(journal.Entry)
}

func (a addedAt) Add(e journal.Entry) (journal.Ticket, error) {
	a.check(e)
	return a.Journal.Add(e)
}

func TestAnEntryComesAfterWhatItSays(t *testing.T) {
	s := mem.New(nil)
	var seen []journal.Outcome
	p := protocol(t, s, "c1", func(c *accept.Config) {
		c.Journal = addedAt{newJournal(t, s, 1), func(e journal.Entry) {
			seen = append(seen, e.Outcome)
			key := layout.Accepted(e.ID)
			if e.Outcome == journal.Conflict {
				key = layout.Quarantine(e.ID, e.SHA256)
			}
			if _, err := s.Head(t.Context(), key); err != nil {
				t.Errorf("%s: %v", e.Outcome, err)
			}
		}}
	})
	mustAccept(t, p, submission(testID, "a"), accept.Accepted)
	mustAccept(t, p, submission(testID, "a"), accept.Duplicate)
	mustAccept(t, p, submission(testID, "b"), accept.Conflict)
	// The conflict comes with the batch that holds the identity.
	if want := []journal.Outcome{journal.Accepted, journal.Duplicate, journal.Duplicate, journal.Conflict}; !slices.Equal(seen, want) {
		t.Errorf("entries: %v", seen)
	}
}

// A collector that dies at any request has answered nothing that is not in the journal; its senders send
// again, to another life, and what that answers is there as well.
func TestKilledAtEveryRequestOfTheJournalledProtocol(t *testing.T) {
	errDead := fmt.Errorf("%w: the process has died", objstore.ErrUnknown)
	run := func(h *hooked, seed uint64) (answered []accept.Result) {
		p := protocol(t, h, fmt.Sprint("c", seed), func(c *accept.Config) { c.Journal = newJournal(t, h, seed) })
		for _, variant := range []string{"a", "a", "b"} {
			if r, err := p.Accept(t.Context(), submission(testID, variant)); err == nil {
				answered = append(answered, r)
			}
		}
		return answered
	}
	total := &hooked{Store: mem.New(nil)}
	if n := len(run(total, 1)); n != 3 {
		t.Fatalf("%d answers", n)
	}
	for dead := range total.n + 1 {
		for _, applied := range []bool{false, true} {
			s := mem.New(nil)
			h := &hooked{Store: s}
			h.before = func(n int, _, _ string) error {
				if n > dead || n == dead && !applied {
					return errDead
				}
				return nil
			}
			h.after = func(n int, _, _ string) error {
				if n >= dead {
					return errDead
				}
				return nil
			}
			check := func(when string, answered []accept.Result) {
				_, at := entries(t, s)
				for _, r := range answered {
					if len(at[r.Position]) == 0 {
						t.Fatalf("request %d, %s: %s was answered and is not at %v", dead, when, r.Outcome, r.Position)
					}
				}
			}
			check("first life", run(h, 1))
			second := run(&hooked{Store: s}, 2)
			if len(second) != 3 {
				t.Fatalf("request %d: %d answers of the second life", dead, len(second))
			}
			check("second life", second)
		}
	}
}

// No answer without the journal: the sender keeps its bytes.
func TestWithoutTheJournalIsRetry(t *testing.T) {
	s := mem.New(nil)
	full := newJournal(t, s, 1)
	full.err = errors.New("full")
	p := protocol(t, s, "c1", func(c *accept.Config) { c.Journal = full })
	_, err := p.Accept(t.Context(), submission(testID, "a"))
	wantRetry(t, err, accept.ReasonJournalUnavailable)

	down := &hooked{Store: s, before: func(_ int, op, key string) error {
		if op == "create" && objstore.Family(key) == "journal" {
			return objstore.ErrUnavailable
		}
		return nil
	}}
	p = protocol(t, s, "c1", func(c *accept.Config) { c.Journal = newJournal(t, down, 1) })
	_, err = p.Accept(t.Context(), submission(testID, "a"))
	wantRetry(t, err, accept.ReasonJournalUnavailable)

	// A caller that has left decided nothing.
	ctx, cancel := context.WithCancel(t.Context())
	p = protocol(t, s, "c1", func(c *accept.Config) {
		c.Journal = addedAt{newJournal(t, down, 2), func(journal.Entry) { cancel() }}
	})
	if _, err := p.Accept(ctx, submission(testID, "a")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
