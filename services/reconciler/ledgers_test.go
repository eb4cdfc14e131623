package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var oneBoot = identity.Boot{Agent: "a", Boot: "b"}

func testBook(s objstore.Store, limit int) *ledgerCache {
	return newLedgerCache(s, slog.New(slog.DiscardHandler), limit)
}

func (b *ledgerCache) count(t *testing.T, boot identity.Boot) uint64 {
	t.Helper()
	a, err := b.open(bg, boot)
	must(t, err)
	defer a.mu.Unlock()
	return a.l.BatchCount()
}

func seq(n uint64) ledger.Entry {
	return ledger.Entry{Start: n * 10, End: n*10 + 9, AcceptedAt: int64(n)}
}

// Two books that know different batches of one boot: after both have written, the snapshot knows all.
func TestLostSnapshotRaceMerges(t *testing.T) {
	s := newStore()
	x, y := testBook(s, 10), testBook(s, 10)
	for i := range uint64(10) {
		b := x
		if i%2 == 0 {
			b = y
		}
		_, err := b.add(bg, oneBoot, seq(i), true, func(ledger.Change) {})
		must(t, err)
	}
	for range 2 {
		must(t, x.flush(bg))
		must(t, y.flush(bg))
	}
	if n := testBook(s, 10).count(t, oneBoot); n != 10 {
		t.Errorf("the snapshot has %d batches, want 10", n)
	}
	if n := y.count(t, oneBoot); n != 10 {
		t.Errorf("the loser of the race has %d batches, want 10", n)
	}
}

func TestUnchangedLedgersAreNotWritten(t *testing.T) {
	c := &counting{Store: newStore(), n: map[string]int{}}
	b := testBook(c, 10)
	for range 3 {
		_, err := b.add(bg, oneBoot, seq(1), false, func(ledger.Change) {})
		must(t, err)
		must(t, b.flush(bg))
	}
	if n := c.get("create reconcile") + c.get("replace reconcile"); n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
}

func TestSnapshotThatCannotBeRead(t *testing.T) {
	of := ledger.New(identity.Boot{Agent: "x", Boot: "y"})
	of.AddNew(seq(1))
	other := of.Marshal()
	for _, body := range []string{"", "{", string(other)} {
		s := newStore()
		create(t, s, layout.Ledger(oneBoot), []byte(body))
		b := testBook(s, 10)
		_, err := b.add(bg, oneBoot, seq(3), true, func(ledger.Change) {})
		must(t, err)
		must(t, b.flush(bg))
		if n := testBook(s, 10).count(t, oneBoot); n != 1 {
			t.Errorf("%q: %d batches after it was built anew", body, n)
		}
	}
}

// A failed read is not an empty ledger: nothing is counted, nothing is overwritten.
func TestFailedReadIsNotAnEmptyLedger(t *testing.T) {
	s := newStore()
	b := testBook(s, 10)
	_, err := b.add(bg, oneBoot, seq(1), true, func(ledger.Change) {})
	must(t, err)
	must(t, b.flush(bg))
	f := newFlaky(t, s, 100)
	b = testBook(f, 10)
	if _, err := b.add(bg, oneBoot, seq(2), true, func(ledger.Change) {}); err == nil {
		t.Error("counted without its ledger")
	}
	f.on.Store(false)
	_, err = b.add(bg, oneBoot, seq(2), true, func(ledger.Change) {})
	must(t, err)
	if n := b.count(t, oneBoot); n != 2 {
		t.Errorf("%d batches, want 2", n)
	}
}

func TestLedgersArePutAwayAndReadAgain(t *testing.T) {
	s := newStore()
	b := testBook(s, 2)
	boot := func(i int) identity.Boot { return identity.Boot{Agent: fmt.Sprint("agent", i), Boot: "b"} }
	for i := range 10 {
		_, err := b.add(bg, boot(i), seq(1), true, func(ledger.Change) {})
		must(t, err)
	}
	must(t, b.flush(bg))
	held := 0
	for _, a := range b.all() {
		if a.l != nil {
			held++
		}
	}
	if held != 2 {
		t.Errorf("%d ledgers in memory, want 2", held)
	}
	for i := range 10 {
		_, err := b.add(bg, boot(i), seq(2), true, func(ledger.Change) {})
		must(t, err)
		if n := b.count(t, boot(i)); n != 2 {
			t.Errorf("agent%d: %d batches, want 2", i, n)
		}
	}
	if got := b.after(boot(3), "", 2); len(got) != 2 || got[0] != boot(4) || got[1] != boot(5) {
		t.Errorf("after agent3: %v", got)
	}
}

// A snapshot whose write failed, or had to wait for the intake in vain, is written by a
// later flush; until then its ledger is not put away.
func TestSnapshotsThatFailAreWrittenAgain(t *testing.T) {
	s := newStore()
	f := newFlaky(t, s, 100)
	f.on.Store(false)
	b := testBook(f, 0)
	_, err := b.add(bg, oneBoot, seq(1), true, func(ledger.Change) {})
	must(t, err)
	refused := errors.New("the intake is behind")
	barrier := b.flushIntake
	b.flushIntake = func(context.Context) error { return refused }
	fails := func(what string) {
		t.Helper()
		if err := b.flush(bg); err == nil {
			t.Errorf("%s: the flush has succeeded", what)
		}
		if a := b.all()[0]; a.l == nil || a.l.BatchCount() != 1 {
			t.Fatalf("%s: what was not written is put away", what)
		}
		if n := testBook(s, 10).count(t, oneBoot); n != 0 {
			t.Errorf("%s: a snapshot has %d batches", what, n)
		}
	}
	fails("the intake")
	b.flushIntake = barrier
	f.on.Store(true)
	f.before = true
	fails("the store")
	f.on.Store(false)
	must(t, b.flush(bg))
	if n := testBook(s, 10).count(t, oneBoot); n != 1 {
		t.Errorf("the snapshot has %d batches, want 1", n)
	}
}
