package queue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ends runs f up to the nth hit of a point, at which the process ends; false when f came to its own end.
func ends(t *testing.T, point string, nth int, f func() error) (ended bool) {
	t.Helper()
	if err := failpoint.Arm(fmt.Sprintf("%s=%s@%d", point, failpoint.Panic, nth)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = failpoint.Arm("") }()
	defer func() {
		switch r := recover(); r {
		case nil:
		case "failpoint " + point:
			ended = true
		default:
			panic(r)
		}
	}()
	if err := f(); err != nil {
		t.Fatalf("%s: %v", point, err)
	}
	return false
}

// disks are what a killed process leaves, and what some losses of power leave.
func disks(f *crashfs.FS) map[string]*crashfs.FS {
	w := f.Walk()
	for w.Step() {
	}
	out := map[string]*crashfs.FS{"killed": w.Kill()}
	for seed := range uint64(3) {
		for _, m := range []crashfs.Model{crashfs.Dropped, crashfs.Ordered, crashfs.Strict} {
			out[fmt.Sprintf("%s, seed %d", m, seed)] = w.Crash(m, seed)
		}
	}
	return out
}

// TestCrashAtEveryFailpoint ends the process at each point that only a nearly full queue
// leads to, twice; every batch that was queued is there.
func TestCrashAtEveryFailpoint(t *testing.T) {
	states, points := 0, 0
	for _, p := range failpoint.Points() {
		if p.Test != "agent/queue" || !strings.HasPrefix(p.Name, "agent.queue.relocate.") {
			continue
		}
		points++
		for nth := 1; nth <= 2; nth++ {
			f := crashfs.New()
			d := &diary{facts: map[identity.Batch]*fact{}, tried: map[identity.Batch][][]byte{}, options: powerOptions()}
			rng := rand.New(rand.NewPCG(uint64(nth), 3))
			if !ends(t, p.Name, nth, func() error { return stuck(d, f, rng) }) {
				t.Errorf("%s was not reached %d times", p.Name, nth)
				continue
			}
			for how, g := range disks(f) {
				states++
				q, err := d.check(g, f.Len())
				if err == nil {
					err = d.shown(q, g.Len()).run(g, q, rng, 5)
				}
				if err != nil {
					t.Errorf("%s at hit %d, %s: %v", p.Name, nth, how, err)
				}
			}
		}
	}
	if points != 3 {
		t.Errorf("%d points", points)
	}
	t.Logf("%d states", states)
}

// stuck keeps every seventh batch pending while the others are acknowledged.
func stuck(d *diary, f *crashfs.FS, rng *rand.Rand) error {
	q, err := Open(f, "/q", d.options)
	if err != nil {
		return err
	}
	for i := range 600 {
		if err := d.append(f, q, rng, i); err != nil {
			return err
		}
		for _, e := range q.Pending(0, 100) {
			if e.No%30 == 0 {
				continue
			}
			if x := d.facts[e.Identity]; x != nil {
				x.ended = f.Len() + 1
			}
			if err := q.Ack(e.No); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestCrashAtCut ends a start at each point of the way that it takes with a damaged tail.
// The next start finds the same, or what was done: a new boot, and the tail is kept.
func TestCrashAtCut(t *testing.T) {
	points := 0
	for _, p := range failpoint.Points() {
		if p.Test != "agent/queue" || !strings.HasPrefix(p.Name, "agent.queue.cut.") {
			continue
		}
		points++
		for round := 1; round <= 2; round++ { // the second start ends there as well
			f := crashfs.New()
			boot, first := damagedTail(t, f)
			reached := true
			for range round {
				reached = reached && ends(t, p.Name, 1, func() error {
					_, err := Open(f, "/q", testOptions())
					return err
				})
				w := f.Walk()
				for w.Step() {
				}
				if f = w.Kill(); strings.HasSuffix(p.Name, ".truncated") {
					break // the damage is gone: no start comes here again
				}
			}
			if !reached {
				t.Errorf("%s was not reached %d times", p.Name, round)
				continue
			}
			for how, g := range disks(f) {
				q, err := Open(g, "/q", testOptions())
				if err != nil {
					t.Errorf("%s, %s: %v", p.Name, how, err)
					continue
				}
				list := q.Pending(0, 9)
				b, _, _ := q.Boot()
				names, err := vfs.Names(g, "/q")
				if len(list) != 1 || list[0].Identity != first || b == boot || !strings.Contains(strings.Join(names, " "), ".cut") || err != nil {
					t.Errorf("%s, %s: boot %v, pending %v, files %v, %v", p.Name, how, b, list, names, err)
				}
			}
		}
	}
	if points != 3 {
		t.Errorf("%d points", points)
	}
}

// TestCrashBehindADamagedHeader: the segment is set aside, and the start ends before the
// new boot is there. Its numbers were sent: the next start does not go on from the one before.
func TestCrashBehindADamagedHeader(t *testing.T) {
	for _, segments := range []int{1, 2} {
		f := crashfs.New()
		o := testOptions()
		o.SegmentBytes = 4 << 10
		q := open(t, f, o)
		boot, _, _ := q.Boot()
		for q.active().no < uint64(segments) || q.active().size < 1000 {
			mustAppend(t, q, part(1, "a", 900))
		}
		_, werr := q.active().f.WriteAt([]byte("XX"), 0)
		if err := errors.Join(werr, q.active().f.Sync(), q.Close()); err != nil {
			t.Fatal(err)
		}
		if !ends(t, "agent.queue.roll.header", 1, func() error {
			_, err := Open(f, "/q", o)
			return err
		}) {
			t.Fatal("no new segment")
		}
		for how, g := range disks(f) {
			for start := range 2 {
				q, err := Open(g, "/q", o)
				if err != nil {
					t.Fatalf("%s: %v", how, err)
				}
				b, _, next := q.Boot()
				if b == boot || next != 1 || start == 1 && q.Recovered().NewBoot != "" {
					t.Errorf("%d segments, %s, start %d: boot %v, next %d, %+v", segments, how, start, b, next, q.Recovered())
				}
				if err := q.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// damagedTail leaves three records, of which the second is damaged and the third is whole.
func damagedTail(t *testing.T, f *crashfs.FS) (identity.Boot, identity.Batch) {
	t.Helper()
	q := open(t, f, testOptions())
	boot, _, _ := q.Boot()
	first := mustAppend(t, q, part(1, "a", 60))[0]
	s := q.active()
	at := s.size + recordHeader + 40
	mustAppend(t, q, part(1, "b", 60))
	mustAppend(t, q, part(1, "c", 60))
	b := make([]byte, 1)
	_, rerr := s.f.ReadAt(b, at)
	b[0] ^= 1
	_, werr := s.f.WriteAt(b, at)
	if err := errors.Join(rerr, werr, s.f.Sync(), q.Close()); err != nil {
		t.Fatal(err)
	}
	return boot, first.Identity
}
