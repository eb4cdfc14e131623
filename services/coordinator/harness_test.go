package coordinator

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "worker":
		workerProcess()
	case "coordinator":
		coordinatorProcess()
	}
	goleak.VerifyTestMain(m,
		// etcd's own, which it does not wait for when it stops.
		goleak.IgnoreTopFunction("go.etcd.io/etcd/client/pkg/v3/logutil.(*MergeLogger).outputLoop"),
		goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

// patience bounds every wait of a test; no test measures time.
const patience = 60 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// quick is a configuration with short times over a member of its own in dir. Leases and
// requests are not lost because the machine is slow.
func quick(dir string) Config {
	c := DefaultConfig()
	c.HTTP.Listen, c.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Etcd.Embedded.DataDir = dir
	c.Etcd.Embedded.ElectionTimeout = 500 * time.Millisecond
	c.Etcd.RequestTimeout = patience / 2
	c.Lease = LeaseConfig{Worker: 10 * time.Second, Leader: 10 * time.Second}
	c.Rebalance = RebalanceConfig{QuietPeriod: 100 * time.Millisecond, MaxDelay: time.Second}
	return c
}

// brief is quick for faults: who has died is missed within seconds.
func brief(dir string) Config {
	c := quick(dir)
	c.Etcd.RequestTimeout = DefaultConfig().Etcd.RequestTimeout
	c.Lease = LeaseConfig{Worker: 2 * time.Second, Leader: time.Second}
	return c
}

// running is a coordinator of a test.
type running struct {
	*Service
	t    testing.TB
	tel  *telemetry.Telemetry
	stop context.CancelFunc
	done chan error
}

func start(t testing.TB, c Config, terms objstore.Store) *running {
	t.Helper()
	return startWith(t, c, Deps{Store: terms})
}

// startWith starts a coordinator with telemetry of its own.
func startWith(t testing.TB, c Config, d Deps) *running {
	t.Helper()
	tel := telemetry.Discard()
	if os.Getenv("LM_TEST_LOG") != "" {
		tel.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	d.Telemetry = tel
	s, err := New(c, d)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Service: s, t: t, tel: tel, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- s.Run(ctx) }()
	t.Cleanup(func() { r.end() })
	select {
	case <-s.Ready():
	case err := <-r.done:
		t.Fatal(err)
	case <-time.After(patience):
		t.Fatal("the coordinator is not ready")
	}
	return r
}

// end stops the coordinator; more than once is harmless.
func (r *running) end() {
	r.stop()
	select {
	case err, ok := <-r.done:
		if ok {
			close(r.done)
		}
		if err != nil {
			r.t.Error(err)
		}
	case <-time.After(patience):
		r.t.Fatal("the coordinator does not stop")
	}
}

func (r *running) addr() string { return r.GRPCAddr() }

// client reaches the service.
func (r *running) client() coordinatorv1.OwnershipServiceClient {
	r.t.Helper()
	conn, err := rpc.Dial(r.addr(), rpc.ClientConfig{})
	must(r.t, err)
	r.t.Cleanup(func() { conn.Close() })
	return coordinatorv1.NewOwnershipServiceClient(conn)
}

// until polls.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
