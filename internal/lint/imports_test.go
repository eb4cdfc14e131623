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
	"internal/accepted", "internal/queries/missing",
	"pkg/identity", "internal/layout", "pkg/series", "internal/series/samples", "internal/series/shapes", "pkg/frame", "internal/derived/ledger", "internal/derived/ledgers", "internal/derived/audit", "internal/derived/scrub", "internal/derived/putback", "internal/derived/history", "internal/acceptance/accept", "internal/acceptance/gc", "internal/acceptance/epochs", "internal/acceptance/journal", "internal/acceptance/resolution", "internal/derived/reconcile", "internal/queries/live", "internal/queries/promstore", "internal/queries/foreign", "internal/queries/promeval",
	"internal/timegrid", "internal/shard", "internal/rollups/chunk", "internal/rollups/rollup", "internal/rollups/catalog", "internal/queries/snapshot", "internal/rollups/block", "internal/rollups/compact", "internal/rollups/progress", "internal/rollups/shards", "internal/rollups/helps",
	"internal/series/agentlabel", "internal/acceptance/sharedid", "internal/rollups/sketch", "internal/acceptance/jsonbatch", "internal/platform/lru", "internal/platform/retry", "internal/record", "internal/rollups/publish", "internal/rollups/delta", "internal/coordination/work", "internal/coordination/claims", "internal/coordination/regions", "internal/coordination/folds", "internal/coordination/forward", "internal/coordination/trace", "services/coordinator/internal/ownership",
	"services/rollup/internal/hour", "services/rollup/internal/backlog", "services/rollup/internal/overlaps", "services/rollup/internal/late", "services/rollup/internal/schedule", "services/rollup/internal/sizing",
	"services/objectstore/internal/checksum", "services/objectstore/internal/erasure", "services/objectstore/internal/lifecycle", "services/objectstore/internal/placement", "services/objectstore/internal/scan", "services/objectstore/internal/policy", "services/objectstore/internal/postpolicy", "services/objectstore/internal/s3xml", "services/objectstore/internal/sigv4",
}

// coreFiles are deterministic as the core is, in packages whose other files do what they decide: what a
// model of a whole store replays, without a drive.
var coreFiles = map[string][]string{
	"services/ingest":                          {"breaker.go"},
	"services/objectstore/internal/ledger":     {"ledger.go", "queue.go", "row.go", "state.go", "use.go"},
	"services/objectstore/internal/mirror":     {"membership.go"},
	"services/objectstore/internal/redundancy": {"plan.go", "policy.go", "passes.go", "tracker.go", "worker.go"},
}

// awsClients are the only packages that use the AWS SDK, one for each service of AWS.
var awsClients = []string{"internal/objstore/s3", "internal/acceptance/events/sqs"}

// etcdClient is the only package that reaches etcd.
const etcdClient = "services/coordinator/internal/etcd"

// backoffs wrap the library of back-off: for loops of processes, and for the agent's sender,
// which has a wait for each batch.
var backoffs = []string{"internal/platform/run", "agent/send"}

// leaves may import only what is listed.
var leaves = map[string][]string{
	"pkg/identity":              nil,
	"internal/timegrid":         nil,
	"internal/shard":            nil,
	"internal/layout":           {"pkg/identity", "internal/timegrid", "internal/shard"},
	"internal/platform/retry":   nil,
	"internal/objstore":         {"pkg/identity", "internal/platform/retry"},
	"internal/record":           {"pkg/identity", "internal/objstore"},
	"pkg/series":                nil,
	"internal/series/samples":   {"pkg/series"},
	"internal/series/shapes":    {"pkg/series"},
	"internal/accepted":         {"pkg/identity", "internal/timegrid"},
	"pkg/frame":                 {"pkg/identity", "pkg/series"},
	"internal/rollups/chunk":    {"pkg/identity", "pkg/series"},
	"internal/derived/ledger":   {"pkg/identity", "internal/record", "internal/accepted"},
	"internal/platform/config":  nil,
	"internal/rollups/sketch":   nil,
	"internal/platform/tlsfile": nil,
	"internal/platform/web":     nil,
	"internal/platform/run":     {"internal/platform/web"},

	// The wiring knows no service and no format: services register what they serve, with its errors.
	"internal/platform/rpc": {"internal/platform/web", "internal/platform/config", "internal/platform/telemetry", "internal/platform/tlsfile"},
	"internal/service":      {"internal/platform/web", "internal/platform/run", "internal/platform/rpc", "internal/platform/config", "internal/platform/telemetry", "internal/platform/tlsfile", "internal/platform/failpoint", "internal/objstore"},

	"internal/series/agentlabel":   nil,
	"internal/acceptance/sharedid": {"pkg/identity"},

	"internal/platform/failpoint": nil,
	"internal/platform/lru":       nil,
	"internal/platform/vfs":       nil,
}

// ofObjectStore is what the object store may import beside itself: it is an S3 server that
// knows nothing of metrics. internal/platform/vfs is below it, because the queue, the spool and the store
// keep the same promises over the same file system, and one model of power loss tests them.
var ofObjectStore = []string{"services/objectstore", "internal/platform/run", "internal/platform/web", "internal/platform/telemetry", "internal/platform/config", "internal/platform/vfs", "internal/platform/tlsfile", "internal/cli"}

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
	if strings.HasPrefix(imp, "github.com/aws/") && !slices.Contains(awsClients, from) {
		return "only " + strings.Join(awsClients, " and ") + " import the AWS SDK"
	}
	if imp == "container/list" {
		return "internal/platform/lru is the one cache"
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
		if ours && within(to, "internal/platform/failpoint") {
			return "the core stays free of failpoints: internal/objstore/failstore stands around its store"
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
	if below, above := floor(to), floor(from); below > above {
		return strings.Join(floors[below], ", ") + " stand above " + strings.Join(floors[above], ", ")
	}
	switch {
	case within(from, "client") && within(to, "internal") && !within(to, "internal/platform"):
		return "the client runs in other people's programs, and talks to services over the network"
	case within(from, "internal/queries/published") && within(to, "internal/queries/live"):
		return "what is published does not know what is in memory: promstore stands over both"
	case within(from, "services/objectstore") && !within(to, ofObjectStore...) && to != "internal/platform/failpoint" && to != "internal/service":
		return "the object store stands on its own"
	case within(from, "services") && within(to, "services") && service(from) != service(to):
		return "services talk over proto/gen clients"
	case within(to, "cmd") && !(within(from, "cmd") && service(from) == service(to)):
		return "nothing imports a main"
	case within(from, "agent") && within(to, "internal/cli", "internal/service"):
		return "the agent is a library: its command is made in cmd/lightmetrics"
	case within(from, "agent/input") && within(to, "internal/platform/rpc", "agent/send"):
		return "an input knows no collector"
	}
	return ""
}

// floors are the levels of the house from the ground up. A package imports its own floor
// and those below, so each floor can be read, tested and changed without what stands on it.
// The table of rooms in ARCHITECTURE.md is in the same order.
var floors = [][]string{
	{"proto"},
	{"internal/platform", "pkg/identity", "internal/shard", "internal/timegrid"},
	{"pkg/series", "internal/series"},
	{"pkg/frame", "internal/layout", "internal/objstore"},
	{"internal/record", "internal/accepted"},
	{"internal/acceptance"},
	{"internal/derived"},
	{"internal/rollups"},
	{"internal/coordination"},
	{"internal/queries"},
	{"internal/service", "internal/cli"},
	{"agent"},
	{"client"},
	{"services"},
	{"internal/harness", "internal/docgen", "internal/dashboard", "internal/lint", "cmd", "test"},
}

// floor is the index in floors, or the top where none is named: TestEveryRoomHasAFloor
// keeps that from happening.
func floor(path string) int {
	for i, roots := range floors {
		if within(path, roots...) {
			return i
		}
	}
	return len(floors) - 1
}

func TestEveryRoomHasAFloor(t *testing.T) {
	for _, p := range list(t) {
		if !slices.ContainsFunc(floors, func(roots []string) bool { return within(p.path(), roots...) }) {
			t.Errorf("%s stands on no floor: name it in floors", p.path())
		}
	}
}

// service is the first two elements of a path below services.
func service(path string) string {
	parts := strings.SplitN(path, "/", 3)
	return strings.Join(parts[:min(len(parts), 2)], "/")
}

func TestRefusedFindsWhatItShould(t *testing.T) {
	for _, c := range []struct{ from, imp string }{
		{"internal/acceptance/accept", "google.golang.org/grpc"},
		{"internal/acceptance/accept", "github.com/aws/aws-sdk-go-v2/aws"},
		{"internal/acceptance/accept", module + "proto/gen/lightmetrics/ingest/v1"},
		{"pkg/frame", module + "internal/objstore"},
		{"internal/rollups/chunk", module + "pkg/frame"},
		{"internal/derived/ledger", module + "internal/rollups/catalog"},
		{"internal/rollups/block", module + "internal/queries/live"},
		{"internal/objstore/s3", module + "internal/acceptance/accept"},
		{"services/query", module + "internal/harness/cluster"},
		{"pkg/series", module + "pkg/frame"},
		{"internal/queries/published", module + "internal/queries/live"},
		{"internal/acceptance/accept", module + "internal/platform/failpoint"},
		{"services/objectstore/internal/engine", module + "internal/objstore/failstore"},
		{"internal/platform/rpc", module + "services/ingest"},
		{"services/ingest", module + "services/query"},
		{"services/objectstore/internal/engine", module + "pkg/identity"},
		{"agent", module + "services/ingest"},
		{"agent", module + "internal/cli"},
		{"client", module + "services/query"},
		{"agent/input/scrape", module + "internal/platform/rpc"},
		{"services/query", "go.etcd.io/etcd/client/v3"},
		{"internal/coordination/coordinator", "go.etcd.io/etcd/client/v3"},
		{"internal/coordination/work", "google.golang.org/grpc"},
		{"internal/rollups/publish", "google.golang.org/grpc/codes"},
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
