package queue

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// fact is what a call of the queue's user was told, and when: the calls of the disk that
// were recorded before it was made and when it was answered.
type fact struct {
	id            identity.Batch
	frame         []byte
	from, to      int
	ended         int   // calls recorded when its end was asked for; 0: never
	aside         State // where its bytes are then, for Park and DeadLetter
	asideDone     int   // calls recorded when that was answered
	removed, back int   // when RemoveAside or Requeue was asked for; 0: never
	backDone      int   // when Requeue was answered
}

// diary is a workload's history.
type diary struct {
	facts   map[identity.Batch]*fact
	tried   map[identity.Batch][][]byte
	options Options
}

func powerOptions() Options {
	o := testOptions()
	o.SegmentBytes, o.MaxBytes = 4<<10, 48<<10
	return o
}

func (d *diary) run(f *crashfs.FS, q *Queue, rng *rand.Rand, steps int) error {
	for i := range steps {
		list := q.Pending(0, 50)
		dead := q.HeldBatches(Dead)
		switch n := rng.IntN(12); {
		case n == 0:
			if err := q.NewBoot("test"); err != nil {
				return err
			}
		case n == 1 && len(dead) > 0:
			x := d.facts[dead[0].Identity()]
			at := f.Len()
			if _, err := q.Requeue(dead[0].ID); errors.Is(err, ErrFull) {
				continue // nothing was written
			} else if err != nil {
				return err
			}
			if x != nil {
				x.back, x.backDone = at+1, f.Len()
				x.ended, x.aside, x.asideDone = 0, Pending, 0
			}
		case n == 2 && len(dead) > 0:
			if x := d.facts[dead[0].Identity()]; x != nil {
				x.removed = f.Len() + 1
			}
			if err := q.RemoveHeld(Dead, dead[0].ID); err != nil {
				return err
			}
		case n < 8 && len(list) > 2:
			e := list[rng.IntN(len(list))]
			x := d.facts[e.Identity]
			if x == nil {
				return fmt.Errorf("%s is pending and unknown", e.Identity)
			}
			x.ended = f.Len() + 1
			switch rng.IntN(5) {
			case 0:
				if _, err := q.Park(e.No, HoldReason{Reason: "x"}); err != nil {
					return err
				}
				x.aside, x.asideDone = Parked, f.Len()
			case 1:
				if _, err := q.DeadLetter(e.No, HoldReason{Reason: "y"}); err != nil {
					return err
				}
				x.aside, x.asideDone = Dead, f.Len()
			default:
				if err := q.Ack(e.No); err != nil {
					return err
				}
			}
		default:
			if err := d.append(f, q, rng, i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *diary) append(f *crashfs.FS, q *Queue, rng *rand.Rand, i int) error {
	salt := fmt.Sprintf("%d-%d", i, rng.Uint64())
	frames := map[identity.Batch][]byte{}
	var parts []Part
	for range 1 + rng.IntN(3) {
		size := 20 + rng.IntN(1200)
		parts = append(parts, Part{Records: 1 + rng.Uint64N(50), Encode: func(id identity.Batch) ([]byte, error) {
			b := frameOf(id, salt, size)
			frames[id] = b
			d.tried[id] = append(d.tried[id], b)
			return b, nil
		}})
	}
	from := f.Len()
	entries, err := q.Append(parts...)
	if errors.Is(err, ErrFull) {
		return q.Skip(uint64(1 + rng.IntN(50)))
	}
	for _, e := range entries {
		d.facts[e.Identity] = &fact{id: e.Identity, frame: frames[e.Identity], from: from, to: f.Len()}
	}
	return err
}

// check opens a disk whose power went behind so many calls. Rules: docs/protocol/crash.md.
func (d *diary) check(f *crashfs.FS, calls int) (*Queue, error) {
	q, err := Open(f, "/q", d.options)
	if err != nil {
		return nil, err
	}
	if n := q.Recovered().Damaged; n != 0 {
		return nil, fmt.Errorf("%d sealed records damaged by a mere power loss", n)
	}
	there := map[identity.Batch]bool{}
	for _, e := range q.Pending(0, 1<<20) {
		got, err := q.Frame(e.No)
		if err != nil {
			return nil, err
		}
		x := d.facts[e.Identity]
		switch {
		case there[e.Identity]:
			return nil, fmt.Errorf("%s is pending twice", e.Identity)
		case x != nil && x.to <= calls && !bytes.Equal(got, x.frame):
			return nil, fmt.Errorf("%s has other bytes than were given out", e.Identity)
		case !slices.ContainsFunc(d.tried[e.Identity], func(b []byte) bool { return bytes.Equal(b, got) }):
			return nil, fmt.Errorf("%s was invented, or is not whole", e.Identity)
		}
		there[e.Identity] = true
	}
	aside := map[State]map[identity.Batch]bool{Parked: {}, Dead: {}}
	for s, found := range aside {
		for _, a := range q.HeldBatches(s) {
			frame, err := q.readFile(filepath.Join(q.heldDir(s), a.ID+frameExt), maxBody)
			if err != nil || identity.Sum(frame) != a.FrameSHA256 || !slices.ContainsFunc(d.tried[a.Identity()], func(b []byte) bool { return bytes.Equal(b, frame) }) {
				return nil, fmt.Errorf("%s %s has no frame, or not its own: %w", s, a.ID, err)
			}
			found[a.Identity()] = true
		}
	}
	boot, _, next := q.Boot()
	for id, x := range d.facts {
		if x.to > calls {
			continue
		}
		if id.BootOf() == boot && id.SeqEnd >= next {
			return nil, fmt.Errorf("next is %d, but %s was given out", next, id)
		}
		ended := x.ended > 0 && x.ended-1 <= calls || x.back > 0 && calls < x.backDone
		if !ended && !there[id] {
			return nil, fmt.Errorf("%s was queued and is gone", id)
		}
		gone := x.removed > 0 && x.removed-1 <= calls || x.back > 0
		if x.aside != Pending && x.asideDone <= calls && !gone && !aside[x.aside][id] {
			return nil, fmt.Errorf("%s was set aside as %s and is not there", id, x.aside)
		}
	}
	return q, nil
}

// outage counts disks that were tried, and keeps the first failures.
type outage struct {
	states, nested int
	failures       []string
}

func (o *outage) fail(w *crashfs.Walker, format string, args ...any) {
	var b strings.Builder
	fmt.Fprintf(&b, format, args...)
	for _, op := range w.Last(20) {
		fmt.Fprintf(&b, "\n    %s", op)
	}
	o.failures = append(o.failures, b.String())
}

// again: the power goes within a recovery and right behind it.
func (o *outage) again(d *diary, f *crashfs.FS, from, calls int, rng *rand.Rand) {
	w := f.Walk()
	if w.Len() == from {
		return
	}
	within := from + rng.IntN(w.Len()-from)
	for ok := true; ok; ok = w.Step() {
		if w.At() != within && w.At() != w.Len() {
			continue
		}
		models := []crashfs.Model{crashfs.Model(rng.IntN(4))}
		if from > 0 && w.At() == w.Len() {
			models = []crashfs.Model{crashfs.Dropped, crashfs.Ordered, crashfs.Strict, crashfs.Strict, crashfs.Strict}
		}
		for _, model := range models {
			o.nested++
			if _, err := d.check(w.Crash(model, rng.Uint64()), calls); err != nil {
				o.fail(w, "second crash behind call %d of %d, %s: %v", w.At(), w.Len(), model, err)
			}
		}
	}
}

// shown notes what a recovery gave out: it stays, whatever happens next.
func (d *diary) shown(q *Queue, calls int) *diary {
	n := &diary{facts: map[identity.Batch]*fact{}, tried: map[identity.Batch][][]byte{}, options: d.options}
	for id, frames := range d.tried {
		n.tried[id] = slices.Clip(frames) // what is tried from here on is not the others' business
	}
	for _, e := range q.Pending(0, 1<<20) {
		b, _ := q.Frame(e.No)
		n.facts[e.Identity] = &fact{id: e.Identity, frame: b, to: calls}
	}
	for _, s := range []State{Parked, Dead} {
		for _, a := range q.HeldBatches(s) {
			if x := n.facts[a.Identity()]; x == nil {
				b, _ := q.readFile(filepath.Join(q.heldDir(s), a.ID+frameExt), maxBody)
				n.facts[a.Identity()] = &fact{id: a.Identity(), frame: b, to: calls, ended: 1}
			}
		}
	}
	return n
}

// explore runs one history and tries crashes behind each of its calls.
func (o *outage) explore(t *testing.T, seed uint64, steps, perCall int, lie func(crashfs.Op) bool) int {
	f := crashfs.New()
	f.Lie = lie
	d := &diary{facts: map[identity.Batch]*fact{}, tried: map[identity.Batch][][]byte{}, options: powerOptions()}
	q, err := Open(f, "/q", d.options)
	if err == nil {
		err = d.run(f, q, rand.New(rand.NewPCG(seed, 1)), steps)
	}
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	type disk struct {
		print uint64
		told  int
	}
	seen := map[disk]bool{}
	w := f.Walk()
	for ok := true; ok && len(o.failures) == 0; ok = w.Step() {
		rng := rand.New(rand.NewPCG(seed, uint64(w.At())))
		told := 0
		for _, x := range d.facts {
			for _, at := range []int{x.to, x.ended, x.asideDone, x.removed, x.back} {
				if at <= w.At() {
					told++
				}
			}
		}
		for i := range perCall {
			model := crashfs.Model(min(i, 2))
			if i > 2 && i%3 != 2 {
				model = crashfs.Strict
			}
			g := w.Crash(model, rng.Uint64())
			if id := (disk{g.Fingerprint(), told}); seen[id] {
				continue
			} else {
				seen[id] = true
			}
			o.states++
			r, err := d.check(g, w.At())
			if err != nil {
				o.fail(w, "seed %d, behind call %d of %d, %s: %v", seed, w.At(), w.Len(), model, err)
				continue
			}
			if i%2 == 1 {
				o.again(d, g, 0, w.At(), rng)
			}
			if i%3 == 0 {
				o.goOn(d.shown(r, g.Len()), g, r, rng)
			}
		}
		g := w.Kill()
		o.states++
		r, err := d.check(g, w.At())
		if err != nil {
			o.fail(w, "seed %d, killed behind call %d of %d: %v", seed, w.At(), w.Len(), err)
			continue
		}
		o.again(d, g, w.At(), w.At(), rng)
		o.goOn(d.shown(r, g.Len()), g, r, rng)
	}
	return f.Len()
}

// goOn uses a recovered queue, and the power goes somewhere in there.
func (o *outage) goOn(d *diary, f *crashfs.FS, q *Queue, rng *rand.Rand) {
	from := f.Len()
	if err := d.run(f, q, rng, 3); err != nil {
		o.fail(f.Walk(), "going on: %v", err)
		return
	}
	cut := from + rng.IntN(f.Len()-from+1)
	w := f.Walk()
	for w.At() < cut {
		w.Step()
	}
	model := crashfs.Model(rng.IntN(4))
	o.nested++
	if _, err := d.check(w.Crash(model, rng.Uint64()), cut); err != nil {
		o.fail(w, "went on, then crashed behind call %d of %d, %s: %v", cut, w.Len(), model, err)
	}
}

// TestQueuePowerLoss: the power fails behind every call of random histories.
func TestQueuePowerLoss(t *testing.T) {
	seeds, steps, perCall := uint64(2), 64, 4
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		seeds, steps, perCall = 30, 100, 8
	}
	o := &outage{}
	calls := 0
	for seed := uint64(1); seed <= seeds && len(o.failures) == 0; seed++ {
		calls += o.explore(t, seed, steps, perCall, nil)
	}
	t.Logf("seeds 1 to %d: %d calls, %d crash states, and %d second crashes", seeds, calls, o.states, o.nested)
	for _, f := range o.failures[:min(3, len(o.failures))] {
		t.Error(f)
	}
}

// TestQueuePowerLossMutants: the matrix must fail when a step of the write order is left out.
func TestQueuePowerLossMutants(t *testing.T) {
	for _, c := range []struct {
		name string
		lie  func(o crashfs.Op) bool
		void bool // checksums
	}{
		{"no fsync of segments", func(o crashfs.Op) bool {
			return o.Kind == crashfs.Sync && strings.Contains(o.Path, segmentExt)
		}, false},
		{"no fsync of asides", func(o crashfs.Op) bool {
			return o.Kind == crashfs.Sync && strings.Count(o.Path, "/") > 2
		}, false},
		{"no fsync of the queue's directory", func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && o.Path == "/q" }, false},
		{"no fsync of the asides' directories", func(o crashfs.Op) bool {
			return o.Kind == crashfs.SyncDir && strings.HasPrefix(o.Path, "/q/")
		}, false},
		{"no fsync of the directory above", func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && o.Path == "/" }, false},
		{"a torn tail is not cut off", func(o crashfs.Op) bool { return o.Kind == crashfs.Truncate }, false},
		{"no checksums", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.void {
				good := castagnoli
				castagnoli = new(crc32.Table)
				defer func() { castagnoli = good }()
			}
			o := &outage{}
			for seed := uint64(1); seed <= 8; seed++ {
				o.explore(t, seed, 40, 8, c.lie)
				if len(o.failures) > 0 {
					t.Logf("caught by seed %d after %d states: %.160s", seed, o.states+o.nested, o.failures[0])
					return
				}
			}
			t.Errorf("not caught in %d states", o.states+o.nested)
		})
	}
}
