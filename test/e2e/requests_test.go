package e2e

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// requests are what a store was asked, as S3 is paid: PUT and LIST, GET and HEAD.
type requests struct{ writes, reads, lists float64 }

func (r requests) minus(o requests) requests {
	return requests{r.writes - o.writes, r.reads - o.reads, r.lists - o.lists}
}

// TestRequestsOfTheGuide counts, at the store, what each service asks it for a batch and for a
// boot of an audit, and holds docs/guide/requests.csv against it. One service runs at a time, and
// asks by itself for next to nothing but the audits.
func TestRequestsOfTheGuide(t *testing.T) {
	t.Parallel()
	const boots, batches = 40, 800
	ctx := within(t, 4*time.Minute)
	var env []string // of the reconciler
	c := newCluster(t, cluster.Options{Collectors: 1, Rollups: 1, Shards: 1, Adjust: quietServices, Env: func(process string) []string {
		if process == "reconciler" {
			return env
		}
		return nil
	}})
	must(t, c.StartStore(ctx))
	guide := guideRequests(t)

	must(t, c.StartCollector(ctx, 0))
	before := asked(ctx, t, c)
	submit(ctx, t, c, boots, batches/boots)
	got := asked(ctx, t, c).minus(before)
	// The first stream of a boot also lists it, and writes its boot record. The batches come one by one, so each has a segment of its own.
	got.writes -= boots
	guide.check(t, "collector", "batch", got, batches)
	must(t, cluster.Stop(&c.Collectors[0]))

	must(t, c.StartCoordinator(ctx))
	before = asked(ctx, t, c)
	must(t, c.StartReconciler(ctx))
	must(t, cluster.Poll(ctx, "the batches to be in the ledgers", func() (bool, error) {
		n := metric(ctx, t, c.Addr.ReconcilerHTTP, "lightmetrics_reconciler_journal_entries_total")
		return n >= batches, fmt.Errorf("%v entries", n)
	}))
	guide.check(t, "reconciler", "batch", asked(ctx, t, c).minus(before), batches)
	must(t, cluster.Stop(&c.Reconciler))

	// Before anything is rolled up: a query node does not read what it finds in blocks.
	before = asked(ctx, t, c)
	must(t, c.StartQuery(ctx))
	must(t, cluster.Poll(ctx, "the batches to be answered", func() (bool, error) {
		v, w, err := c.Scalar(ctx, "sum(count_over_time(requests[3h]))", time.Now())
		return v == batches*2 && len(w) == 0, errors.Join(err, fmt.Errorf("%v, %v", v, w))
	}))
	got = asked(ctx, t, c).minus(before)
	guide.check(t, "query node", "batch", got, batches)
	must(t, cluster.Stop(&c.Query))

	before = asked(ctx, t, c)
	must(t, c.StartRollup(ctx, 0))
	must(t, cluster.Poll(ctx, "the batches to be rolled up", func() (bool, error) {
		blocks, err := c.RawBlocks(ctx, time.Now().Add(-3*time.Hour), time.Now().Add(time.Hour))
		if err != nil || len(blocks) != 1 {
			return false, err
		}
		return blocks[0].Inputs.Batches() == batches, nil
	}))
	must(t, cluster.Stop(&c.Rollups[0]))
	got = asked(ctx, t, c).minus(before)
	t.Logf("rollup worker: %.0f writes, %.0f lists and %.0f reads for one hour of a shard of %d batches", got.writes, got.lists, got.reads, batches)
	// It starts with what nobody has folded, and catches up with the same for the shard that it gets.
	got.reads -= batches
	guide.check(t, "rollup worker", "batch", got, batches)

	// Nobody needed a derived key. Who wants them for other tools switches, and an audit writes those of the past.
	n, err := countKeys(ctx, c, layout.AcceptedByTimePrefix)
	if must(t, err); n != 0 {
		t.Errorf("%d derived keys with derived: segments", n)
	}
	env = []string{"LIGHTMETRICS_RECONCILER_DERIVED=objects", "LIGHTMETRICS_RECONCILER_AUDIT_AT_START=true"}
	must(t, c.StartReconciler(ctx))
	for _, family := range []string{layout.AcceptedByTimePrefix, layout.AcceptedByBlobPrefix, layout.RawBlobsByTimePrefix} {
		must(t, cluster.Poll(ctx, "derived keys of the past", func() (bool, error) {
			n, err := countKeys(ctx, c, family)
			return n == batches, errors.Join(err, fmt.Errorf("%d of %d in %s", n, batches, family))
		}))
	}
}

// TestInlineFrames: batches of a collector whose manifests carry the frames, and of one that writes blobs, are in answers and in
// blocks alike; a query node that starts later, when no collector has the frames in memory, reads them from the manifests. The blobs
// that nobody needs are collected meanwhile.
func TestInlineFrames(t *testing.T) {
	t.Parallel()
	const boots, each = 10, 10
	ctx := within(t, 4*time.Minute)
	c := newCluster(t, cluster.Options{Collectors: 2, Rollups: 1, Shards: 2, Adjust: collecting(inline("collector-2"))})
	for _, start := range []func(context.Context) error{c.StartStore, c.StartReconciler, c.StartCoordinator, func(ctx context.Context) error { return c.StartCollector(ctx, 0) },
		func(ctx context.Context) error { return c.StartCollector(ctx, 1) }, func(ctx context.Context) error { return c.StartRollup(ctx, 0) }, c.StartQuery} {
		must(t, start(ctx))
	}
	at := time.Now().Truncate(time.Hour).Add(-30 * time.Minute)
	for i := range boots {
		boot := identity.Boot{Agent: fmt.Sprintf("inline-%d", i), Boot: "boot"}
		s, other := load.NewSender(boot, c.Addr.Collectors[i%2].GRPC), load.NewSender(boot, c.Addr.Collectors[(i+1)%2].GRPC)
		for k := range each {
			f := makeFrame(t, boot, "requests", uint64(2*k+1), 1, at.Add(time.Duration(k)*time.Minute), 1)
			if r, err := s.Send(ctx, f); err != nil || r.GetStatus().String() != load.Accepted {
				t.Fatalf("answered %v, %v", r, err)
			}
			if r, err := other.Send(ctx, f); err != nil || r.GetStatus().String() != load.Duplicate {
				t.Fatalf("the other collector answered %v, %v", r, err)
			}
		}
		s.Close()
		other.Close()
	}
	if n := metric(ctx, t, c.Addr.Collectors[1].HTTP, "lightmetrics_ingest_inlined_total"); n != boots*each/2 {
		t.Errorf("%v manifests carry their frames", n)
	}
	if n := metric(ctx, t, c.Addr.Collectors[0].HTTP, "lightmetrics_ingest_blobs_unneeded_total"); n != boots*each/2 {
		t.Errorf("%v blobs are said to be left over", n)
	}
	answers := func(what string) {
		t.Helper()
		must(t, cluster.Poll(ctx, what, func() (bool, error) {
			v, w, err := c.Scalar(ctx, "sum(count_over_time(requests[3h]))", time.Now())
			return v == 2*boots*each && len(w) == 0, errors.Join(err, fmt.Errorf("%v, %v", v, w))
		}))
	}
	answers("the batches to be answered")
	must(t, cluster.Poll(ctx, "the batches to be in blocks", func() (bool, error) {
		blocks, late, err := c.RolledUp(ctx, at.Truncate(time.Hour), time.Now())
		return blocks+late == boots*each, errors.Join(err, fmt.Errorf("%d in blocks, %d in deltas", blocks, late))
	}))
	checkGarbage(ctx, t, c, boots*each/2)
	for _, p := range []**proc.Process{&c.Query, &c.Rollups[0], &c.Collectors[0], &c.Collectors[1]} {
		must(t, cluster.Stop(p))
	}
	must(t, c.StartQuery(ctx))
	answers("the batches to be answered from the store")
	store, err := c.OpenStore(ctx)
	must(t, err)
	report, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: cluster.Authority})
	must(t, err)
	for _, f := range report.Findings {
		t.Error(f)
	}
	if report.Manifests != boots*each {
		t.Errorf("%d manifests", report.Manifests)
	}
}

// TestFollowersTakeFramesFromCollectors: while query node and rollup worker watch the collectors, frames come from these:
// next to no frame is read from the store, from its acceptance until it is in answers and in blocks.
func TestFollowersTakeFramesFromCollectors(t *testing.T) {
	t.Parallel()
	const boots, each = 20, 20
	ctx := within(t, 4*time.Minute)
	c := newCluster(t, cluster.Options{Collectors: 2, Rollups: 1, Shards: 2, Adjust: func(process string, settings map[string]any) {
		if process == "query" || process == "rollup-1" {
			settings["follow"].(map[string]any)["frames_wait"] = "1m" // a busy machine is no reason to ask the store
		}
	}})
	for _, start := range []func(context.Context) error{c.StartStore, c.StartReconciler, c.StartCoordinator, func(ctx context.Context) error { return c.StartCollector(ctx, 0) },
		func(ctx context.Context) error { return c.StartCollector(ctx, 1) }, func(ctx context.Context) error { return c.StartRollup(ctx, 0) }, c.StartQuery} {
		must(t, start(ctx))
	}
	sent, at := 0, time.Now().Truncate(time.Hour).Add(-30*time.Minute)
	from := at.Add(-time.Hour)
	submit := func(n int, at time.Time) {
		for i := range boots {
			s := load.NewSender(identity.Boot{Agent: fmt.Sprintf("counted-%d-%d", sent, i), Boot: "boot"}, c.Addr.Collectors[i%2].GRPC)
			for k := range n {
				r, err := s.Send(ctx, makeFrame(t, s.Boot, "requests", uint64(2*k+1), 1, at.Add(time.Duration(k)*time.Minute), 1))
				must(t, err)
				if r.GetStatus().String() != load.Accepted {
					t.Fatalf("answered %v", r)
				}
			}
			s.Close()
		}
		sent += boots * n
		must(t, cluster.Poll(ctx, "the batches to be in answers and in blocks", func() (bool, error) {
			v, w, err := c.Scalar(ctx, "sum(count_over_time(requests[3h]))", time.Now())
			blocks, late, rerr := c.RolledUp(ctx, from.Truncate(time.Hour), time.Now())
			return len(w) == 0 && blocks+late == sent, errors.Join(err, rerr, fmt.Errorf("%v samples, %v; %d batches in blocks, %d in deltas", v, w, blocks, late))
		}))
	}
	reads := func(addr string) (n float64) {
		for line := range strings.Lines(page(ctx, t, addr)) {
			if strings.HasPrefix(line, "lightmetrics_store_requests_total{") && strings.Contains(line, `family="raw-blobs"`) {
				v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
				must(t, err)
				n += v
			}
		}
		return n
	}
	// The runs are known, and the watches are on. Of an hour of their own: one that takes long is rolled up again, from frames that are in its block already.
	submit(1, from)
	query, rollup := reads(c.Addr.QueryHTTP), reads(c.Addr.Rollups[0])
	submit(each, at)
	query, rollup = reads(c.Addr.QueryHTTP)-query, reads(c.Addr.Rollups[0])-rollup
	t.Logf("%d batches: %v frames read from the store by the query node, %v by the worker; taken: %v and %v", boots*each, query, rollup,
		metric(ctx, t, c.Addr.QueryHTTP, `lightmetrics_query_peer_frames_total{outcome="taken"}`), metric(ctx, t, c.Addr.Rollups[0], `lightmetrics_rollup_peer_frames_total{outcome="taken"}`))
	if most := float64(boots*each) / 20; query > most || rollup > most {
		t.Errorf("%v frames read from the store by the query node, %v by the worker, of %d", query, rollup, boots*each)
	}
}

// countKeys counts the objects of a family of keys.
func countKeys(ctx context.Context, c *cluster.Cluster, prefix string) (n int, err error) {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return 0, err
	}
	for _, err := range objstore.List(ctx, store, objstore.ListOptions{Prefix: prefix}) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// quietServices ask the store for little but their work.
func quietServices(process string, settings map[string]any) {
	switch process {
	case "reconciler":
		settings["ledgers"] = map[string]any{"save_interval": "1h"}
		settings["repairs"] = map[string]any{"interval": "1h"}
	case "rollup-1":
		settings["snapshot"] = map[string]any{"interval": "0s"}
		settings["follow"] = map[string]any{"interval": "1h", "idle": "1h"}
	case "query":
		settings["follow"] = map[string]any{"poll_interval": "300ms", "snapshots": false}
		settings["rollup"] = map[string]any{"poll": "1h"}
	}
}

// submit has each of the boots send n batches, all of one hour.
func submit(ctx context.Context, t *testing.T, c *cluster.Cluster, boots, n int) {
	t.Helper()
	at := time.Now().Truncate(time.Hour).Add(-30 * time.Minute)
	for i := range boots {
		s := load.NewSender(identity.Boot{Agent: fmt.Sprintf("counted-%d", i), Boot: "boot"}, c.Addr.Collectors[0].GRPC)
		for k := range n {
			r, err := s.Send(ctx, makeFrame(t, s.Boot, "requests", uint64(2*k+1), 1, at.Add(time.Duration(k)*time.Minute), 1))
			must(t, err)
			if r.GetStatus().String() != load.Accepted {
				t.Fatalf("answered %v", r)
			}
		}
		s.Close()
	}
}

// asked are the store's requests so far.
func asked(ctx context.Context, t *testing.T, c *cluster.Cluster) requests {
	t.Helper()
	var r requests
	for _, line := range strings.Split(page(ctx, t, c.Addr.StoreAdmin), "\n") {
		m := storeRequests.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		n, err := strconv.ParseFloat(m[2], 64)
		must(t, err)
		switch op := m[1]; {
		case op == "PutObject":
			r.writes += n
		case strings.HasPrefix(op, "List"):
			r.lists += n
		case op == "GetObject" || op == "HeadObject" || op == "HeadBucket":
			r.reads += n
		}
	}
	return r
}

var storeRequests = regexp.MustCompile(`^lightmetrics_objectstore_requests_total\{op="([^"]+)".*\} (.+)$`)

// metric is a value of a service's /metrics; 0 when it is not there yet.
func metric(ctx context.Context, t *testing.T, addr, series string) float64 {
	t.Helper()
	for _, line := range strings.Split(page(ctx, t, addr), "\n") {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			n, err := strconv.ParseFloat(v, 64)
			must(t, err)
			return n
		}
	}
	return 0
}

func page(ctx context.Context, t *testing.T, addr string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return string(b)
}

// requestTable is docs/guide/requests.csv.
type requestTable map[[2]string]requests

func guideRequests(t *testing.T) requestTable {
	t.Helper()
	f, err := os.Open("../../docs/guide/requests.csv")
	must(t, err)
	defer f.Close()
	r := csv.NewReader(f)
	r.Comment = '#'
	rows, err := r.ReadAll()
	must(t, err)
	table := requestTable{}
	for _, row := range rows[1:] {
		w, err := strconv.ParseFloat(row[3], 64)
		must(t, err)
		n, err := strconv.ParseFloat(row[4], 64)
		must(t, err)
		table[[2]string{row[0], row[2]}] = requests{writes: w, reads: n}
	}
	return table
}

// check holds a line of the table against a count for n units, of which a few requests more are
// those of starts and clocks.
func (g requestTable) check(t *testing.T, service, per string, got requests, n float64) {
	t.Helper()
	want, ok := g[[2]string{service, per}]
	if !ok {
		t.Fatalf("the guide has no line for %s, %s", service, per)
	}
	t.Logf("%s, %s: %.3f writes, %.3f reads (%.0f lists); the guide has %v and %v", service, per, got.writes/n, got.reads/n, got.lists, want.writes, want.reads)
	const slack = 0.15
	if math.Abs(got.writes/n-want.writes) > slack || math.Abs(got.reads/n-want.reads) > slack {
		t.Errorf("%s: %.3f writes and %.3f reads for each %s, the guide has %v and %v", service, got.writes/n, got.reads/n, per, want.writes, want.reads)
	}
}
