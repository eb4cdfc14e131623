// Package lint keeps the rules of the house as tests: which package may import which,
// and what the deterministic core must not contain.
package lint

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "lightmetrics.dev/lightmetrics/"

type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
}

// path is the import path below the module.
func (p pkg) path() string { return strings.TrimPrefix(p.ImportPath, module) }

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports", "./...")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		var e *exec.ExitError
		if errors.As(err, &e) {
			t.Fatalf("go list: %s", e.Stderr)
		}
		t.Fatal(err)
	}
	var ps []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	if len(ps) < 10 {
		t.Fatalf("go list found only %d packages", len(ps))
	}
	return ps
}

func within(path string, roots ...string) bool {
	for _, r := range roots {
		if path == r || strings.HasPrefix(path, r+"/") {
			return true
		}
	}
	return false
}

// core packages are deterministic: they get the store, the clock and randomness handed in.
// The list has exact paths: what lies below a package of it, such as a back end or a test
// kit, is not core unless it is named too.
var core = []string{
	"pkg/accepted",
	"pkg/identity", "pkg/layout", "pkg/series", "pkg/series/samples", "pkg/series/shapes", "pkg/frame", "pkg/ledger", "pkg/accept", "pkg/gc", "pkg/reconcile", "pkg/live", "pkg/promstore",
	"pkg/window", "pkg/shard", "pkg/chunk", "pkg/rollup", "pkg/catalog", "pkg/intake", "pkg/snapshot", "pkg/block", "pkg/compact",
	"pkg/agentlabel", "pkg/sharedid", "pkg/sketch", "pkg/jsonbatch", "pkg/lru", "pkg/retry", "pkg/record", "pkg/publish", "pkg/work", "services/coordinator/internal/ownership",
}

// awsClient is the only package that uses the AWS SDK.
const awsClient = "pkg/objstore/s3"

// etcdClient is the only package that reaches etcd.
const etcdClient = "services/coordinator/internal/etcd"

// backoffs wrap the library of back-off: for loops of processes, and for the agent's sender,
// which has a wait for each batch.
var backoffs = []string{"pkg/run", "agent/send"}

// leaves may import only what is listed.
var leaves = map[string][]string{
	"pkg/identity":       nil,
	"pkg/window":         nil,
	"pkg/shard":          nil,
	"pkg/layout":         {"pkg/identity", "pkg/window", "pkg/shard"},
	"pkg/retry":          nil,
	"pkg/objstore":       {"pkg/identity", "pkg/retry"},
	"pkg/record":         {"pkg/identity", "pkg/objstore"},
	"pkg/series":         nil,
	"pkg/series/samples": {"pkg/series"},
	"pkg/series/shapes":  {"pkg/series"},
	"pkg/accepted":       {"pkg/identity", "pkg/window"},
	"pkg/frame":          {"pkg/identity", "pkg/series"},
	"pkg/chunk":          {"pkg/identity", "pkg/series"},
	"pkg/ledger":         {"pkg/identity", "pkg/record", "pkg/accepted"},
	"pkg/config":         nil,
	"pkg/sketch":         nil,
	"pkg/tlsfile":        nil,
	"pkg/web":            nil,
	"pkg/run":            {"pkg/web"},

	// The wiring knows no service and no format: services register what they serve, with its errors.
	"pkg/rpc":     {"pkg/web", "pkg/config", "pkg/telemetry", "pkg/tlsfile"},
	"pkg/service": {"pkg/web", "pkg/run", "pkg/rpc", "pkg/config", "pkg/telemetry", "pkg/tlsfile", "pkg/failpoint", "pkg/objstore"},

	"pkg/agentlabel": nil,
	"pkg/sharedid":   {"pkg/identity"},

	"pkg/failpoint": nil,
	"pkg/lru":       nil,
	"pkg/vfs":       nil,
}

// ofObjectStore is what the object store may import beside itself: it is an S3 server that
// knows nothing of metrics. pkg/vfs is below it, because the queue, the spool and the store
// keep the same promises over the same file system, and one model of power loss tests them.
var ofObjectStore = []string{"services/objectstore", "pkg/run", "pkg/web", "pkg/telemetry", "pkg/config", "pkg/vfs", "internal/cli"}

func TestImportsRunDownwards(t *testing.T) {
	for _, p := range list(t) {
		from := p.path()
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module)
			if reason := refused(from, to, imp, ours); reason != "" {
				t.Errorf("%s imports %s: %s", from, imp, reason)
			}
		}
	}
}

func refused(from, to, imp string, ours bool) string {
	if strings.HasPrefix(imp, "github.com/aws/") && from != awsClient {
		return "only " + awsClient + " imports the AWS SDK"
	}
	if imp == "container/list" {
		return "pkg/lru is the one cache"
	}
	if strings.HasPrefix(imp, "github.com/cenkalti/backoff/") && !within(from, backoffs...) {
		return "loops wait by run.Backoff"
	}
	if strings.HasPrefix(imp, "go.etcd.io/etcd/") && from != etcdClient {
		return "only " + etcdClient + " imports the etcd client"
	}
	if slices.Contains(core, from) {
		if strings.HasPrefix(imp, "google.golang.org/grpc") {
			return "the core knows no gRPC"
		}
		if ours && within(to, "pkg/failpoint") {
			return "the core stays free of failpoints: pkg/failpoint/failstore stands around its store"
		}
		if ours && within(to, "proto/gen") && !within(to, "proto/gen/lightmetrics/frame") {
			return "the core knows no service"
		}
	}
	if !ours {
		return ""
	}
	if allowed, ok := leaves[from]; ok && !within(to, allowed...) {
		return "a leaf imports only " + strings.Join(allowed, ", ")
	}
	switch {
	case within(from, "pkg") && within(to, "services", "agent", "client", "cmd", "test", "internal"):
		return "pkg stands below services, agent, client and cmd"
	case within(from, "client") && within(to, "services", "cmd", "test", "internal"):
		return "the client runs in other people's programs, and talks to services over the network"
	case within(from, "pkg/published", "pkg/block", "pkg/rollup") && within(to, "pkg/live"):
		return "what is published does not know what is in memory: pkg/promstore stands over both"
	case within(from, "services/objectstore") && !within(to, ofObjectStore...) && to != "pkg/failpoint" && to != "pkg/service":
		return "the object store stands on its own"
	case within(from, "services") && within(to, "services") && service(from) != service(to):
		return "services talk over proto/gen clients"
	case within(from, "services", "agent") && within(to, "cmd", "test"):
		return "services stand below cmd"
	case within(from, "agent") && within(to, "services"):
		return "the agent talks to services over the network"
	case within(to, "cmd") && !(within(from, "cmd") && service(from) == service(to)):
		return "nothing imports a main"
	case within(from, "agent") && within(to, "internal"):
		return "the agent is a library: its command is made in cmd/lightmetrics"
	case within(from, "agent/input") && within(to, "pkg/rpc", "agent/send"):
		return "an input knows no collector"
	case within(from, "services", "pkg") && within(to, "internal") && !within(to, "internal/cli"):
		return "internal tools are for tests and mains"
	}
	return ""
}

// service is the first two elements of a path below services.
func service(path string) string {
	parts := strings.SplitN(path, "/", 3)
	return strings.Join(parts[:min(len(parts), 2)], "/")
}

func TestRefusedFindsWhatItShould(t *testing.T) {
	for _, c := range []struct{ from, imp string }{
		{"pkg/accept", "google.golang.org/grpc"},
		{"pkg/accept", "github.com/aws/aws-sdk-go-v2/aws"},
		{"pkg/accept", module + "proto/gen/lightmetrics/ingest/v1"},
		{"pkg/frame", module + "pkg/objstore"},
		{"pkg/chunk", module + "pkg/frame"},
		{"pkg/series", module + "pkg/frame"},
		{"pkg/published", module + "pkg/live"},
		{"pkg/accept", module + "pkg/failpoint"},
		{"services/objectstore/internal/engine", module + "pkg/failpoint/failstore"},
		{"pkg/rpc", module + "services/ingest"},
		{"services/ingest", module + "services/query"},
		{"services/objectstore/internal/engine", module + "pkg/identity"},
		{"agent", module + "services/ingest"},
		{"agent", module + "internal/cli"},
		{"client", module + "services/query"},
		{"agent/input/scrape", module + "pkg/rpc"},
		{"services/query", "go.etcd.io/etcd/client/v3"},
		{"pkg/coordinator", "go.etcd.io/etcd/client/v3"},
		{"pkg/work", "google.golang.org/grpc"},
		{"pkg/publish", "google.golang.org/grpc/codes"},
		{"services/coordinator/internal/ownership", "google.golang.org/grpc"},
		{"services/query", module + "cmd/lmctl"},
		{"services/query", "container/list"},
		{"services/query", "github.com/cenkalti/backoff/v5"},
	} {
		to, ours := strings.CutPrefix(c.imp, module)
		if refused(c.from, to, c.imp, ours) == "" {
			t.Errorf("%s may import %s", c.from, c.imp)
		}
	}
}
