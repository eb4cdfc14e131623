// Package peers starts servers of other hands for tests and benchmarks: built from pinned modules
// that the project's own build never sees.
package peers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bucket is the one bucket of a started server, in the region us-east-1.
const Bucket = "test"

const (
	buildTimeout = 15 * time.Minute // a cold build takes about three CPU-minutes
	startTimeout = 60 * time.Second
)

// VersityGW is a running versitygw over a directory of the test.
type VersityGW struct {
	Endpoint, AccessKeyID, SecretAccessKey string
	Pid                                    int
}

// StartVersityGW builds versitygw unless build/peers has it, and serves an empty
// bucket until the test ends. It fails the test when it cannot. Objects are not
// fsynced; the keys "a" and "a/b" cannot both exist. users are access key ids that have the same secret and
// no rights but those of the bucket's policy.
func StartVersityGW(t testing.TB, users ...string) VersityGW {
	t.Helper()
	t.Log("build versitygw; minutes the first time, from the module proxy alone")
	return started(t, false, users...)
}

// StartVersionedVersityGW is StartVersityGW with a bucket that keeps versions when it is told to.
func StartVersionedVersityGW(t testing.TB) VersityGW {
	t.Helper()
	return started(t, true)
}

func started(t testing.TB, versions bool, users ...string) VersityGW {
	t.Helper()
	gw, stop, err := serveVersityGW(t.TempDir(), versions, users...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return gw
}

// ServeVersityGW is StartVersityGW outside of a test: the bucket lies in dir, and stop
// ends the server.
func ServeVersityGW(dir string, users ...string) (gw VersityGW, stop func(), err error) {
	return serveVersityGW(dir, false, users...)
}

func serveVersityGW(dir string, versions bool, users ...string) (gw VersityGW, stop func(), err error) {
	bin, err := versityOnce()
	if err != nil {
		return gw, nil, fmt.Errorf("build versitygw: %w", err)
	}
	gw = VersityGW{AccessKeyID: "peer", SecretAccessKey: "peer-secret-of-this-test"}
	cmd := exec.Command(bin, "-dir", dir, "-bucket", Bucket, "-access", gw.AccessKeyID, "-secret", gw.SecretAccessKey, "-users", strings.Join(users, ","), "-versions="+strconv.FormatBool(versions))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // held open: the server ends with it, even when the parent is killed
	if err != nil {
		return gw, nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return gw, nil, err
	}
	if err := cmd.Start(); err != nil {
		return gw, nil, err
	}
	gw.Pid = cmd.Process.Pid
	stop = func() {
		stdin.Close()
		kill := time.AfterFunc(startTimeout, func() { cmd.Process.Kill() })
		defer kill.Stop()
		cmd.Wait()
	}
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		lines <- strings.TrimSpace(line)
	}()
	select {
	case gw.Endpoint = <-lines:
	case <-time.After(startTimeout):
	}
	if gw.Endpoint == "" {
		stop()
		return gw, nil, errors.New("versitygw did not start; its standard error says why")
	}
	return gw, stop, nil
}

var versityOnce = sync.OnceValues(func() (string, error) { return build("versitygw", "versitygw", ".") })

// RunSuite builds the suite of versitygw's integration tests unless build/peers has it, and runs it against a store. run is a
// pattern for names of tests; empty runs the full flow. What the tests print goes to out; their results are no error. The
// suite makes users by ./versitygw, in dir.
func RunSuite(out io.Writer, dir, endpoint, access, secret, run string) error {
	bin, err := build("versitygw-suite", "versitygw", "./suite")
	if err != nil {
		return fmt.Errorf("build the suite: %w", err)
	}
	cmd := exec.Command(bin, "-endpoint", endpoint, "-access", access, "-secret", secret, "-run", run)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, os.Stderr, dir
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "AWS_") { // settings of another store must not reach the tests
			cmd.Env = append(cmd.Env, e)
		}
	}
	return cmd.Run()
}
