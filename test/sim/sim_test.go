package main

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// env reads a number, such as SCHEDULES=100000 SEED=1.
func env(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

func TestSimulation(t *testing.T) {
	first, n := env(t, "SEED", 1), env(t, "SCHEDULES", 5000)
	s := sweep(t.Context(), first, n, 2)
	t.Logf("%d schedules from seed %d, %d operations, %d answers", s.schedules, first, s.operations, s.answers)
	if s.violations > 0 {
		var b bytes.Buffer
		explain(&b, s.first)
		t.Fatal(b.String())
	}
	if s.schedules != n || s.answers < n {
		t.Errorf("%d schedules and %d answers: that is no test", s.schedules, s.answers)
	}
}

func TestUnsoundStoresAreRefused(t *testing.T) {
	if err := probeStores(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSeedReplaysByteForByte(t *testing.T) {
	digests := map[uint64]bool{}
	for seed := uint64(1); seed <= 300; seed++ {
		a, b := run(seeded(seed, nil), true), run(seeded(seed, nil), false)
		if a.digest != b.digest || !slices.Equal(a.ch.made, b.ch.made) {
			t.Fatalf("seed %d: two plays differ", seed)
		}
		if c := run(recorded(a.ch.made), true); c.digest != a.digest || !slices.Equal(c.trace, a.trace) {
			t.Fatalf("seed %d: its recorded choices play differently", seed)
		}
		digests[a.digest] = true
	}
	if len(digests) < 290 {
		t.Errorf("only %d of 300 schedules differ", len(digests))
	}
}

// TestScheduleReachesEverything: the faults and the paths that the simulation is for do occur.
func TestScheduleReachesEverything(t *testing.T) {
	want := []string{
		"answer lost", "in flight", "never arrives", "503", "conditional request conflict", "checksum mismatch", "unavailable",
		"kill -9", "stops", "clock of", "sender gives up", "late ", "BOOT_ID_CLASH", "authority",
		"accepted, holder", "duplicate, holder", "conflict, holder",
		"create gc/v1/condemned/", "delete raw-blobs/", ".g1.lmbatch", "create quarantine/v1/",
		"publishes", "loses all blocks", "proof", "create gc/v1/condemned/date=", "replace gc/v1/condemned/date=", "create gc/v1/rewritten/", "create gc/v1/log/frames/",
		"takes over from", "condemns as a zombie", "create gc/v1/log/blobs/", "delete gc/v1/orphans/", "another collection has begun",
		"reads no marker", "waits for runs", "renews its run", "begins the log of epochs", "create gc/v1/condemned/epochs/",
	}
	missing := slices.Clone(want)
	for seed := uint64(1); seed <= 10_000 && len(missing) > 0; seed++ {
		trace := strings.Join(run(seeded(seed, nil), true).trace, "\n")
		missing = slices.DeleteFunc(missing, func(s string) bool { return strings.Contains(trace, s) })
	}
	if len(missing) > 0 {
		t.Errorf("never seen: %q", missing)
	}
}

// TestDeleteOfAPromisedBlobIsSeen plants the bug in the world itself; test/sim/mutants plants many in the code.
func TestDeleteOfAPromisedBlobIsSeen(t *testing.T) {
	s := frames()[frameName("agent-1", 0, 0)]
	w := &world{
		store: store{objects: map[string]object{layout.Blob(s.SHA256, 0): {body: s.Frame, at: time.Unix(1, 0)}}},
		acked: map[identity.Digest]bool{s.SHA256: true},
	}
	w.delete(layout.Blob(s.SHA256, 0))
	if w.violation == nil || w.violation.Invariant != "I3" {
		t.Errorf("violation is %v", w.violation)
	}
}

func TestShrinkKeepsWhatMatters(t *testing.T) {
	ch := seeded(1, nil)
	for range 500 {
		ch.n(10)
	}
	// A seven, and a nine anywhere after it.
	got := shrink(ch.made, func(l []uint32) bool {
		i := slices.Index(l, 7)
		return i >= 0 && slices.Contains(l[i:], 9)
	})
	if !slices.Equal(got, []uint32{7, 9}) {
		t.Errorf("shrunk to %v", got)
	}
}
