package queue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// lost counts the numbers that a queue skipped, as the ledger would see them once all that
// is pending is accepted, and what is still owed. Nothing may have been acknowledged.
func lost(q *Queue) uint64 {
	given, top := map[identity.Boot]uint64{}, map[identity.Boot]uint64{}
	for _, e := range q.Pending(0, 1<<20) {
		b := e.Identity.BootOf()
		given[b] += e.Identity.Count()
		top[b] = max(top[b], e.Identity.SeqEnd)
	}
	boot, _, next := q.Boot()
	top[boot] = max(top[boot], next-1)
	n := q.skip.owed
	for b, t := range top {
		n += t - given[b]
	}
	return n
}

func mustSkip(t *testing.T, q *Queue, n uint64) {
	t.Helper()
	if err := q.Skip(n); err != nil {
		t.Fatal(err)
	}
}

func TestSkippedNumbersAreAGap(t *testing.T) {
	fsys := newDisk(31)
	q := open(t, fsys, testOptions())
	mustAppend(t, q, part(10, "a", 100))
	mustSkip(t, q, 5)
	mustSkip(t, q, 2)
	if st := q.Stats(); st.Skipped != 7 || !st.Refusing {
		t.Errorf("stats %+v", st)
	}
	fsys = fsys.crash() // a kill forgets none
	q = open(t, fsys, testOptions())
	if _, _, next := q.Boot(); next != 18 || q.Stats().Skipped != 7 {
		t.Fatalf("after a crash next is %d, %+v", next, q.Stats())
	}
	e := mustAppend(t, q, part(3, "b", 100))[0]
	if e.Identity.SeqStart != 18 || q.Stats().Refusing {
		t.Errorf("batch %s, %+v", e.Identity, q.Stats())
	}
	mustAppend(t, q, part(1, "c", 100))
	q = open(t, fsys.crash(), testOptions())
	if _, _, next := q.Boot(); next != 22 || lost(q) != 7 {
		t.Errorf("next %d, %d lost", next, lost(q))
	}
}

// TestSkipOnAFullDisk: nothing can be created and no file can grow, and yet a kill forgets
// nothing of what was refused.
func TestSkipOnAFullDisk(t *testing.T) {
	fsys := newDisk(32)
	q := open(t, fsys, testOptions())
	mustAppend(t, q, part(10, "a", 100))
	fsys.fail = func(op errorfs.Kind, name string) error {
		if op == errorfs.Create || op == errorfs.Write && !strings.HasSuffix(name, "/"+skipName) {
			return fmt.Errorf("%s %s: %w", op, name, syscall.ENOSPC)
		}
		return nil
	}
	for range 20 {
		if _, err := q.Append(part(4, "x", 100)); !errors.Is(err, ErrFull) {
			t.Fatalf("append: %v", err)
		}
		mustSkip(t, q, 4)
	}
	if n := len(fsys.read(t, "/q/"+skipName)); n != 2*skipSlot {
		t.Errorf("the file grew to %d bytes", n)
	}
	q = open(t, fsys.crash(), testOptions())
	if e := mustAppend(t, q, part(1, "b", 100))[0]; e.Identity.SeqStart != 91 {
		t.Errorf("after a full disk and a crash: %s, want 91", e.Identity)
	}
}

// TestSkipThatCannotBeNoted: a disk that takes nothing at all. What it could not note is in
// the numbers of the next batch that it takes.
func TestSkipThatCannotBeNoted(t *testing.T) {
	fsys := newDisk(33)
	q := open(t, fsys, testOptions())
	mustAppend(t, q, part(10, "a", 100))
	broken := errors.New("read-only file system")
	fsys.fail = func(op errorfs.Kind, _ string) error {
		if op == errorfs.Write || op == errorfs.Sync {
			return broken
		}
		return nil
	}
	if err := q.Skip(6); !errors.Is(err, broken) {
		t.Fatalf("skip: %v", err)
	}
	fsys.fail = nil
	mustAppend(t, q, part(1, "b", 100))
	q = open(t, fsys.crash(), testOptions())
	if _, _, next := q.Boot(); next != 18 || lost(q) != 6 {
		t.Errorf("next %d, %d lost", next, lost(q))
	}
}

// TestSkipAtTheStartOfABoot: below the first number of a boot nobody sees a gap, so it
// follows the first batch; and what no batch followed goes to the next boot.
func TestSkipAtTheStartOfABoot(t *testing.T) {
	fsys := newDisk(34)
	q := open(t, fsys, testOptions())
	mustSkip(t, q, 5)
	fsys = fsys.crash()
	q = open(t, fsys, testOptions())
	if e := mustAppend(t, q, part(10, "a", 100))[0]; e.Identity.SeqStart != 1 {
		t.Fatalf("first batch %s", e.Identity)
	}
	fsys = fsys.crash()
	q = open(t, fsys, testOptions())
	if e := mustAppend(t, q, part(1, "b", 100))[0]; e.Identity.SeqStart != 16 {
		t.Fatalf("second batch %s, want it behind a gap of 5", e.Identity)
	}
	mustSkip(t, q, 7)
	if err := q.NewBoot("test"); err != nil {
		t.Fatal(err)
	}
	fsys = fsys.crash()
	q = open(t, fsys, testOptions())
	first, second := mustAppend(t, q, part(2, "c", 100))[0], mustAppend(t, q, part(2, "d", 100))[0]
	if first.Identity.SeqStart != 1 || second.Identity.SeqStart != 10 {
		t.Errorf("next boot: %s, %s; want a gap of 7 between them", first.Identity, second.Identity)
	}
	if lost(q) != 12 || q.Stats().Skipped != 12 {
		t.Errorf("%d lost, %+v", lost(q), q.Stats())
	}
}

// TestSkipsSurviveEveryCrash ends the machine at every call of a history of batches, refused
// ones and new boots: each refused record that was noted is in a gap, once.
func TestSkipsSurviveEveryCrash(t *testing.T) {
	for seed := range uint64(4) {
		for crashAt := 1; ; crashAt++ {
			fsys := newDisk(seed)
			fsys.crashAt = crashAt
			rng := rand.New(rand.NewPCG(seed, 9))
			noted, tried := uint64(0), uint64(0)
			q, err := Open(fsys, "/q", testOptions())
			for step := 0; err == nil && step < 30; step++ {
				switch n := 1 + rng.Uint64N(9); rng.IntN(6) {
				case 0:
					err = q.NewBoot("test")
				case 1, 2, 3:
					tried += n
					if err = q.Skip(n); err == nil {
						noted += n
					}
				default:
					_, err = q.Append(part(n, "x", 50))
				}
			}
			done := err == nil
			q, err = Open(fsys.crash(), "/q", testOptions())
			if err != nil {
				t.Fatalf("seed %d, call %d: %v", seed, crashAt, err)
			}
			if n := lost(q); n < noted || n > tried {
				t.Fatalf("seed %d, call %d: %d numbers are skipped, %d were noted and %d tried; %+v", seed, crashAt, n, noted, tried, q.skip)
			}
			if done {
				break
			}
		}
	}
}

// TestTornNoteOfSkippedNumbers: the note that was being written is lost, the one before it is not.
func TestTornNoteOfSkippedNumbers(t *testing.T) {
	fsys := newDisk(35)
	q := open(t, fsys, testOptions())
	mustAppend(t, q, part(10, "a", 100))
	mustSkip(t, q, 5)
	mustSkip(t, q, 2)
	newest := int(q.skip.generation%2) * skipSlot
	fsys = fsys.crash()
	fsys.flip(t, "/q/"+skipName, int64(newest+20), 0xff)
	q = open(t, fsys, testOptions())
	if _, _, next := q.Boot(); next != 16 || q.Stats().Skipped != 5 {
		t.Errorf("next %d, %+v; want what the older note says", next, q.Stats())
	}
	mustSkip(t, q, 1)
	q = open(t, fsys.crash(), testOptions())
	if _, _, next := q.Boot(); next != 17 {
		t.Errorf("next %d: the damaged slot was not overwritten", next)
	}
}

func TestRefusingEndsWithTheNextBatch(t *testing.T) {
	q := open(t, newDisk(36), testOptions())
	mustSkip(t, q, 1)
	if !q.Stats().Refusing {
		t.Error("a queue that refused does not say so")
	}
	mustAppend(t, q, part(1, "a", 10))
	if q.Stats().Refusing {
		t.Error("a queue that takes batches says that it refuses")
	}
}
