package vfs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// waits is a clock that only sleeping moves; during does what happens meanwhile.
type waits struct {
	now    time.Time
	n      int
	during func(n int)
}

func (w *waits) Now() time.Time { return w.now }

func (w *waits) Sleep(d time.Duration) {
	w.now = w.now.Add(d)
	w.n++
	if w.during != nil {
		w.during(w.n)
	}
}

func lockFile(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestFlock: another open file holds the lock for ever, for a while, or not at all.
func TestFlock(t *testing.T) {
	for _, c := range []struct {
		name   string
		freed  int // before the try after so many waits; -1 never
		waits  int
		failed bool
	}{
		{"free", 0, 0, false},
		{"freed soon", 3, 3, false},
		{"freed at the last moment", 100, 100, false},
		{"freed too late", 102, 101, true},
		{"held", -1, 101, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "lock")
			other, f := lockFile(t, path), lockFile(t, path)
			if c.freed != 0 {
				if err := lock(other); err != nil {
					t.Fatal(err)
				}
			}
			w := &waits{now: time.Unix(1, 0), during: func(n int) {
				if n == c.freed {
					_ = other.Close()
				}
			}}
			err := flock(f, w.Now, w.Sleep)
			if c.failed != errors.Is(err, syscall.EWOULDBLOCK) || !c.failed && err != nil {
				t.Errorf("after %d waits: %v", w.n, err)
			}
			if w.n != c.waits {
				t.Errorf("%d waits, want %d", w.n, c.waits)
			}
			if c.failed {
				return
			}
			third := lockFile(t, path)
			if err := syscall.Flock(int(third.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
				t.Errorf("the lock is not held: %v", err)
			}
		})
	}
}

// TestFlockOfAClosedFile: only a lock that is held is worth another try.
func TestFlockOfAClosedFile(t *testing.T) {
	f := lockFile(t, filepath.Join(t.TempDir(), "lock"))
	_ = f.Close()
	w := &waits{now: time.Unix(1, 0)}
	if err := flock(f, w.Now, w.Sleep); !errors.Is(err, syscall.EBADF) || w.n != 0 {
		t.Errorf("%v after %d waits", err, w.n)
	}
}

const holderEnv = "LIGHTMETRICS_TEST_FLOCK"

// TestFlockOfAKilledProcess: the holder is another process, killed while this one waits.
func TestFlockOfAKilledProcess(t *testing.T) {
	if path := os.Getenv(holderEnv); path != "" {
		if err := lock(lockFile(t, path)); err != nil {
			t.Fatal(err)
		}
		fmt.Println("held")
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed, or its parent ends
		return
	}
	path := filepath.Join(t.TempDir(), "lock")
	holder := exec.Command(os.Args[0], "-test.run=^TestFlockOfAKilledProcess$")
	holder.Env = append(os.Environ(), holderEnv+"="+path)
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "held\n" {
		t.Fatalf("the holder says %q, %v", line, err)
	}
	f := lockFile(t, path)
	w := &waits{now: time.Unix(1, 0), during: func(n int) {
		switch {
		case n == 2:
			_ = holder.Process.Kill()
			_ = holder.Wait()
		case n > 2: // it is gone; the kernel may be a moment behind
			time.Sleep(flockRetry)
		}
	}}
	if err := flock(f, w.Now, w.Sleep); err != nil || w.n < 2 {
		t.Errorf("%v after %d waits", err, w.n)
	}
}
