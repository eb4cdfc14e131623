package coordinator

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// The test binary is also the processes that tests kill and pause: what they are is in
// the first variable, how they are set up in the second.
const (
	roleVariable  = "LM_TEST_ROLE"
	setupVariable = "LM_TEST_SETUP"
)

// line is what a worker process says, one JSON object a line.
type line struct {
	Event string // "begin", "end", "owns"
	Shard shard.ID
	Epoch uint64
	Fence uint64
	Cause string
}

type workerSetup struct {
	Name      string
	Addresses []string
	Shards    uint32
}

func child(setup any) context.Context {
	if err := json.Unmarshal([]byte(os.Getenv(setupVariable)), setup); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	go func() { // ends with the parent, which holds the other end
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		stop()
		time.Sleep(5 * time.Second)
		os.Exit(3)
	}()
	return ctx
}

func ended(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// workerProcess owns shards and says so.
func workerProcess() {
	var s workerSetup
	ctx := child(&s)
	c := coordinator.DefaultConfig()
	c.WorkerID, c.Addresses = s.Name, s.Addresses
	o, err := coordinator.NewOwner(c, "rollup", s.Shards, coordinator.Deps{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		ended(err)
	}
	say := func(event string, g coordinator.Grant, cause string) {
		b, _ := json.Marshal(line{event, g.Shard, g.Epoch, g.Fence, cause})
		_, _ = os.Stdout.Write(append(b, '\n')) // one write: lines do not mix
	}
	ended(o.Run(ctx, func(ctx context.Context, g coordinator.Grant) error {
		say("begin", g, "")
		<-ctx.Done()
		say("end", g, context.Cause(ctx).Error())
		return nil
	}))
}

// coordinatorProcess runs a coordinator with the settings that it is given.
func coordinatorProcess() {
	var c Config
	ctx := child(&c)
	if err := failpoint.Arm(os.Getenv(failpoint.Env)); err != nil {
		ended(err)
	}
	tel := telemetry.Discard()
	tel.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	// Buckets that end with the process: the next one finds none, and goes on behind the epoch of etcd.
	buckets := map[claims.Region]regions.Store{}
	for _, r := range c.Identity.Regions {
		buckets[claims.Region(r.Name)] = mem.New(nil)
	}
	s, err := New(c, Deps{Telemetry: tel, Regions: buckets})
	if err != nil {
		ended(err)
	}
	go func() {
		<-s.Ready()
		fmt.Println("ready")
	}()
	ended(s.Run(ctx))
}

// process is a child of a test.
type process struct {
	t   testing.TB
	cmd *exec.Cmd
	out *bufio.Scanner
	in  interface{ Close() error }
	// exited is closed when the process has ended.
	exited chan struct{}
}

func spawn(t testing.TB, role string, setup any, env ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	b, err := json.Marshal(setup)
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(append(os.Environ(), env...), roleVariable+"="+role, setupVariable+"="+string(b))
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	if os.Getenv("LM_TEST_LOG") != "" {
		cmd.Stderr = os.Stderr
	}
	must(t, cmd.Start())
	p := &process{t: t, cmd: cmd, out: bufio.NewScanner(out), in: in, exited: make(chan struct{})}
	go func() { // ends with the process
		_, _ = cmd.Process.Wait() // not cmd.Wait, which closes what is still read
		close(p.exited)
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(s))
}

// kill is kill -9; more than once is harmless.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.exited
	_ = p.in.Close()
}

// workProcess is a worker in a process of its own.
func (b *book) workProcess(name string, addresses ...string) *process {
	b.t.Helper()
	p := spawn(b.t, "worker", workerSetup{Name: name, Addresses: addresses, Shards: b.shards})
	go func() { // ends with the process
		for p.out.Scan() {
			var l line
			if err := json.Unmarshal(p.out.Bytes(), &l); err != nil {
				b.t.Errorf("worker %s says %q", name, p.out.Text())
				return
			}
			g := coordinator.Grant{Shard: l.Shard, Epoch: l.Epoch, Fence: l.Fence}
			if l.Event == "begin" {
				b.begin(name, g)
			} else {
				b.end(name, g)
			}
		}
		b.gone(name)
	}()
	return p
}

// coordinate starts a coordinator process and waits until it serves.
func coordinate(t testing.TB, c Config) *process {
	t.Helper()
	p := spawn(t, "coordinator", c)
	p.ready()
	return p
}

func (p *process) ready() {
	p.t.Helper()
	if !p.started() {
		p.t.Fatalf("the process says %q", p.out.Text())
	}
}

// started waits until the process is ready, or has ended before.
func (p *process) started() bool {
	p.t.Helper()
	up := make(chan bool, 1)
	go func() { up <- p.out.Scan() && p.out.Text() == "ready" }() // ends with the process
	select {
	case ok := <-up:
		return ok
	case <-time.After(patience):
		p.t.Fatal("the process is not ready")
	}
	return false
}

// ports finds addresses for who must be found again after a restart.
func ports(t testing.TB, n int) []string {
	t.Helper()
	all, err := proc.Fixed(n)
	must(t, err)
	return all
}
