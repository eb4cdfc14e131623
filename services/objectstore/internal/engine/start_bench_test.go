package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// startObjects is the variable that says how many objects the store of BenchmarkStart has.
	startObjects = "LIGHTMETRICS_START_OBJECTS"
	// startDir is the variable that makes TestStartChild open that directory.
	startDir = "LIGHTMETRICS_START_DIR"
	// startReads is how many objects are read when the store is open.
	startReads = 50_000
)

// started is what a process tells of its start.
type started struct {
	Objects              int64
	Open, Read           time.Duration
	Resident, ReadMemory int64 // bytes, after the open and after the reads
	Peak                 int64
}

// BenchmarkStart fills a store with small objects, through the engine, and measures processes that open it: with its
// index, from its footers, and without either. LIGHTMETRICS_START_OBJECTS sets how many objects there are; -benchtime 1x.
func BenchmarkStart(b *testing.B) {
	objects := 20_000
	if n, err := strconv.Atoi(os.Getenv(startObjects)); err == nil {
		objects = n
	}
	for b.Loop() {
		dir := b.TempDir()
		began := time.Now()
		fill(b, dir, objects)
		b.ReportMetric(float64(objects)/time.Since(began).Seconds(), "filled/s")
		b.ReportMetric(float64(folderBytes(b, filepath.Join(dir, "log")))/float64(objects), "log-B/object")
		b.ReportMetric(float64(folderBytes(b, filepath.Join(dir, "index")))/float64(objects), "index-B/object")
		for _, c := range []struct {
			name string
			lose []string
		}{{"index", nil}, {"footers", []string{"index"}}, {"log", []string{"index", "footers"}}} {
			for _, l := range c.lose {
				if err := os.RemoveAll(filepath.Join(dir, l)); err != nil {
					b.Fatal(err)
				}
			}
			s := startChild(b, dir)
			if s.Objects != int64(objects) {
				b.Fatalf("%s: %d objects, not %d", c.name, s.Objects, objects)
			}
			b.ReportMetric(s.Open.Seconds(), c.name+"-open-s")
			b.ReportMetric(float64(s.Resident)/(1<<20), c.name+"-MiB")
			b.ReportMetric(float64(s.Peak)/(1<<20), c.name+"-peak-MiB")
			if c.name == "index" {
				b.ReportMetric(float64(s.Read.Microseconds())/startReads, "read-us")
				b.ReportMetric(float64(s.ReadMemory)/(1<<20), "read-MiB")
			}
		}
	}
}

func startKey(i, objects int) string { return fmt.Sprintf("metrics/%09d", i*7919%objects) }

// fill puts objects of 100 bytes in no order of their keys, and writes the footers.
func fill(b *testing.B, dir string, objects int) {
	e := openTest(b, Options{Dir: dir})
	var wg sync.WaitGroup
	const clients = 1024 // as many as a batch may have
	for c := range clients {
		wg.Go(func() {
			for i := c; i < objects; i += clients {
				body := pattern(100, byte(i))
				o := sized(startKey(i, objects), body)
				if _, err := e.Engine.Put(context.Background(), o, body, Cond{}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	sealAll(b, e.Engine)
	e.done()
}

func folderBytes(b *testing.B, dir string) (n int64) {
	list, err := os.ReadDir(dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, x := range list {
		st, err := x.Info()
		if err != nil {
			b.Fatal(err)
		}
		n += st.Size()
	}
	return n
}

// startChild opens the store in a process of its own, so that its memory is not that of the filling.
func startChild(b *testing.B, dir string) (s started) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestStartChild$", "-test.v", "-test.timeout=2h")
	cmd.Env = append(os.Environ(), startDir+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, "started "); ok {
			if err := json.Unmarshal([]byte(text), &s); err != nil {
				b.Fatal(err)
			}
			return s
		}
	}
	b.Fatalf("the child said nothing:\n%s", out)
	return s
}

// TestStartChild is the process that BenchmarkStart measures.
func TestStartChild(t *testing.T) {
	dir := os.Getenv(startDir)
	if dir == "" {
		t.Skip("it is a part of BenchmarkStart")
	}
	// As the service has them.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(160 << 20)
	began := time.Now()
	e, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	s := started{Objects: e.Stats().Objects, Open: time.Since(began), Resident: processStatus(t, "VmRSS")}
	began = time.Now()
	rng := rand.New(rand.NewPCG(1, 1))
	for range startReads {
		i := rng.IntN(int(s.Objects))
		h, err := e.Get("bkt", startKey(i, int(s.Objects)))
		if err == nil {
			err = h.Copy(io.Discard, 0, h.Object.Size)
			h.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Read, s.ReadMemory, s.Peak = time.Since(began), processStatus(t, "VmRSS"), processStatus(t, "VmHWM")
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("started %s\n", text)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// processStatus gives a figure of this process in bytes.
func processStatus(t *testing.T, name string) int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err) // not Linux
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name+":" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no %s", name)
	return 0
}

// sealAll writes the footers that are missing.
func sealAll(b *testing.B, e *Engine) {
	for {
		if more, err := e.Seal(); err != nil {
			b.Fatal(err)
		} else if !more {
			return
		}
	}
}
