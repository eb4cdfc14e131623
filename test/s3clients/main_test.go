// Package s3clients drives the embedded object store, in a process of its own, with S3 clients of other projects in their
// default settings: what each of them stores is read back by another client, byte for byte.
package s3clients

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

const (
	accessKey = "CLIENTSKEY"
	secretKey = "secret-of-the-clients"
	// childDir makes this test binary a store in that directory.
	childDir = "S3CLIENTS_STORE_DIR"
	// largeSize is the variable that sets the size of the large file in MiB.
	largeSize = "S3CLIENTS_LARGE_MIB"
	// smallLarge, MiB, has several parts of every client that has a size of parts of its own.
	smallLarge = 40
)

// endpoint is the URL of the store under test.
var endpoint string

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		serve(dir)
	}
	os.Exit(testMain(m))
}

// serve is the store's process: default settings and one user.
func serve(dir string) {
	c := objectstore.DefaultConfig()
	c.Dir, c.Listen, c.AdminListen = dir, "127.0.0.1:0", ""
	c.Users = []objectstore.User{{Name: "clients", AccessKeyID: accessKey, Secret: config.Secret(secretKey)}}
	s, err := objectstore.New(c, objectstore.Deps{})
	if err == nil {
		go func() {
			<-s.Ready()
			fmt.Println(s.Addr())
		}()
		err = s.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "s3clients")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the store:", err)
		return 1
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		fmt.Fprintln(os.Stderr, "the store did not start:", err)
		return 1
	}
	endpoint = "http://" + strings.TrimSpace(line)
	code := m.Run()
	ran.print()
	return code
}

// step is something that a client does, by the name of the feature that it shows.
type step struct {
	feature string
	run     func(*testing.T)
}

// played is what became of a client.
type played struct {
	client, version string
	passed, failed  []string
	missing         string // why it was not run
}

var ran results

type results struct {
	mu   sync.Mutex
	list []played
}

func (r *results) add(p played) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, p)
}

// print says for each client what it did, or why it was not run: a run without clients must not look like one with them.
func (r *results) print() {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(r.list, func(a, b played) int { return cmp.Compare(a.client, b.client) })
	for _, p := range r.list {
		if p.missing != "" {
			fmt.Printf("s3-clients: %-12s SKIPPED: %s\n", p.client, p.missing)
			continue
		}
		fmt.Printf("s3-clients: %-12s %s: %d of %d: %s", p.client, p.version, len(p.passed), len(p.passed)+len(p.failed), strings.Join(p.passed, ", "))
		if len(p.failed) > 0 {
			fmt.Printf("; FAILED: %s", strings.Join(p.failed, ", "))
		}
		fmt.Println()
	}
}

// play takes the steps one after the other. What a step leaves is the next one's start.
func play(t *testing.T, client, version string, steps ...step) {
	p := played{client: client, version: version}
	for _, s := range steps {
		if t.Run(s.feature, s.run) {
			p.passed = append(p.passed, s.feature)
		} else {
			p.failed = append(p.failed, s.feature)
		}
	}
	ran.add(p)
}

// skip skips a client that is not on this machine.
func skip(t *testing.T, client, why string) {
	ran.add(played{client: client, missing: why})
	t.Skip(why)
}

// need skips the test where one of the programs is missing.
func need(t *testing.T, client string, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			skip(t, client, p+" is not installed")
		}
	}
}

// programTimeout bounds one run of a client.
const programTimeout = 10 * time.Minute

// tool runs programs in an environment of their own: nothing of the user's settings, and no proxy.
type tool struct {
	dir string
	env []string
}

func newTool(t *testing.T, env ...string) *tool {
	t.Helper()
	dir := t.TempDir()
	x := &tool{dir: dir}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "AWS_") || strings.HasPrefix(name, "RCLONE_") || strings.HasPrefix(name, "RESTIC_") || strings.HasSuffix(strings.ToLower(name), "_proxy") {
			continue
		}
		x.env = append(x.env, kv)
	}
	x.env = append(x.env, "HOME="+dir, "AWS_ACCESS_KEY_ID="+accessKey, "AWS_SECRET_ACCESS_KEY="+secretKey, "AWS_EC2_METADATA_DISABLED=true")
	x.env = append(x.env, env...)
	return x
}

// run gives what the program printed to its standard output; the test ends when it fails.
func (x *tool) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := x.try(program, args...)
	if err != nil {
		t.Fatalf("%s %s: %v", program, strings.Join(args, " "), err)
	}
	return out
}

func (x *tool) try(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), programTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = x.dir, x.env
	var out, messages strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w\n%s\n%s", err, tail(out.String()), tail(messages.String()))
	}
	return out.String(), nil
}

func tail(s string) string { return s[max(0, len(s)-2000):] }
