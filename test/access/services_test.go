package access

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/run/runtest"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	refsmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/services/coordinator"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/query"
	"lightmetrics.dev/lightmetrics/services/reconciler"
	"lightmetrics.dev/lightmetrics/services/rollup"
)

// patience bounds every wait; no test measures time.
const patience = 60 * time.Second

// tokens are the principals' names too: one with each role alone, and one without any.
var tokens = []string{"sender", "reader", "operator", "worker", "nothing"}

// bound is a worker that acts for the region eu alone; its rights on methods are those of worker.
const bound = "bound"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func authConfig(t testing.TB) rpc.AuthConfig {
	t.Helper()
	var b strings.Builder
	b.WriteString("principals:\n")
	for _, name := range append(slices.Clone(tokens), bound) {
		h := sha256.Sum256([]byte(name))
		more := map[string]string{"sender": ", roles: [sender], agents: [\"*\"]", "reader": ", roles: [reader]",
			"operator": ", roles: [operator]", "worker": ", roles: [worker], workers: [\"*\"]", bound: ", roles: [worker], workers: [\"*\"], regions: [eu]"}[name]
		fmt.Fprintf(&b, "- {name: %s, token_sha256: %s%s}\n", name, hex.EncodeToString(h[:]), more)
	}
	file := filepath.Join(t.TempDir(), "principals.yaml")
	must(t, os.WriteFile(file, []byte(b.String()), 0o600))
	return rpc.AuthConfig{Mode: rpc.AuthToken, PrincipalsFile: file}
}

// up runs a service until the test ends.
func up(t testing.TB, name string, s run.Service, err error) {
	t.Helper()
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	wctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	must(t, runtest.Started(wctx, name, s, done))
}

// system has the addresses of all services by their names in the tables.
type system struct {
	http map[string]string
	grpc map[string]string
}

const here = "127.0.0.1:0"

func start(t testing.TB) system {
	t.Helper()
	auth := authConfig(t)
	var store objstore.Store = mem.New(time.Now)
	tel := telemetry.Discard
	sys := system{http: map[string]string{}, grpc: map[string]string{}}

	for _, own := range []bool{false, true} {
		c := ingest.DefaultConfig()
		c.GRPC.Listen, c.HTTP.Listen, c.Auth, c.AuthorityID, c.Pprof = here, here, auth, "authority", true
		if own {
			c.Admin.Listen = here
		}
		s, err := ingest.New(c, ingest.Deps{Store: store, Telemetry: tel()})
		up(t, "ingest", s, err)
		if own {
			sys.http["ingest admin"] = s.AdminAddr()
			continue
		}
		sys.http["ingest"], sys.grpc["lightmetrics.ingest.v1"] = s.HTTPAddr(), s.GRPCAddr()
	}
	recc := reconciler.DefaultConfig()
	recc.HTTP.Listen, recc.GRPC.Listen, recc.Auth, recc.Pprof, recc.Events.Webhook = here, here, auth, true, true
	rec, err := reconciler.New(recc, reconciler.Deps{Store: store, Telemetry: tel()})
	up(t, "reconciler", rec, err)
	sys.http["reconciler"], sys.grpc["lightmetrics.reconciler.v1"] = rec.HTTPAddr(), rec.GRPCAddr()
	qc := query.DefaultConfig()
	qc.HTTP.Listen, qc.GRPC.Listen, qc.Auth, qc.Pprof, qc.Events.Webhook = here, here, auth, true, true
	q, err := query.New(qc, query.Deps{Store: store, Telemetry: tel()})
	up(t, "query", q, err)
	sys.http["query"], sys.grpc["lightmetrics.query.v1"] = q.HTTPAddr(), q.GRPCAddr()

	rc := rollup.DefaultConfig()
	rc.HTTP.Listen, rc.Auth, rc.Pprof, rc.Shards = here, auth, true, 4
	r, err := rollup.New(rc, rollup.Deps{Store: store, Telemetry: tel(), Refs: refsmem.New()})
	up(t, "rollup", r, err)
	sys.http["rollup"] = r.HTTPAddr()

	cc := coordinator.DefaultConfig()
	cc.HTTP.Listen, cc.GRPC.Listen, cc.Auth, cc.Pprof = here, here, auth, true
	cc.Etcd.Embedded.DataDir, cc.Etcd.Embedded.ElectionTimeout = t.TempDir(), 500*time.Millisecond
	c, err := coordinator.New(cc, coordinator.Deps{Telemetry: tel()})
	up(t, "coordinator", c, err)
	sys.http["coordinator"], sys.grpc["lightmetrics.coordinator.v1"] = c.HTTPAddr(), c.GRPCAddr()
	return sys
}
