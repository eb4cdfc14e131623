package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/cryptotest"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/mirror"
)

// rack is several disks that lose power at one moment, each in its own way.
type rack struct {
	disks []*crashfs.FS
	// broken is the disk whose calls fail, counted from 1; 0: none.
	broken atomic.Int32
	// unlike: what crashes have left different is not made equal.
	unlike bool

	mu    sync.Mutex
	order []uint8 // which disk made the calls, over all disks
	base  []int   // the calls that each had made before
}

func newRack(n int) *rack {
	r := &rack{}
	for range n {
		r.add(crashfs.New(), nil)
	}
	return r
}

// add adds a disk whose calls are counted; lie makes some of them do nothing.
func (r *rack) add(f *crashfs.FS, lie func(crashfs.Op) bool) {
	i := uint8(len(r.disks))
	f.Lie = func(o crashfs.Op) bool {
		if lie != nil && lie(o) {
			return true
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.order = append(r.order, i)
		return false
	}
	r.disks, r.base = append(r.disks, f), append(r.base, f.Len())
}

// walk gives walkers before the first call that is counted.
func (r *rack) walk() []*crashfs.Walker {
	walks := make([]*crashfs.Walker, len(r.disks))
	for i, d := range r.disks {
		walks[i] = d.Walk()
		for range r.base[i] {
			walks[i].Step()
		}
	}
	return walks
}

// made gives the disks in the order of their calls.
func (r *rack) made() []uint8 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.order)
}

func (r *rack) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.order)
}

// all: no disk is lost.
const all = -1

// open opens the store; the disk lost cannot be reached.
func (r *rack) open(lost int) (*Engine, error) {
	o := mirror.Options{
		Retry:     time.Hour,
		Reconcile: func(d []vfs.FS) ([]error, error) { return Reconcile(d, slog.New(slog.DiscardHandler)) },
		DropIndex: func(slot int) error { return crashVFS{r.disks[slot]}.RemoveAll("index") },
	}
	if r.unlike {
		o.Reconcile = nil
	}
	for i := range r.disks {
		o.Drives = append(o.Drives, mirror.Drive{Name: fmt.Sprintf("disk%d", i), FS: errorfs.Wrap(r.disks[i], func(op errorfs.Op) (f errorfs.Fault) {
			if i == lost || int(r.broken.Load()) == i+1 {
				f = errorfs.Fault{Err: syscall.EIO, Written: op.Size / 2}
			}
			return f
		})})
	}
	m, err := mirror.Open(o)
	if err != nil {
		return nil, err
	}
	opt := crashOptions(r.disks[m.IndexSlot()])
	opt.FS = m
	e, err := Open(opt)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return e, nil
}

func closeMirror(e *Engine) {
	e.abandon()
	_ = e.fs.(*mirror.FS).Close()
}

// look opens the store and gives what is to be seen.
func (r *rack) look(lost int) (world, *Engine, error) {
	e, err := r.open(lost)
	if err != nil {
		return nil, nil, err
	}
	w, err := look(e)
	if err != nil {
		closeMirror(e)
		return nil, nil, err
	}
	return w, e, nil
}

// check opens the store and compares.
func (r *rack) check(worlds []world, least, most, lost int) (int, *Engine, error) {
	w, e, err := r.look(lost)
	if err != nil {
		return 0, nil, err
	}
	for i := least; i <= most; i++ {
		if (w == nil) == (worlds[i] == nil) && maps.Equal(w, worlds[i]) {
			return i, e, nil
		}
	}
	closeMirror(e)
	return 0, nil, fmt.Errorf("%w: %s", errLost, difference(w, worlds[least]))
}

// after gives the disks as a loss of power, or of the process, behind some calls leaves them.
func (r *rack) after(walks []*crashfs.Walker, rng *rand.Rand, killed bool) *rack {
	out := &rack{unlike: r.unlike}
	for _, w := range walks {
		f := w.Kill()
		if !killed {
			f = w.Crash(crashfs.Model(rng.IntN(4)), rng.Uint64())
		}
		out.add(f, nil)
	}
	return out
}

// mirrorMatrix explores a session on a rack.
type mirrorMatrix struct {
	matrix
	refused atomic.Int64
}

func (m *mirrorMatrix) explore(r *rack, s *session, seed uint64, perCall int, pool *workers) {
	walks := r.walk()
	order := r.made()
	for at := 0; at <= len(order) && !m.failed(); at++ {
		least, most := s.bounds(at)
		for i := range perCall {
			id := seed<<40 + uint64(at)<<8 + uint64(i)
			rng := rand.New(rand.NewPCG(id, 7))
			killed := i == perCall-1
			if killed && at%3 != 0 {
				continue
			}
			after := r.after(walks, rng, killed)
			var last strings.Builder
			for j, w := range walks {
				for _, o := range w.Last(4) {
					fmt.Fprintf(&last, "\n    %d %s", j, o)
				}
			}
			pool.jobs <- func() {
				m.state(after, s.worlds, least, most, rng, func(err error) {
					m.fail("seed %d, behind call %d of %d, disks %d, killed %v: %v%s", seed, at, len(order), id, killed, err, last.String())
				})
			}
		}
		if at < len(order) {
			walks[order[at]].Step()
		}
	}
}

// state checks the disks of one crash: all of them open, and with one lost what opens has everything; then, sometimes, it goes on.
func (m *mirrorMatrix) state(r *rack, worlds []world, least, most int, rng *rand.Rand, fail func(error)) {
	m.states.Add(1)
	if rng.IntN(3) == 0 {
		lost := rng.IntN(len(r.disks))
		shown, e, err := r.check(worlds, least, most, lost)
		switch {
		case errors.Is(err, mirror.ErrMajority) || errors.Is(err, mirror.ErrFound):
			// Refused, and nothing of it may change what all of them have.
			m.refused.Add(1)
		case err != nil:
			fail(fmt.Errorf("without disk %d: %w", lost, err))
			return
		default:
			closeMirror(e)
			least, most = shown, shown
		}
	}
	shown, e, err := r.check(worlds, least, most, all)
	if err != nil {
		fail(err)
		return
	}
	if rng.IntN(3) != 0 {
		closeMirror(e)
		return
	}
	m.goOn(r, e, worlds[shown], rng, fail)
}

// goOn writes to a recovered store, sometimes with a disk that fails, and crashes it again.
func (m *mirrorMatrix) goOn(r *rack, e *Engine, now world, rng *rand.Rand, fail func(error)) {
	defer closeMirror(e)
	s := &session{e: e, worlds: []world{now}, count: r.len}
	if now == nil {
		if err := s.together(bucketCall())[0]; err != nil {
			fail(err)
			return
		}
	}
	if e.fs.(*mirror.FS).Status().InSync == len(r.disks) && rng.IntN(2) == 0 {
		r.broken.Store(int32(1 + rng.IntN(len(r.disks))))
		if r.disks[int(r.broken.Load())-1] == e.opt.IndexFS.(crashVFS).FS {
			r.broken.Store(0) // the index has no faults here, and stays on this disk
		}
	}
	from := r.len()
	if err := workload(s, rng.Uint64()>>40, 4); err != nil {
		fail(fmt.Errorf("with disk %d broken: %w; %+v", r.broken.Load(), err, e.fs.(*mirror.FS).Status()))
		return
	}
	// Behind any call: the end of the trace is one of them.
	cut := r.len()
	if rng.IntN(2) == 0 {
		cut = from + rng.IntN(cut-from+1)
	}
	walks := r.walk()
	for _, i := range r.made()[:cut] {
		walks[i].Step()
	}
	lo, hi := s.bounds(cut)
	m.nested.Add(1)
	after := r.after(walks, rng, false)
	_, e2, err := after.check(s.worlds, lo, hi, all)
	if err != nil {
		fail(fmt.Errorf("went on with disk %d broken, then crashed behind call %d of %d: %w", r.broken.Load(), cut, r.len(), err))
		return
	}
	closeMirror(e2)
}

// mirrorSeed explores one history on several disks, of which one may fail on the way.
func mirrorSeed(t *testing.T, m *mirrorMatrix, lie func(crashfs.Op) bool, unlike bool, disks int, seed uint64, steps, perCall int) int {
	cryptotest.SetGlobalRandom(t, seed)
	r := &rack{unlike: unlike}
	for i := range disks {
		if i == 0 {
			r.add(crashfs.New(), nil)
		} else {
			r.add(crashfs.New(), lie)
		}
	}
	e, err := r.open(all)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{e: e, worlds: []world{nil}, count: r.len}
	if err := s.together(bucketCall())[0]; err != nil {
		t.Fatal(err)
	}
	if err := workload(s, seed, steps/2); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if lie == nil && !unlike && seed%2 == 0 {
		r.broken.Store(int32(disks)) // the last one, which has no index
	}
	if err := workload(s, seed+1000, steps/2); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	pool := newWorkers(runtime.GOMAXPROCS(0))
	m.explore(r, s, seed, perCall, pool)
	pool.wait()
	closeMirror(e)
	return r.len()
}

// TestMirrorPowerLoss: power fails behind every call to any of two or three disks, which lose different things, and one of
// which may have failed before. All disks together open, and show what was acknowledged; what opens without one of them does too, or says that it
// must not.
func TestMirrorPowerLoss(t *testing.T) {
	seeds, steps, perCall := uint64(4), 14, 3
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		seeds, steps, perCall = 24, 40, 6
	}
	m := &mirrorMatrix{}
	calls := 0
	for seed := uint64(1); seed <= seeds && !m.failed(); seed++ {
		calls += mirrorSeed(t, m, nil, false, 2+int(seed/2%2), seed, steps, perCall)
	}
	t.Logf("%d calls, %d crash states, %d second crashes, %d refused", calls, m.states.Load(), m.nested.Load(), m.refused.Load())
	for _, f := range m.failures {
		t.Error(f)
	}
	if m.refused.Load() == 0 && !m.failed() {
		t.Error("no start with a disk less was refused")
	}
}

// TestMirrorPowerLossMutants: the matrix must fail when drives are not made equal before they are used, and when only the first one syncs.
func TestMirrorPowerLossMutants(t *testing.T) {
	for _, c := range []struct {
		name   string
		lie    func(crashfs.Op) bool
		unlike bool
	}{
		{"drives are not made equal", nil, true},
		{"segments are synced on the first drive only", skip(crashfs.Sync, logDir+"/"), false},
		{"bodies are synced on the first drive only", skip(crashfs.Sync, tmpDir+"/"), false},
		{"names are synced on the first drive only", func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && o.Path != "." }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &mirrorMatrix{}
			for seed := uint64(1); seed <= 8; seed++ {
				mirrorSeed(t, m, c.lie, c.unlike, 3, seed, 14, 4)
				if m.failed() {
					t.Logf("caught by seed %d after %d states: %.300s", seed, m.states.Load()+m.nested.Load(), m.failures[0])
					return
				}
			}
			t.Errorf("not caught in %d states", m.states.Load()+m.nested.Load())
		})
	}
}
