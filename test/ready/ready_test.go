// Package ready stops and starts the store and the coordinator under running services, and
// asks each whether it is able to do its work.
package ready

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/run/runtest"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	refsmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/services/coordinator"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/query"
	"lightmetrics.dev/lightmetrics/services/reconciler"
	"lightmetrics.dev/lightmetrics/services/rollup"
)

// patience bounds every wait; no test measures time.
const patience = 90 * time.Second

const here = "127.0.0.1:0"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// up runs a service until the test, or stop, ends it.
func up(t testing.TB, name string, s run.Service, err error) (stop func()) {
	t.Helper()
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }() // ends with ctx
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Cleanup(stop)
	wctx, end := context.WithTimeout(ctx, patience)
	defer end()
	must(t, runtest.Started(wctx, name, s, done))
	return stop
}

// state is what /-/ready says.
type state struct {
	code  int
	Ready bool
	Parts []struct {
		Part, Error string
		Ready       bool
		Since       time.Time
	}
}

func ask(t testing.TB, addr string) (s state) {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/-/ready")
	must(t, err)
	defer resp.Body.Close()
	must(t, json.NewDecoder(resp.Body).Decode(&s))
	s.code = resp.StatusCode
	return s
}

// part gives the state of one part.
func (s state) part(name string) (ready bool, why string) {
	for _, p := range s.Parts {
		if p.Part == name && !p.Since.IsZero() {
			return p.Ready, p.Error
		}
	}
	return false, "no such part"
}

func healthy(t testing.TB, addr string) {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/-/healthy")
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/-/healthy: %s", resp.Status)
	}
}

// serving is what gRPC health says.
func serving(t testing.TB, addr string) bool {
	t.Helper()
	conn, err := rpc.Dial(addr, rpc.ClientConfig{})
	must(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	must(t, err)
	return r.GetStatus() == healthpb.HealthCheckResponse_SERVING
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// TestAStoreOutageIsSeenEverywhere: every service that needs the store says so while it is
// away, and is ready again once it is back; none is restarted.
func TestAStoreOutageIsSeenEverywhere(t *testing.T) {
	t.Parallel()
	const secret = "test-secret-0123456789"
	dir := t.TempDir()
	oc := objectstore.DefaultConfig()
	oc.Listen, oc.AdminListen, oc.Dir, oc.Buckets = here, here, dir, []string{"bucket"}
	oc.Users = []objectstore.User{{Name: "test", AccessKeyID: "AKTEST", Secret: secret}}
	o, err := objectstore.New(oc, objectstore.Deps{})
	stop := up(t, "objectstore", o, err)
	if s := ask(t, o.AdminAddr()); s.code != http.StatusOK || len(s.Parts) == 0 {
		t.Errorf("object store: %+v", s)
	}
	oc.Listen = o.Addr() // it comes back there

	sc := s3.DefaultConfig()
	sc.Endpoint, sc.Bucket, sc.PathStyle = "http://"+o.Addr(), "bucket", true
	sc.AccessKeyID, sc.SecretAccessKey = "AKTEST", config.Secret(secret)
	store, err := s3.New(t.Context(), sc, s3.Options{})
	must(t, err)
	addrs, health := map[string]string{}, map[string]string{}

	ic := ingest.DefaultConfig()
	ic.GRPC.Listen, ic.HTTP.Listen = here, here
	i, err := ingest.New(ic, ingest.Deps{Store: store, Telemetry: telemetry.Discard()})
	up(t, "ingest", i, err)
	addrs["ingest"], health["ingest"] = i.HTTPAddr(), i.GRPCAddr()

	rc := reconciler.DefaultConfig()
	rc.GRPC.Listen, rc.HTTP.Listen = here, here
	r, err := reconciler.New(rc, reconciler.Deps{Store: store, Telemetry: telemetry.Discard()})
	up(t, "reconciler", r, err)
	addrs["reconciler"], health["reconciler"] = r.HTTPAddr(), r.GRPCAddr()

	qc := query.DefaultConfig()
	qc.GRPC.Listen, qc.HTTP.Listen = here, here
	q, err := query.New(qc, query.Deps{Store: store, Telemetry: telemetry.Discard()})
	up(t, "query", q, err)
	addrs["query"], health["query"] = q.HTTPAddr(), q.GRPCAddr()

	wc := rollup.DefaultConfig()
	wc.HTTP.Listen, wc.Shards = here, 4
	w, err := rollup.New(wc, rollup.Deps{Store: store, Telemetry: telemetry.Discard(), Refs: refsmem.New()})
	up(t, "rollup", w, err)
	addrs["rollup"] = w.HTTPAddr()

	all := func(code int) {
		t.Helper()
		for name, addr := range addrs {
			until(t, name+" to say "+http.StatusText(code), func() bool { return ask(t, addr).code == code })
		}
		for name, addr := range health {
			until(t, name+" to say the same over gRPC", func() bool { return serving(t, addr) == (code == http.StatusOK) })
		}
	}
	all(http.StatusOK)
	stop()
	all(http.StatusServiceUnavailable)
	for name, addr := range addrs {
		if ready, why := ask(t, addr).part("store"); ready || !strings.Contains(why, "store") {
			t.Errorf("%s: store is ready %v: %s", name, ready, why)
		}
		healthy(t, addr)
	}
	o, err = objectstore.New(oc, objectstore.Deps{})
	up(t, "objectstore", o, err)
	all(http.StatusOK)
}

// newStore is a bucket with an authority, as a collector makes one.
func newStore(t testing.TB) objstore.Store {
	t.Helper()
	store := mem.New(time.Now)
	c := ingest.DefaultConfig()
	c.GRPC.Listen, c.HTTP.Listen = here, here
	s, err := ingest.New(c, ingest.Deps{Store: store, Telemetry: telemetry.Discard()})
	stop := up(t, "ingest", s, err)
	until(t, "an authority", func() bool { return s.NotReady() == nil })
	stop()
	return store
}

// TestACoordinatorOutageIsSeenByItsWorkers: without a lease a rollup worker owns nothing.
func TestACoordinatorOutageIsSeenByItsWorkers(t *testing.T) {
	t.Parallel()
	cc := coordinator.DefaultConfig()
	cc.HTTP.Listen, cc.GRPC.Listen = here, here
	cc.Etcd.Embedded.DataDir, cc.Etcd.Embedded.ElectionTimeout = t.TempDir(), 500*time.Millisecond
	cc.Lease.Worker, cc.Lease.Leader = 2*time.Second, time.Second
	c, err := coordinator.New(cc, coordinator.Deps{Telemetry: telemetry.Discard()})
	stop := up(t, "coordinator", c, err)
	cc.GRPC.Listen = c.GRPCAddr() // it comes back there
	until(t, "the coordinator to be ready", func() bool { return ask(t, c.HTTPAddr()).code == http.StatusOK })
	if ready, why := ask(t, c.HTTPAddr()).part("etcd"); !ready {
		t.Errorf("etcd: %s", why)
	}

	store := newStore(t)
	wc := rollup.DefaultConfig()
	wc.HTTP.Listen, wc.Shards = here, 4
	wc.Coordinator.Addresses = []string{cc.GRPC.Listen}
	w, err := rollup.Coordinated(wc, rollup.Deps{Store: store, Telemetry: telemetry.Discard()})
	up(t, "rollup", w, err)
	addr := w.HTTPAddr()
	until(t, "the worker to be ready", func() bool { return ask(t, addr).code == http.StatusOK })
	stop()
	until(t, "the worker to miss the coordinator", func() bool {
		s := ask(t, addr)
		ready, _ := s.part("coordinator")
		return s.code == http.StatusServiceUnavailable && !ready
	})
	if ready, why := ask(t, addr).part("store"); !ready {
		t.Errorf("the store is there: %s", why)
	}
	healthy(t, addr)
	c, err = coordinator.New(cc, coordinator.Deps{Telemetry: telemetry.Discard()})
	up(t, "coordinator", c, err)
	until(t, "the worker to be ready again", func() bool { return ask(t, addr).code == http.StatusOK })
}
