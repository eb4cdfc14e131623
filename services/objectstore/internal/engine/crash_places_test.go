package engine

import (
	"context"
	"errors"
	"io"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/vfstest"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// unlocked gives locks to everybody: a crash state is opened again and again, and nobody closes the
// places of the engine before.
type unlocked struct{ vfs.FS }

func (unlocked) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// placesOn keeps bodies on three drives in directories of a disk, two copies of each.
func placesOn(f *crashfs.FS) body.Store {
	var slots []spread.Slot
	for _, n := range []string{"drive1", "drive2", "drive3"} {
		// The operator makes the directories, before the store.
		if err := errors.Join(vfs.EnsureDir(f, n), f.SyncDir(".")); err != nil {
			panic(err)
		}
		slots = append(slots, spread.Slot{Name: n, Local: true, Open: func(context.Context) (place.Place, error) {
			return place.OpenDirectory(n, unlocked{vfstest.Sub(f, n)}, nil)
		}})
	}
	s, err := spread.Open(context.Background(), spread.Options{FS: f, Slots: slots, AckCopies: 2})
	if err != nil {
		panic(err)
	}
	return s
}

// TestStorePowerLossOverPlaces: the histories of TestStorePowerLoss with large bodies on places.
func TestStorePowerLossOverPlaces(t *testing.T) {
	crashBodies = placesOn
	defer func() { crashBodies = nil }()
	defer collectLess()()
	m := &matrix{}
	calls, seed := 0, uint64(0)
	for m.count() < leastStates/10 && !m.failed() {
		seed++
		calls += crashSeed(t, m, nil, seed, 20, 3)
	}
	t.Logf("seeds 1 to %d: %d calls, %d crash states", seed, calls, m.count())
	for _, f := range m.failures {
		t.Error(f)
	}
}
