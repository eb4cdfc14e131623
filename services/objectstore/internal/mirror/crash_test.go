package mirror

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
)

// ordered notes the order of the calls over all disks.
type ordered struct {
	mu    sync.Mutex
	calls []int
}

func (o *ordered) watch(i int, f *crashfs.FS) {
	f.Lie = func(crashfs.Op) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.calls = append(o.calls, i)
		return false
	}
}

func (o *ordered) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.calls)
}

// acked is a file that was durable behind so many calls.
type acked struct {
	name, text string
	at         int
}

// TestMirrorPowerLossWhileCopying: a store is founded, a drive is replaced by an empty one and filled while writes go on, and the power
// fails behind each call, differently for each drive. With both drives the store opens and has every durable file; with one of them it has, too, or
// says that it must not.
func TestMirrorPowerLossWhileCopying(t *testing.T) {
	for seed := range uint64(6) {
		d := newDisks(2)
		f := d.open(t)
		must(t, f.Mkdir("d"))
		for i := range 5 {
			write(t, f, fmt.Sprintf("d/old%d", i), strings.Repeat("o", 700*i))
		}
		must(t, f.SyncDir("d"))
		must(t, f.Close())
		// The first drive was there before, and stands as it was; the second one is new.
		d.under[0], d.under[1] = end(d.under[0]), crashfs.New()
		if seed%2 == 1 { // the other way round, so that the drive that is copied from is the second one
			d.under[0], d.under[1] = d.under[1], d.under[0]
		}
		o := &ordered{}
		for i, u := range d.under {
			o.watch(i, u)
		}
		opt := d.options()
		opt.Force = true // a new drive in the place of one of two
		f, err := Open(opt)
		must(t, err)
		var files []acked
		for i := range 5 {
			files = append(files, acked{fmt.Sprintf("d/old%d", i), strings.Repeat("o", 700*i), 0})
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		growing, err := f.Create("growing")
		must(t, err)
		for i := 0; i < 8 || f.Status().InSync < 2; i++ {
			name := fmt.Sprintf("new%d", i)
			write(t, f, name, strings.Repeat("n", 900))
			files = append(files, acked{name, strings.Repeat("n", 900), o.len()})
			_, err := growing.WriteAt([]byte("grows"), int64(5*i))
			must(t, err, growing.Sync())
			if i > 3 {
				must(t, f.Remove(fmt.Sprintf("new%d", i-2)), f.SyncDir("."))
				files = slices.DeleteFunc(files, func(a acked) bool { return a.name == fmt.Sprintf("new%d", i-2) })
				time.Sleep(time.Millisecond)
			}
		}
		joined := o.len()
		for i := range 3 { // and with both
			name := fmt.Sprintf("last%d", i)
			write(t, f, name, "l")
			files = append(files, acked{name, "l", o.len()})
		}
		stop()
		must(t, <-ended, growing.Close(), f.Close())
		crashEverywhere(t, d, o, files, joined, seed)
	}
}

// end gives the disk as it is when all is written back.
func end(f *crashfs.FS) *crashfs.FS {
	w := f.Walk()
	for w.Step() {
	}
	return w.Crash(crashfs.Kept, 1)
}

func crashEverywhere(t *testing.T, d *disks, o *ordered, files []acked, joined int, seed uint64) {
	t.Helper()
	walks := []*crashfs.Walker{d.under[0].Walk(), d.under[1].Walk()}
	refused, opened := 0, 0
	for at := range len(o.calls) + 1 {
		rng := rand.New(rand.NewPCG(seed, uint64(at)))
		for lost := -1; lost < 2; lost++ {
			after := newDisks(2)
			for i, w := range walks {
				after.under[i] = w.Crash(crashfs.Model(rng.IntN(4)), rng.Uint64())
				after.under[i].Lie = nil // what happens from here on is not counted
			}
			if lost >= 0 {
				after.fail(lost, errors.New("no such device"))
			}
			opt := after.options()
			// Once it has joined, the new drive has everything by itself.
			opt.Force = lost == int(seed%2) && at >= joined
			f, err := Open(opt)
			// The first start was one with Force: until its record was durable, another needs it as well.
			if errors.Is(err, ErrMajority) || errors.Is(err, ErrFound) {
				refused++
				continue
			}
			if err != nil {
				t.Fatalf("seed %d, behind call %d of %d, lost %d: %v", seed, at, len(o.calls), lost, err)
			}
			opened++
			for _, a := range files {
				if got := text(f, a.name); a.at <= at && got != a.text {
					t.Fatalf("seed %d, behind call %d of %d, lost %d: %s is %.60q; %v", seed, at, len(o.calls), lost, a.name, got, states(f))
				}
			}
			// And it can be filled again.
			if lost < 0 && at%8 == 0 {
				run(t, f)
			}
			must(t, f.Close())
		}
		if at < len(o.calls) {
			walks[o.calls[at]].Step()
		}
	}
	t.Logf("seed %d: %d calls, %d opened, %d refused", seed, len(o.calls), opened, refused)
	if refused == 0 || opened == 0 {
		t.Error("every start, or none, was refused")
	}
}
