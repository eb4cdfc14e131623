package engine

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
)

// crashCodes makes the histories keep closed segments as bodies.
var crashCodes atomic.Bool

// settledTests counts the segments that tests have made bodies.
var settledTests atomic.Int64

// offerAll is for segments of any length with something in them.
var offerAll = Coding{Least: 1, Live: 0.05, Most: 100}

// keepOffered does what a keeper of bodies does with an offer.
func keepOffered(e *Engine, o Offer) error {
	src := e.OpenOffered(o.Body)
	if src == nil {
		return errors.New("the offer is gone")
	}
	defer src.Close()
	w, err := e.bodies.Create(o.Body)
	if err != nil {
		return err
	}
	b := make([]byte, BlockSize)
	for at := int64(0); at < o.Size && err == nil; at += int64(len(b)) {
		n, rerr := src.ReadAt(b, at)
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			err = rerr
		}
		if err == nil {
			_, err = w.Write(b[:n])
		}
	}
	if err == nil {
		err = w.Finish()
	}
	if err != nil {
		w.Discard()
	}
	return err
}

// codeAll makes all closed segments bodies that can be.
func codeAll(e *Engine) error {
	list, err := e.OfferSegments(context.Background(), offerAll)
	for _, o := range list {
		if err == nil {
			err = keepOffered(e, o)
		}
		if err == nil {
			err = e.Settle(context.Background(), o.Body)
			settledTests.Add(1)
		}
	}
	return err
}

func codeCall() call { return call{codeAll, nil} }

// TestSegmentsPowerLoss: the histories of TestStorePowerLoss, whose segments become bodies in between, in files and on places.
func TestSegmentsPowerLoss(t *testing.T) {
	crashCodes.Store(true)
	defer crashCodes.Store(false)
	defer func() { crashBodies = nil }()
	defer collectLess()()
	before := settledTests.Load()
	m := &matrix{}
	calls, seed := 0, uint64(0)
	for (m.count() < leastStates/5 || settledTests.Load()-before < 50) && seed < mostSeeds && !m.failed() {
		seed++
		if crashBodies = nil; seed%2 == 1 {
			crashBodies = placesOn
		}
		calls += crashSeed(t, m, nil, seed+400, 30, 3)
	}
	t.Logf("seeds 401 to %d: %d calls, %d crash states, %d segments", 400+seed, calls, m.count(), settledTests.Load()-before)
	if n := m.count(); n < leastStates/5 && !m.failed() {
		t.Errorf("only %d states", n)
	}
	for _, f := range m.failures {
		t.Error(f)
	}
}

// TestMirroredSegmentsPowerLoss: the same on two and three disks, which lose power each in its own way: one may have the stub
// and another the segment. Sometimes a disk fails on the way, or is lost.
func TestMirroredSegmentsPowerLoss(t *testing.T) {
	crashCodes.Store(true)
	defer crashCodes.Store(false)
	before := settledTests.Load()
	m := &mirrorMatrix{}
	calls := 0
	for seed := uint64(1); seed <= 5 && !m.failed(); seed++ {
		calls += mirrorSeed(t, m, nil, false, 2+int(seed/2%2), seed+400, 24, 3)
	}
	t.Logf("%d calls, %d crash states, %d second crashes, %d refused, %d segments", calls, m.states.Load(), m.nested.Load(), m.refused.Load(), settledTests.Load()-before)
	for _, f := range m.failures {
		t.Error(f)
	}
	if settledTests.Load() == before && !m.failed() {
		t.Error("no segment became a body")
	}
}

// TestSegmentsPowerLossMutants: the matrix must fail when steps of the switch are left out.
func TestSegmentsPowerLossMutants(t *testing.T) {
	crashCodes.Store(true)
	defer crashCodes.Store(false)
	for _, c := range []struct {
		name string
		lie  func(crashfs.Op) bool
	}{
		{"a stub is not synced", func(o crashfs.Op) bool { return o.Kind == crashfs.Sync && strings.HasPrefix(o.Path, tmpDir+"/stub") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &matrix{}
			for seed := uint64(401); seed <= 412; seed++ {
				crashSeed(t, m, c.lie, seed, 30, 6)
				if m.failed() {
					t.Logf("caught by seed %d after %d states: %.200s", seed, m.count(), m.failures[0])
					return
				}
			}
			t.Errorf("not caught in %d states", m.count())
		})
	}
}
