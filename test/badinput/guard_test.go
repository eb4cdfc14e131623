package badinput

import (
	"context"
	"io"
	"log"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
)

// patience bounds every wait; no test measures time.
const patience = 30 * time.Second

// panics collects log lines of recovered panics, of all services of this process.
var panics struct {
	sync.Mutex
	lines []string
}

func notePanic(line string) {
	if strings.Contains(strings.ToLower(line), "panic") {
		panics.Lock()
		panics.lines = append(panics.lines, line)
		panics.Unlock()
	}
}

type sink struct{}

func (sink) Write(b []byte) (int, error) { notePanic(string(b)); return len(b), nil }

// TestMain sends the logs of net/http, where recovered panics are told, to the guard.
func TestMain(m *testing.M) {
	log.SetOutput(sink{})
	os.Exit(m.Run())
}

func quietTelemetry() *telemetry.Telemetry {
	tel := telemetry.Discard()
	tel.Log = slog.New(slog.NewTextHandler(io.Writer(sink{}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	return tel
}

// wantNoPanics fails when a service recovered from a panic.
func wantNoPanics(t testing.TB) {
	t.Helper()
	panics.Lock()
	defer panics.Unlock()
	for _, l := range panics.lines {
		t.Errorf("a panic was recovered: %s", l)
	}
	panics.lines = nil
}

// boundMemory samples the live heap until the test ends and fails when it grew by more than limit.
func boundMemory(t testing.TB, limit uint64) {
	t.Helper()
	// What is alive is known from the last collection; garbage that a busy machine has not
	// swept yet does not count. So collections must be frequent.
	before := debug.SetGCPercent(20)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	runtime.GC()
	read := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	base, peak := read(), uint64(0)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			peak = max(peak, read())
			time.Sleep(time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if peak > base && peak-base > limit {
			t.Errorf("the heap grew by %d MiB, at most %d MiB were meant", (peak-base)>>20, limit>>20)
		}
		t.Logf("heap: %d MiB at first, %d MiB at most", base>>20, peak>>20)
	})
}

// listing is every object with its ETag.
func listing(t testing.TB, s objstore.Store) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all := map[string]string{}
	if err := storetest.Each(ctx, s, "", func(i objstore.Info) error { all[i.Key] = i.ETag; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// wantUnchanged compares the store with an earlier listing.
func wantUnchanged(t testing.TB, s objstore.Store, before map[string]string) {
	t.Helper()
	after := listing(t, s)
	if maps.Equal(before, after) {
		return
	}
	for k, e := range after {
		if before[k] != e {
			t.Errorf("written: %s", k)
		}
	}
	for k := range before {
		if _, ok := after[k]; !ok {
			t.Errorf("removed: %s", k)
		}
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}
