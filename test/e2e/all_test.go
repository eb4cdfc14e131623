package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

// transcript is what a process printed so far.
type transcript struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (x *transcript) add(b []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.b.Write(b)
}

func (x *transcript) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

// oneMachine is "lightmetrics all" on ports of its own.
type oneMachine struct {
	t           *testing.T
	dir, file   string
	query, http string // addresses of the query service and the collector
	store       string
	out         *transcript
	cmd         *exec.Cmd
	done        chan error
}

func newOneMachine(t *testing.T) *oneMachine {
	t.Helper()
	a, err := proc.Fixed(13)
	must(t, err)
	m := &oneMachine{t: t, dir: filepath.Join(t.TempDir(), "data"), query: a[0], http: a[1], store: a[2]}
	m.file = filepath.Join(t.TempDir(), "all.yaml")
	listen := func(addr string) map[string]any { return map[string]any{"listen": addr} }
	text, err := yaml.Marshal(map[string]any{
		"all":         map[string]any{"data_dir": m.dir, "shards": 2},
		"objectstore": map[string]any{"listen": a[2], "admin_listen": a[3]},
		"coordinator": map[string]any{"http": listen(a[4]), "grpc": listen(a[5])},
		"reconciler":  map[string]any{"http": listen(a[6]), "grpc": listen(a[7])},
		"ingest":      map[string]any{"grpc": listen(a[8]), "http": listen(a[1])},
		"rollup":      map[string]any{"http": listen(a[9])},
		"query":       map[string]any{"http": listen(a[0]), "grpc": listen(a[10])},
		"agent":       map[string]any{"http": listen(a[11]), "interval": "1s", "batch": map[string]any{"max_age": "1s"}, "agent_id": "one"},
	})
	must(t, err)
	must(t, os.WriteFile(m.file, text, 0o600))
	return m
}

// start starts the group and waits for its banner.
func (m *oneMachine) start(ctx context.Context) {
	m.t.Helper()
	m.cmd = exec.Command(bin, "all", "--config", m.file)
	r, w, err := os.Pipe()
	must(m.t, err)
	m.cmd.Stdout, m.cmd.Stderr = w, w
	must(m.t, m.cmd.Start())
	must(m.t, w.Close())
	seen, done := make(chan struct{}), make(chan error, 1)
	out, cmd := &transcript{}, m.cmd
	m.out = out
	go func() {
		buf, told := make([]byte, 4096), false
		for {
			n, err := r.Read(buf)
			out.add(buf[:n])
			if !told && strings.Contains(out.String(), "\n  next         curl") {
				told = true
				close(seen)
			}
			if err != nil {
				done <- cmd.Wait()
				return
			}
		}
	}()
	m.done = done
	m.t.Cleanup(func() { _ = m.cmd.Process.Kill() })
	select {
	case <-seen:
	case err := <-done:
		m.t.Fatalf("the group ended: %v\n%s", err, m.out.String())
	case <-ctx.Done():
		m.t.Fatal("the group does not start")
	}
}

func (m *oneMachine) secret(name string) string {
	m.t.Helper()
	path := filepath.Join(m.dir, "credentials", name)
	info, err := os.Stat(path)
	must(m.t, err)
	if info.Mode().Perm() != 0o600 {
		m.t.Errorf("%s has mode %v", name, info.Mode())
	}
	b, err := os.ReadFile(path)
	must(m.t, err)
	return strings.TrimSpace(string(b))
}

// ask gives status and answer of an instant query.
func (m *oneMachine) ask(token, expression string) (int, string) {
	m.t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://"+m.query+"/api/v1/query?query="+url.QueryEscape(expression), nil)
	must(m.t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(m.t, err)
	return resp.StatusCode, string(b)
}

// waitForMetrics waits until this host's metrics are answered.
func (m *oneMachine) waitForMetrics(ctx context.Context) {
	m.t.Helper()
	token := m.secret("reader-token")
	for ctx.Err() == nil {
		status, body := m.ask(token, "count(node_load1)")
		var v struct {
			Data struct{ Result []any }
		}
		if status == http.StatusOK && json.Unmarshal([]byte(body), &v) == nil && len(v.Data.Result) == 1 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	m.t.Fatalf("no metrics of this host\n%s", m.out.String())
}

// stop sends SIGTERM and waits.
func (m *oneMachine) stop(ctx context.Context) {
	m.t.Helper()
	must(m.t, m.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-m.done:
		if err != nil {
			m.t.Errorf("the group ended with %v\n%s", err, m.out.String())
		}
	case <-ctx.Done():
		m.t.Fatalf("the group does not stop\n%s", m.out.String())
	}
}

// TestAllOnOneMachine: the group makes its credentials once, asks for them, starts again
// what is killed, keeps acceptance records from its own services, and stops in order.
func TestAllOnOneMachine(t *testing.T) {
	t.Parallel()
	ctx := within(t, 4*time.Minute)
	m := newOneMachine(t)
	if out, err := exec.Command(bin, "all", "--config", m.file, "--config.check").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := os.Stat(m.dir); err == nil {
		t.Error("--config.check made the data directory")
	}
	m.start(ctx)
	for _, name := range []string{"sender-token", "reader-token", "operator-token"} {
		if secret := m.secret(name); len(secret) < 32 || !strings.Contains(m.out.String(), secret) {
			t.Errorf("%s is %d characters, or was not printed", name, len(secret))
		}
	}
	for _, name := range []string{"store-secret", "fold-secret", "worker-token"} {
		if strings.Contains(m.out.String(), m.secret(name)) {
			t.Errorf("%s was printed", name)
		}
	}
	m.waitForMetrics(ctx)
	if status, _ := m.ask("", "up"); status != http.StatusUnauthorized {
		t.Errorf("a query without a token: %d", status)
	}
	if status, _ := m.ask(m.secret("sender-token"), "up"); status != http.StatusForbidden {
		t.Errorf("a query with an agent's token: %d", status)
	}

	// Nobody changes what was accepted, the services' own credentials included.
	secret := config.Secret(m.secret("store-secret"))
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.PathStyle, cfg.AccessKeyID, cfg.SecretAccessKey = "http://"+m.store, "lightmetrics", true, "lightmetrics", secret
	store, err := s3.New(ctx, cfg, s3.Options{})
	must(t, err)
	if err := store.Delete(ctx, "accepted/v1/anything.json"); err == nil {
		t.Error("an acceptance record can be deleted")
	}

	// A second group is kept out, and what is killed comes back.
	out, err := exec.Command(bin, "all", "--config", m.file).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another \"lightmetrics all\"") {
		t.Errorf("a second group: %v\n%s", err, out)
	}
	pids, err := exec.Command("pgrep", "-P", strconv.Itoa(m.cmd.Process.Pid), "-f", "lightmetrics query").Output()
	must(t, err)
	must(t, exec.Command("kill", "-9", strings.TrimSpace(string(pids))).Run())
	for ctx.Err() == nil && !strings.Contains(m.out.String(), "starting it again") {
		time.Sleep(50 * time.Millisecond)
	}
	m.waitForMetrics(ctx)
	before := m.secret("reader-token")

	// SIGHUP reaches every service, and ends none.
	ended := strings.Count(m.out.String(), "starting it again")
	must(t, m.cmd.Process.Signal(syscall.SIGHUP))
	for ctx.Err() == nil && strings.Count(m.out.String(), "reloaded") < 7 {
		time.Sleep(50 * time.Millisecond)
	}
	if n := strings.Count(m.out.String(), "starting it again"); n != ended || ctx.Err() != nil {
		t.Errorf("SIGHUP ended %d services\n%s", n-ended, m.out.String())
	}
	m.stop(ctx)
	order := []int{}
	for _, name := range []string{"agent", "query", "rollup", "ingest", "reconciler", "coordinator", "objectstore"} {
		order = append(order, strings.Index(m.out.String(), "msg=stopped service=all member="+name))
	}
	for i, at := range order {
		if at < 0 || i > 0 && at < order[i-1] {
			t.Errorf("stopped in another order: %v\n%s", order, m.out.String())
		}
	}

	// The next start keeps the credentials, prints none, and has what was accepted.
	m.start(ctx)
	if got := m.secret("reader-token"); got != before || strings.Contains(m.out.String(), got) {
		t.Error("the second start made or printed a token")
	}
	m.waitForMetrics(ctx)

	// Its services do not outlive a group that is killed.
	pids, err = exec.Command("pgrep", "-P", strconv.Itoa(m.cmd.Process.Pid)).Output()
	must(t, err)
	if n := len(strings.Fields(string(pids))); n != 7 {
		t.Errorf("%d services, want 7", n)
	}
	must(t, m.cmd.Process.Kill())
	for ctx.Err() == nil && exec.Command("ps", "-o", "pid=", "-p", strings.Join(strings.Fields(string(pids)), ",")).Run() == nil {
		time.Sleep(50 * time.Millisecond)
	}
	must(t, ctx.Err())
}
