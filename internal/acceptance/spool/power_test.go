package spool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// remote stands for the store: the first hash of an identity holds. It loses nothing, so
// for a crash behind so many calls it is cut back to what had landed by then.
type remote struct {
	mu     sync.Mutex
	fs     *crashfs.FS
	landed map[identity.Batch]arrival
}

type arrival struct {
	sub accept.Submission
	at  int // calls of the disk that were recorded before it landed
}

func (r *remote) Accept(_ context.Context, s accept.Submission) (accept.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := accept.Manifest{Identity: s.Identity, FrameSHA256: s.SHA256, FrameBytes: uint64(len(s.Frame))}
	a, ok := r.landed[s.Identity]
	switch {
	case !ok:
		r.landed[s.Identity] = arrival{s, r.fs.Len()}
		return accept.Result{Outcome: accept.Accepted, Manifest: m}, nil
	case a.sub.SHA256 == s.SHA256:
		return accept.Result{Outcome: accept.Duplicate, Manifest: m}, nil
	}
	m.FrameSHA256 = a.sub.SHA256
	return accept.Result{Outcome: accept.Conflict, Manifest: m}, nil
}

func (r *remote) until(calls int, f *crashfs.FS) *remote {
	n := &remote{fs: f, landed: map[identity.Batch]arrival{}}
	for id, a := range r.landed {
		if a.at <= calls {
			a.at = 0
			n.landed[id] = a
		}
	}
	return n
}

// receipt is an acknowledgement, and the calls recorded when it was given.
type receipt struct {
	sub accept.Submission
	at  int
}

type spooling struct {
	t        *testing.T
	fs       *crashfs.FS
	to       *remote
	receipts []receipt
}

func (s *spooling) config() spool.Config {
	c := config(s.t, "/spool", s.fs, s.to)
	c.Events.Corrupt = nil // asked of by state
	return c
}

func (s *spooling) run(sp *spool.Spool, rng *rand.Rand, steps int) error {
	for range steps {
		if rng.IntN(6) == 0 {
			if err := (&spool.Lander{Spool: sp, Parallel: 1}).Land(context.Background()); err != nil {
				return err
			}
			continue
		}
		sub := batch(rng.IntN(12), string(rune('a'+rng.IntN(10)/8)))
		sub.Frame = append(sub.Frame, make([]byte, rng.IntN(2)*700)...)
		if rng.IntN(3) == 0 {
			sub.Identity.Boot = "boot-2"
		}
		sub.SHA256 = identity.Sum(sub.Frame)
		r, err := sp.Accept(context.Background(), sub)
		if err != nil {
			return err
		}
		if r.Outcome != accept.Conflict {
			s.receipts = append(s.receipts, receipt{sub, s.fs.Len()})
		}
	}
	return nil
}

// state opens a disk after a crash behind so many calls, and asks for every receipt given by then.
func (s *spooling) state(f *crashfs.FS, calls int) (*spooling, *spool.Spool, error) {
	n := &spooling{t: s.t, fs: f, to: s.to.until(calls, f)}
	var damage error
	c := n.config()
	c.Events.Corrupt = func(p string, err error) { damage = errors.Join(damage, fmt.Errorf("%s: %w", p, err)) }
	sp, err := spool.Open(c)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range s.receipts {
		if r.at > calls {
			continue
		}
		id := r.sub.Identity
		frame, _, err := sp.Read(id)
		if errors.Is(err, spool.ErrNotFound) && n.to.landed[id].sub.SHA256 == r.sub.SHA256 {
			err, frame = nil, r.sub.Frame
		}
		if err != nil || string(frame) != string(r.sub.Frame) {
			return nil, nil, fmt.Errorf("%s was acknowledged: %w", id, errors.Join(err, errors.New("its bytes are not there")))
		}
		n.receipts = append(n.receipts, receipt{r.sub, 0})
	}
	for _, m := range sp.List() { // whole, whoever was told
		frame, _, err := sp.Read(m.Identity)
		if err != nil || identity.Sum(frame) != m.FrameSHA256 {
			return nil, nil, fmt.Errorf("%s is listed: %w", m.Identity, err)
		}
		if a, ok := n.to.landed[m.Identity]; ok && a.sub.SHA256 != m.FrameSHA256 {
			return nil, nil, fmt.Errorf("%s has two hashes", m.Identity)
		}
		// From here on it is readable, and so acknowledged.
		n.receipts = append(n.receipts, receipt{accept.Submission{
			Frame: frame, Identity: m.Identity, SHA256: m.FrameSHA256, Records: m.RecordCount, MinTime: m.MinTime, MaxTime: m.MaxTime, SpoolID: "spool-1",
		}, 0})
	}
	return n, sp, damage
}

// settle asks again for everything, and lands all: one hash for each identity, for ever.
func (s *spooling) settle(sp *spool.Spool) error {
	for _, r := range slices.Clone(s.receipts) {
		res, err := sp.Accept(context.Background(), r.sub)
		if err != nil || res.Outcome != accept.Duplicate {
			return fmt.Errorf("%s again: %s, %w", r.sub.Identity, res.Outcome, err)
		}
		other := r.sub
		other.Frame = []byte("other")
		other.SHA256 = identity.Sum(other.Frame)
		if res, err = sp.Accept(context.Background(), other); err != nil || res.Outcome != accept.Conflict {
			return fmt.Errorf("%s with other bytes: %s, %w", r.sub.Identity, res.Outcome, err)
		}
	}
	if err := (&spool.Lander{Spool: sp, Parallel: 1}).Land(context.Background()); err != nil {
		return err
	}
	for _, r := range s.receipts {
		if s.to.landed[r.sub.Identity].sub.SHA256 != r.sub.SHA256 {
			return fmt.Errorf("%s did not land", r.sub.Identity)
		}
	}
	return nil
}

type powerMatrix struct {
	states, nested int
	failures       []string
}

func (m *powerMatrix) fail(w *crashfs.Walker, format string, args ...any) {
	var b strings.Builder
	fmt.Fprintf(&b, format, args...)
	for _, op := range w.Last(20) {
		fmt.Fprintf(&b, "\n    %s", op)
	}
	m.failures = append(m.failures, b.String())
}

// follow: the power goes again, within recovery, behind it, and in further use.
func (m *powerMatrix) follow(first, n *spooling, sp *spool.Spool, from, calls int, rng *rand.Rand) error {
	opened := n.fs.Len()
	if err := n.run(sp, rng, 3); err != nil {
		return err
	}
	w := n.fs.Walk()
	cuts := []int{opened, opened + rng.IntN(w.Len()-opened+1)}
	if opened > from {
		cuts = append(cuts, from+rng.IntN(opened-from))
	}
	for ok := true; ok; ok = w.Step() {
		if !slices.Contains(cuts, w.At()) {
			continue
		}
		model, asks, at := crashfs.Model(rng.IntN(4)), n, w.At()
		if at < opened {
			asks, at = first, calls
		}
		m.nested++
		if _, _, err := asks.state(w.Crash(model, rng.Uint64()), at); err != nil {
			return fmt.Errorf("second crash behind call %d of %d, %s: %w", w.At(), w.Len(), model, err)
		}
	}
	return n.settle(sp)
}

func (m *powerMatrix) explore(t *testing.T, seed uint64, steps, perCall int, lie func(crashfs.Op) bool) int {
	f := crashfs.New()
	f.Lie = lie
	s := &spooling{t: t, fs: f, to: &remote{fs: f, landed: map[identity.Batch]arrival{}}}
	sp, err := spool.Open(s.config())
	if err == nil {
		err = s.run(sp, rand.New(rand.NewPCG(seed, 1)), steps)
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
	for ok := true; ok && len(m.failures) == 0; ok = w.Step() {
		rng := rand.New(rand.NewPCG(seed, uint64(w.At())))
		told := 0
		for _, r := range s.receipts {
			if r.at <= w.At() {
				told++
			}
		}
		for i := range perCall + 1 {
			how, from, g := "killed", w.At(), (*crashfs.FS)(nil)
			if i == perCall {
				g = w.Kill()
			} else {
				model := crashfs.Model(min(i, 2))
				if i > 2 && i%3 != 2 {
					model = crashfs.Strict
				}
				how, from, g = model.String(), 0, w.Crash(model, rng.Uint64())
				if id := (disk{g.Fingerprint(), told}); seen[id] {
					continue
				} else {
					seen[id] = true
				}
			}
			m.states++
			n, sp, err := s.state(g, w.At())
			if err == nil {
				err = m.follow(s, n, sp, from, w.At(), rng)
			}
			if err != nil {
				m.fail(w, "seed %d, behind call %d of %d, %s: %v", seed, w.At(), w.Len(), how, err)
			}
		}
	}
	return f.Len()
}

// TestSpoolPowerLoss: the power fails behind every call of random histories.
func TestSpoolPowerLoss(t *testing.T) {
	seeds, steps, perCall := uint64(5), 40, 6
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		seeds, steps, perCall = 60, 80, 10
	}
	m := &powerMatrix{}
	calls := 0
	for seed := uint64(1); seed <= seeds && len(m.failures) == 0; seed++ {
		calls += m.explore(t, seed, steps, perCall, nil)
	}
	t.Logf("seeds 1 to %d: %d calls, %d crash states, and %d second crashes", seeds, calls, m.states, m.nested)
	for _, f := range m.failures[:min(3, len(m.failures))] {
		t.Error(f)
	}
}

// TestSpoolPowerLossMutants: the matrix must fail when a step of the write order is left out.
func TestSpoolPowerLossMutants(t *testing.T) {
	dirs := func(prefix string) func(crashfs.Op) bool {
		return func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && strings.HasPrefix(o.Path, prefix) }
	}
	for _, c := range []struct {
		name string
		lie  func(o crashfs.Op) bool
	}{
		{"no fsync of files", func(o crashfs.Op) bool { return o.Kind == crashfs.Sync }},
		{"no fsync of a boot's batches", dirs("/spool/batches/agent=")},
		{"no fsync of a boot's claim and watermark", dirs("/spool/boots/agent=")},
		{"no fsync of the spool's directory", func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && o.Path == "/spool" }},
		{"no fsync of the directory above", func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && path.Clean(o.Path) == "/" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &powerMatrix{}
			for seed := uint64(1); seed <= 8; seed++ {
				m.explore(t, seed, 30, 8, c.lie)
				if len(m.failures) > 0 {
					t.Logf("caught by seed %d after %d states: %.200s", seed, m.states+m.nested, m.failures[0])
					return
				}
			}
			t.Errorf("not caught in %d states", m.states+m.nested)
		})
	}
}
