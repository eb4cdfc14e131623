package failpoint

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

var _ = Register(Point{Name: "test.part.one", When: "first"}, Point{Name: "test.part.two", When: "second"})

func disarm(t *testing.T) { t.Cleanup(func() { armed.Store(nil) }) }

func TestNothingHappensUnarmed(t *testing.T) {
	if Armed() {
		t.Fatal("armed without the variable")
	}
	Hit("test.part.one")
	if err := Err("test.part.one"); err != nil {
		t.Fatal(err)
	}
}

func TestErrorOnlyAtTheNthHitOfItsPoint(t *testing.T) {
	disarm(t)
	var out bytes.Buffer
	if err := arm("test.part.one=error@2, test.part.two=error", &out); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, true, false} {
		if err := Err("test.part.one"); errors.Is(err, ErrInjected) != want {
			t.Errorf("hit %d of one: %v, want an error: %v", i+1, err, want)
		}
		if err := Err("test.part.two"); !errors.Is(err, ErrInjected) {
			t.Errorf("hit %d of two: %v", i+1, err)
		}
	}
	if s := out.String(); !strings.HasPrefix(s, "failpoint test.part.two: error at hit 1\n") ||
		strings.Count(s, "test.part.one: error at hit 2") != 1 || strings.Count(s, "\n") != 4 {
		t.Errorf("said %q", s)
	}
}

func TestSleepAndPanic(t *testing.T) {
	disarm(t)
	if err := arm("test.part.one=sleep:10ms,test.part.two=panic", io.Discard); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	Hit("test.part.one")
	if d := time.Since(start); d < 10*time.Millisecond {
		t.Errorf("slept %v", d)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	Hit("test.part.two")
}

func TestArmRefuses(t *testing.T) {
	disarm(t)
	for _, spec := range []string{
		"test.part.one", "test.part.three=kill", "test.part.one=explode", "test.part.one=kill@0", "test.part.one=kill@x",
		"test.part.one=sleep", "test.part.one=sleep:-1s", "test.part.one=kill:1s", "test.part.one=kill,test.part.one=exit", ",",
	} {
		if err := arm(spec, io.Discard); err == nil || Armed() {
			t.Errorf("%q is taken (%v)", spec, err)
		}
	}
}

func TestRegisterRefuses(t *testing.T) {
	for _, p := range []Point{{Name: "test.part.one", When: "again"}, {Name: "short", When: "x"}, {Name: "a.b.C", When: "x"}, {Name: "a.b.c", When: ""}, {Name: "a.b.", When: "x"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is taken", p)
				}
			}()
			Register(p)
		}()
	}
}

// TestProcessesEndAsArmed runs this test binary again with a point armed.
func TestProcessesEndAsArmed(t *testing.T) {
	if spec := os.Getenv("FAILPOINT_CHILD"); spec != "" {
		if err := Arm(spec); err != nil {
			t.Fatal(err)
		}
		Hit("test.part.one")
		os.Exit(0)
	}
	for _, c := range []struct {
		action string
		signal syscall.Signal
		code   int
	}{{Kill, syscall.SIGKILL, -1}, {Exit, -1, ExitCode}} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProcessesEndAsArmed$")
		cmd.Env = append(os.Environ(), "FAILPOINT_CHILD=test.part.one="+c.action)
		out, err := cmd.CombinedOutput()
		var e *exec.ExitError
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v", c.action, err)
		}
		ws := e.Sys().(syscall.WaitStatus)
		if e.ExitCode() != c.code || c.code < 0 && ws.Signal() != c.signal {
			t.Errorf("%s: %v", c.action, err)
		}
		if !strings.Contains(string(out), "failpoint test.part.one: "+c.action+" at hit 1") {
			t.Errorf("%s said %q", c.action, out)
		}
	}
}

func BenchmarkHitUnarmed(b *testing.B) {
	for b.Loop() {
		Hit("test.part.one")
	}
}
