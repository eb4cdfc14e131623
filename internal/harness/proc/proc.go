// Package proc runs child processes, for "lightmetrics all", the demo and tests of whole
// systems: each logs to a file, dies with its parent, and can be killed at any moment.
package proc

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/netns"
)

// pollEvery is how often a child is asked whether it is ready.
const pollEvery = 20 * time.Millisecond

// Spec is a child to start.
type Spec struct {
	Name string
	Bin  string
	Args []string
	Env  []string // added to the parent's
	// Dir keeps <name>.log; "" lets the child write to the parent's standard error.
	Dir string
	// ReadyURL answers 200 when the child is ready; "" is ready at once.
	ReadyURL string
	// NetNS is the file of the network namespace that the child starts in; "" is the parent's.
	NetNS string
}

// Process is a running child.
type Process struct {
	Spec Spec

	cmd    *exec.Cmd
	log    *os.File
	exited chan struct{}
	err    error
}

// Start starts the child; it is killed when the parent dies.
func Start(s Spec) (*Process, error) {
	log, err := openLog(s)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	p := &Process{Spec: s, log: log, exited: make(chan struct{})}
	p.cmd = exec.Command(s.Bin, s.Args...)
	p.cmd.Env = append(os.Environ(), s.Env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	started := make(chan error, 1)
	go func() {
		// Pdeathsig belongs to the thread that starts the child, so that thread stays.
		// It ends with the goroutine, and its namespace with it.
		p.cmd.SysProcAttr = deathSignal()
		lockThread()
		var err error
		if s.NetNS != "" {
			err = netns.Enter(s.NetNS)
		}
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		log.Close()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		log.Close()
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	return p, nil
}

// openLog opens the file that the child writes to. It is the child's process that keeps
// it open, so the parent closes its own when the child ends.
func openLog(s Spec) (*os.File, error) {
	if s.Dir != "" {
		return os.OpenFile(filepath.Join(s.Dir, s.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	}
	fd, err := syscall.Dup(int(os.Stderr.Fd()))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), os.Stderr.Name()), nil
}

// Pid of the child.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited is closed when the child ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Wait waits for the child's end and gives its error.
func (p *Process) Wait() error {
	<-p.exited
	return p.err
}

// Ready waits until the child answers its ReadyURL.
func (p *Process) Ready(ctx context.Context) error {
	if p.Spec.ReadyURL == "" {
		return nil
	}
	// Its own child is asked for a status that is no secret, often by an address that the
	// child's certificate does not have, so the certificate is not verified.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Timeout: 2 * time.Second, Transport: transport}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Spec.ReadyURL, nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended before it was ready: %v\n%s", p.Spec.Name, p.err, p.Tail(20))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", p.Spec.Name, context.Cause(ctx), p.Tail(20))
		case <-time.After(pollEvery):
		}
	}
}

// Kill sends SIGKILL and waits.
func (p *Process) Kill() { p.signal(syscall.SIGKILL, 0) }

// Signal sends a signal, such as SIGHUP.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Pause stops the child's threads; Resume lets them go on.
func (p *Process) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues a paused child.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Stop sends SIGTERM, waits for at most grace, then kills. It returns the child's error.
func (p *Process) Stop(grace time.Duration) error {
	p.signal(syscall.SIGTERM, grace)
	return p.err
}

func (p *Process) signal(s syscall.Signal, grace time.Duration) {
	_ = p.cmd.Process.Signal(s) // it may have ended already
	if grace > 0 {
		select {
		case <-p.exited:
			return
		case <-time.After(grace):
			_ = p.cmd.Process.Kill()
		}
	}
	<-p.exited
}

// Tail gives the last n lines of the log; nothing where the log is not a file of its own.
func (p *Process) Tail(n int) string {
	if p.Spec.Dir == "" {
		return ""
	}
	b, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
