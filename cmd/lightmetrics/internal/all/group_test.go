package all

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/proc"
)

// TestMain lets the test binary play a member of the group: it writes what happens to it
// into a file that all members share.
func TestMain(m *testing.M) {
	if refuses := os.Getenv("ALL_REFUSES"); refuses != "" && slices.Contains(os.Args, "--config.check") {
		if b, _ := os.ReadFile(os.Args[3]); strings.Contains(string(b), refuses) {
			fmt.Fprintln(os.Stderr, "error: "+os.Args[3]+": unknown keys: "+refuses)
			os.Exit(2)
		}
		os.Exit(0)
	}
	if os.Getenv("ALL_MEMBER") == "" {
		os.Exit(m.Run())
	}
	os.Exit(play(os.Getenv("ALL_MEMBER"), os.Getenv("ALL_JOURNAL")))
}

// play is a member: "refuse" has wrong settings, "crash" ends once by itself, "spoiled" too,
// and has wrong settings when it is started again, others stay.
func play(name, journal string) int {
	note := func(what string) {
		f, err := os.OpenFile(journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		defer f.Close()
		fmt.Fprintln(f, name, what, os.Getpid())
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP)
	note("started")
	switch name {
	case "refuse":
		// Not before the member ahead of it has got as far as its signals.
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if b, _ := os.ReadFile(journal); strings.Contains(string(b), "store started") {
				break
			}
		}
		return 2
	case "spoiled":
		b, _ := os.ReadFile(journal)
		switch strings.Count(string(b), "spoiled started") {
		case 1:
			return 7
		case 2:
			return 2
		}
	case "crash":
		if b, _ := os.ReadFile(journal); strings.Count(string(b), "crash started") == 1 {
			return 7
		}
	}
	for s := range signals {
		if s == syscall.SIGHUP {
			note("reloaded")
			continue
		}
		note("stopped")
		return 0
	}
	return 0
}

// stage is a group of played members and what they wrote.
type stage struct {
	t       *testing.T
	journal string
	group   *group

	mu     sync.Mutex
	events []string
}

func newStage(t *testing.T, names ...string) *stage {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &stage{t: t, journal: filepath.Join(dir, "journal")}
	var members []member
	for _, n := range names {
		members = append(members, member{name: n, grace: 10 * time.Second, spec: proc.Spec{
			Name: n, Bin: self, Dir: dir, Env: []string{"ALL_MEMBER=" + n, "ALL_JOURNAL=" + s.journal},
		}})
	}
	s.group = newGroup(members, func(name, what string, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, fmt.Sprint(name, " ", what, " ", err))
	})
	return s
}

// lines gives what members wrote, without pids.
func (s *stage) lines() []string {
	b, err := os.ReadFile(s.journal)
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	var out []string
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		out = append(out, f[0]+" "+f[1])
	}
	return out
}

// pid is that of a member's first start.
func (s *stage) pid(name string) int {
	s.t.Helper()
	s.waitFor(name + " started")
	b, err := os.ReadFile(s.journal)
	if err != nil {
		s.t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); f[0] == name {
			pid, err := strconv.Atoi(f[2])
			if err != nil {
				s.t.Fatal(err)
			}
			return pid
		}
	}
	s.t.Fatalf("no pid of %s", name)
	return 0
}

// waitFor waits until a line was written.
func (s *stage) waitFor(line string) {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); !slices.Contains(s.lines(), line); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("no %q in %q, events %q", line, s.lines(), s.events)
		}
	}
}

func (s *stage) run(ctx context.Context, started func()) chan error {
	done := make(chan error, 1)
	go func() { done <- s.group.run(ctx, started) }()
	return done
}

func TestGroupStopsInReverseOrder(t *testing.T) {
	s := newStage(t, "store", "ingest", "agent")
	ctx, cancel := context.WithCancel(context.Background())
	started := make(chan struct{})
	done := s.run(ctx, func() { close(started) })
	<-started
	for _, n := range []string{"store", "ingest", "agent"} {
		s.waitFor(n + " started") // started means running; a member has to get as far as its signals
	}
	if err := s.group.reload(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"store", "ingest", "agent"} {
		s.waitFor(n + " reloaded")
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got := s.lines()
	if want := []string{"agent stopped", "ingest stopped", "store stopped"}; !slices.Equal(got[len(got)-3:], want) {
		t.Errorf("ended with %q, want %q", got[len(got)-3:], want)
	}
}

func TestGroupStartsAgainWhatEnds(t *testing.T) {
	s := newStage(t, "store", "crash")
	ctx, cancel := context.WithCancel(context.Background())
	done := s.run(ctx, func() {})
	for end := time.Now().Add(30 * time.Second); strings.Count(strings.Join(s.lines(), "\n"), "crash started") < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not started again: %q", s.lines())
		}
	}
	// One that is killed comes back as well.
	if err := syscall.Kill(s.pid("store"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); strings.Count(strings.Join(s.lines(), "\n"), "store started") < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not started again after SIGKILL: %q", s.lines())
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestGroupEndsWhereSettingsAreWrong(t *testing.T) {
	s := newStage(t, "store", "refuse", "agent")
	err := <-s.run(context.Background(), func() {})
	if err == nil || !strings.Contains(err.Error(), "refuse refuses its settings") {
		t.Fatalf("got %v", err)
	}
	if got := s.lines(); !slices.Contains(got, "store stopped") {
		t.Errorf("the others were not stopped: %q", got)
	}
}

// TestGroupOutlivesSettingsThatAreSpoiledLater: a file that is wrong while one member is
// started again does not end the others.
func TestGroupOutlivesSettingsThatAreSpoiledLater(t *testing.T) {
	s := newStage(t, "store", "spoiled")
	ctx, cancel := context.WithCancel(context.Background())
	done := s.run(ctx, func() {})
	for end := time.Now().Add(30 * time.Second); strings.Count(strings.Join(s.lines(), "\n"), "spoiled started") < 3; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) || slices.Contains(s.lines(), "store stopped") {
			t.Fatalf("it was not tried again: %q", s.lines())
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestReloadRefusesBeforeItWrites: settings that a service refuses are not what it would be
// started with after a crash.
func TestReloadRefusesBeforeItWrites(t *testing.T) {
	t.Setenv("ALL_REFUSES", "mistake")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.DataDir = t.TempDir()
	creds, err := openCredentials(cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "all.yaml")
	set := func(text string) error {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := readPlan(cfg, creds, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return reload(context.Background(), p, newGroup(nil, nil), self, file)
	}
	written := func() string {
		b, err := os.ReadFile(filepath.Join(cfg.DataDir, "settings", "query.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if err := set("query: {lookback: 4m}"); err != nil {
		t.Fatal(err)
	}
	before := written()
	if !strings.Contains(before, "lookback: 4m") {
		t.Fatalf("not reloaded: %s", before)
	}
	err = set("query: {mistake: 1}\ningest: {id: c}")
	if err == nil || !strings.Contains(err.Error(), "query: "+file+": unknown keys: mistake") {
		t.Errorf("got %v", err)
	}
	if got := written(); got != before {
		t.Errorf("what was refused was written:\n%s", got)
	}
}
