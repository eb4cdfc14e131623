package spool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// points are those that this package drives.
func points(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, p := range failpoint.Points() {
		if p.Test == "internal/acceptance/spool" {
			names = append(names, p.Name)
		}
	}
	if len(names) < 15 {
		t.Fatalf("only %d points", len(names))
	}
	return names
}

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
		for _, m := range []crashfs.Model{crashfs.Strict, crashfs.Model(1), crashfs.Model(2)} {
			out[fmt.Sprintf("%s, seed %d", m, seed)] = w.Crash(m, seed)
		}
	}
	return out
}

// TestCrashAtEveryFailpoint ends the process at each point twice, in a random history and
// in a start on what that left. Whatever was acknowledged is there, under its one hash.
func TestCrashAtEveryFailpoint(t *testing.T) {
	states := 0
	for _, point := range points(t) {
		if strings.Contains(point, ".rewrite.") || strings.HasSuffix(point, ".recover.aside") {
			continue // TestCrashAtDamage
		}
		for nth := 1; nth <= 2; nth++ {
			reached := false
			for seed := uint64(1); seed <= 20 && !reached; seed++ {
				f := crashfs.New()
				s := &spooling{t: t, fs: f, to: &remote{fs: f, landed: map[identity.Batch]arrival{}}}
				rng := rand.New(rand.NewPCG(seed, 7))
				reached = ends(t, point, nth, func() error {
					for range 2 { // a start, and a start on what is there
						sp, err := spool.Open(s.config())
						if err == nil {
							err = s.run(sp, rng, 30)
						}
						if err == nil {
							err = sp.Close()
						}
						if err != nil {
							return err
						}
					}
					return nil
				})
				if !reached {
					continue
				}
				for how, g := range disks(f) {
					states++
					n, sp, err := s.state(g, f.Len())
					if err == nil {
						err = n.settle(sp)
					}
					if err != nil {
						t.Errorf("%s at hit %d, seed %d, %s: %v", point, nth, seed, how, err)
					}
				}
			}
			if !reached {
				t.Errorf("%s was not reached %d times", point, nth)
			}
		}
	}
	t.Logf("%d states", states)
}

// TestCrashAtDamage is the same for the points that a damaged file leads to.
func TestCrashAtDamage(t *testing.T) {
	for _, point := range points(t) {
		if !strings.Contains(point, ".rewrite.") && !strings.HasSuffix(point, ".recover.aside") {
			continue
		}
		for nth := 1; nth <= 2; nth++ {
			f := crashfs.New()
			s := &spooling{t: t, fs: f, to: &remote{fs: f, landed: map[identity.Batch]arrival{}}}
			subs := []accept.Submission{batch(0, "a"), batch(1, "a")}
			c := s.config()
			c.Events.Corrupt = func(string, error) {}
			sp, err := spool.Open(c)
			if err != nil {
				t.Fatal(err)
			}
			for _, sub := range subs {
				mustAccept(t, sp, sub, accept.Accepted)
			}
			spoil(t, f, "/spool/batches", strings.Contains(point, ".rewrite."))
			if !ends(t, point, nth, func() error {
				if strings.Contains(point, ".recover.") {
					if err := sp.Close(); err != nil {
						return err
					}
					_, err := spool.Open(c)
					return err
				}
				for _, sub := range subs {
					if _, err := sp.Accept(context.Background(), sub); err != nil {
						return err
					}
				}
				return nil
			}) {
				t.Errorf("%s was not reached %d times", point, nth)
				continue
			}
			for how, g := range disks(f) {
				if err := again(s, g, subs); err != nil {
					t.Errorf("%s at hit %d, %s: %v", point, nth, how, err)
				}
			}
		}
	}
}

// spoil damages every batch: its frame, or its head.
func spoil(t *testing.T, f *crashfs.FS, dir string, frame bool) {
	t.Helper()
	list, err := f.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		name := dir + "/" + e.Name
		if e.Type.IsDir() {
			spoil(t, f, name, frame)
			continue
		}
		b, _, err := vfs.ReadFile(f, name, 0)
		if err != nil {
			t.Fatal(err)
		}
		if frame {
			b[len(b)-1] ^= 1
		} else {
			b = b[:10]
		}
		if err := errors.Join(f.Remove(name), vfs.WriteFile(f, name, b), f.SyncDir(dir)); err != nil {
			t.Fatal(err)
		}
	}
}

// again opens a disk on which the batches were damaged: their senders give the bytes
// once more, then they are there.
func again(s *spooling, g *crashfs.FS, subs []accept.Submission) error {
	n := &spooling{t: s.t, fs: g, to: &remote{fs: g, landed: map[identity.Batch]arrival{}}}
	c := n.config()
	c.Events.Corrupt = func(string, error) {}
	sp, err := spool.Open(c)
	if err != nil {
		return err
	}
	for _, sub := range subs {
		if _, err := sp.Accept(context.Background(), sub); err != nil {
			return err
		}
		frame, _, err := sp.Read(sub.Identity)
		if err != nil || string(frame) != string(sub.Frame) {
			return fmt.Errorf("%s: %w", sub.Identity, errors.Join(err, errors.New("other bytes")))
		}
		n.receipts = append(n.receipts, receipt{sub, 0})
	}
	return n.settle(sp)
}
