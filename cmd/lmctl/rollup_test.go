package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	rolled "lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	refmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	plans "lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/rollup"
)

// plant is a bucket over HTTP, a rollup worker over it, and reference sets over gRPC.
type plant struct {
	*testing.T
	url      string
	refsAddr string
	refs     *refmem.Refs
	store    objstore.Store
	clock    atomic.Int64
	all      []accepted.Batch
}

var plantHour = timegrid.HourStarting(time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC))

func (p *plant) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *plant) now() time.Time { return time.Unix(0, p.clock.Load()).UTC() }

// runs a service until the test ends.
func (p *plant) runs(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	p.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			p.Error(err)
		}
	})
}

func newPlant(t *testing.T) *plant {
	p := &plant{T: t, refs: refmem.New()}
	p.clock.Store(plantHour.End().Add(time.Hour).UnixNano())
	c := objectstore.DefaultConfig()
	c.Listen, c.AdminListen, c.Dir = "127.0.0.1:0", "", t.TempDir()
	c.Users = []objectstore.User{{Name: "test", AccessKeyID: "test-user", Secret: config.Secret("test-secret-0123456789")}}
	for _, r := range bucketpolicy.Roles {
		policy, err := bucketpolicy.User(bucketpolicy.Options{Bucket: "metrics", Prefix: "team/"}, r)
		p.must(err)
		c.Users = append(c.Users, objectstore.User{Name: string(r), AccessKeyID: string(r), Secret: config.Secret("test-secret-0123456789"), Policy: string(policy)})
	}
	c.Buckets = []string{"metrics"}
	svc, err := objectstore.New(c, objectstore.Deps{Telemetry: telemetry.Discard()})
	p.must(err)
	p.runs(svc.Run)
	<-svc.Ready()
	t.Setenv("AWS_ACCESS_KEY_ID", "test-user")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test-secret-0123456789")
	p.url = "http://" + svc.Addr() + "/metrics/team/"
	p.store, err = openBucket(t.Context(), p.url)
	p.must(err)
	_, err = accept.EnsureAuthority(t.Context(), p.store, "authority", true)
	p.must(err)
	p.must(shards.Ensure(t.Context(), p.store, 1))
	p.must(journaltest.Complete(t.Context(), p.store, "authority"))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	p.must(err)
	gs := grpc.NewServer()
	coordinator.NewRefsServer(p.refs).Register(gs)
	p.refsAddr = l.Addr().String()
	p.runs(func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, gs.Stop)
		defer stop()
		return gs.Serve(l)
	})
	return p
}

// worker starts one that owns everything.
func (p *plant) worker() {
	cfg := rollup.DefaultConfig()
	cfg.HTTP.Listen, cfg.Shards, cfg.Compact.Interval = "127.0.0.1:0", 1, 0
	cfg.Follow.Interval, cfg.Follow.Idle, cfg.Schedule.RetryBase, cfg.Schedule.RetryMax = 20*time.Millisecond, 20*time.Millisecond, time.Millisecond, time.Millisecond
	svc, err := rollup.New(cfg, rollup.Deps{Store: p.store, Telemetry: telemetry.Discard(), Refs: p.refs, Now: p.now})
	p.must(err)
	p.runs(svc.Run)
	<-svc.Ready()
}

// accept writes n accepted batches of the hour; without told, the record of the shard's progress says that they are in
// blocks.
func (p *plant) accept(h timegrid.Hour, n int, told bool) {
	p.Helper()
	for range n {
		b := frame.NewBuilder()
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "up"}}, series.Gauge, "", 0)
		p.must(err)
		seq := uint64(len(p.all))
		p.must(b.Append(id, h.Start().Add(time.Duration(seq+1)*time.Second).UnixNano(), float64(seq)))
		f, err := b.Build(identity.Boot{Agent: "a", Boot: "b"}, seq)
		p.must(err)
		raw, err := frame.Encode(nil, f)
		p.must(err)
		d := identity.Sum(raw)
		lo, hi := frame.TimeRange(f)
		m := accept.Manifest{AuthorityID: "authority", Identity: f.Identity, FrameSHA256: d, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(d, 0),
			AcceptedAt: h.Start().UnixNano() + int64(seq), CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
			RecordCount: 1, MinTime: lo, MaxTime: hi}
		p.put(m.RawBlobKey, raw)
		p.put(layout.Accepted(m.Identity), m.Marshal())
		p.all = append(p.all, m.Batch())
		p.must(journaltest.Append(p.Context(), p.store, "authority", m.Entry(journal.Accepted)))
	}
	if !told {
		p.progress(p.journal())
	}
}

// journal gives the positions through which the journal is written.
func (p *plant) journal() journal.Positions {
	f, err := journal.NewFollower(journal.FollowerConfig{Store: p.store, Authority: "authority",
		Segment: func(context.Context, *journal.Segment) error { return nil }, Folded: func(context.Context, []journal.Entry) error { return nil }})
	p.must(err)
	polled, err := f.Poll(p.Context())
	p.must(err)
	return polled.Positions
}

// progress puts a record of the shard's progress, whatever its owner knows.
func (p *plant) progress(at journal.Positions) {
	b, err := rolled.Progress{AuthorityID: "authority", Shards: 1, Positions: at}.Marshal()
	p.must(err)
	p.put(layout.RollupProgress(0), b)
}

func (p *plant) put(key string, body []byte) {
	p.Helper()
	_, err := p.store.Put(p.Context(), key, body, objstore.PutOptions{})
	p.must(err)
}

// lmctl runs a command line and reads what it prints; the code is that of its exit.
func (p *plant) lmctl(into any, args ...string) int {
	p.Helper()
	var out format
	root := &cobra.Command{Use: "lmctl", SilenceUsage: true, SilenceErrors: true}
	root.PersistentFlags().VarP(&out, "output", "o", "")
	root.AddCommand(rollupCommand(&out), fsckCommand(&out), authorityCommand(&out), journalCommand(&out), auditCommand(&out), gcCommand(&out), storeCommand(&out))
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(append(args, "-o", "json"))
	err := root.ExecuteContext(p.Context())
	if into != nil && stdout.Len() > 0 {
		p.must(json.Unmarshal(stdout.Bytes(), into))
	}
	var exit *cli.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		p.Logf("%s: %v", strings.Join(args, " "), err)
		return exit.Code
	}
	p.Logf("%s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	return 1
}

func (p *plant) eventually(what string, ok func() bool) {
	p.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("not in time: %s", what)
		}
	}
}

func (p *plant) set(res timegrid.Resolution) *catalog.Block {
	p.Helper()
	c, err := catalog.New(catalog.Config{Reader: p.store, AuthorityID: "authority"})
	p.must(err)
	v, err := c.Refresh(p.Context(), plantHour, plantHour)
	p.must(err)
	return v.Block(plantHour, 0, res)
}

// published waits until every window has the generation.
func (p *plant) published(gen uint64) {
	p.Helper()
	p.eventually("a generation", func() bool {
		p.clock.Add(int64(time.Minute))
		for _, res := range timegrid.Resolutions() {
			if s := p.set(res); s == nil || s.Name.Generation < gen {
				return false
			}
		}
		return true
	})
}

// An operator finds damage, requests a repair, and finds all well; renews an hour; and finds
// what was never rolled up.
func TestRollupCommands(t *testing.T) {
	p := newPlant(t)
	p.accept(plantHour, 20, true)
	p.worker()
	p.published(1)
	var rep verifyView
	if code := p.lmctl(&rep, "rollup", "verify", p.url); code != 0 || rep.Found != 0 || rep.Blocks != 4 || rep.Objects == 0 {
		t.Fatalf("exit %d, %+v", code, rep)
	}
	var generations []generationView
	if code := p.lmctl(&generations, "rollup", "generations", p.url, "--from", "2026-03-01T10"); code != 0 || len(generations) != 4 {
		t.Fatalf("exit %d, %+v", code, generations)
	}
	for _, g := range generations {
		if g.Generation != 1 || g.Batches == 0 || (g.Samples == 0) != g.Unrolled || g.Journal == nil || len(g.Journal.Runs) == 0 {
			t.Errorf("%+v", g)
		}
	}
	if code := p.lmctl(nil, "rollup", "generations", p.url); code != cli.ExitUsage {
		t.Errorf("without --from: exit %d", code)
	}
	if code := p.lmctl(&generations, "rollup", "generations", p.url, "--from", "2026-03-01T11", "--shard", "0"); code != 0 || len(generations) != 0 {
		t.Errorf("another hour: exit %d, %+v", code, generations)
	}
	raw := p.set(timegrid.Raw)
	p.put(raw.Objects[0].ChunkKey, []byte("rotten"))
	p.put(layout.BlockManifest(plantHour, 0, timegrid.OneHour, 1), []byte("{"))
	if code := p.lmctl(&generations, "rollup", "generations", p.url, "--from", "2026-03-01T10"); code != cli.ExitFindings || len(generations) != 3 {
		t.Errorf("a record that can't be read: exit %d, %+v", code, generations)
	}
	if code := p.lmctl(&rep, "rollup", "verify", p.url); code != cli.ExitFindings || rep.Found != 2 {
		t.Fatalf("exit %d, %+v", code, rep)
	}
	if code := p.lmctl(&rep, "rollup", "verify", p.url, "--heads", "--shard", "0"); code != cli.ExitFindings || rep.Found != 2 {
		t.Fatalf("exit %d, %+v", code, rep)
	}
	if code := p.lmctl(&rep, "rollup", "verify", p.url, "--from", "2026-03-01T11"); code != 0 {
		t.Errorf("another hour: exit %d, %+v", code, rep)
	}
	var requested []requestView
	for _, wrong := range [][]string{{}, {"--yes", "--dry-run"}, {"--yes", "--hour", "2026-03-01T10"}, {"--yes", "--from", "x"}, {"--yes", "--shard", "99999"}, {"--yes", "--shard", "1"}, {"--yes", "--shard=-2"}} {
		if code := p.lmctl(nil, append([]string{"rollup", "repair", p.url}, wrong...)...); code != cli.ExitUsage {
			t.Errorf("%v: exit %d", wrong, code)
		}
	}
	if code := p.lmctl(&requested, "rollup", "repair", p.url, "--dry-run"); code != 0 || len(requested) != 1 || requested[0].Generation != 2 || requested[0].Batches != 20 {
		t.Fatalf("exit %d, %+v", code, requested)
	}
	var pending []pendingRequest
	if code := p.lmctl(&pending, "rollup", "requests", p.url); code != 0 || len(pending) != 0 {
		t.Fatalf("exit %d, a dry run ordered: %+v", code, pending)
	}
	if code := p.lmctl(&requested, "rollup", "repair", p.url, "--yes"); code != 0 || requested[0].State != "requested" {
		t.Fatalf("exit %d, %+v", code, requested)
	}
	p.published(2)
	done := func() bool {
		p.clock.Add(int64(time.Minute))
		pending = nil
		return p.lmctl(&pending, "rollup", "requests", p.url) == 0 && len(pending) == 0
	}
	p.eventually("the order is done", done)
	if code := p.lmctl(&rep, "rollup", "verify", p.url); code != 0 || rep.Superseded != 1 {
		t.Fatalf("exit %d, %+v", code, rep)
	}
	if s := p.set(timegrid.Raw); s.Objects[0].ChunkSHA256 != raw.Objects[0].ChunkSHA256 || s.Objects[0].ChunkKey == raw.Objects[0].ChunkKey {
		t.Errorf("%+v", s.Objects[0])
	}

	// The generation before a damaged plan is decided at one resolution only, and its owner can finish it.
	later := plantHour + 5
	p.put(layout.BlockManifest(later, 0, timegrid.Raw, 1), catalog.Record{Aborted: &catalog.Aborted{AuthorityID: "authority",
		Name: catalog.Name{Hour: later, Resolution: timegrid.Raw, Generation: 1}, Reason: "test", WorkerID: "w"}}.Marshal())
	plan := plans.Plan{AuthorityID: "authority", Shards: 1, Hour: later, Generation: 1, Parts: 1, Inputs: p.all[:1]}
	body, err := plan.Marshal()
	p.must(err)
	p.put(plan.Key(), body)
	p.put(layout.RollupPlan(later, 0, 2), []byte("{"))
	if code := p.lmctl(&requested, "rollup", "repair", p.url, "--hour", "2026-03-01T15", "--shard", "0", "--yes"); code != cli.ExitFindings || len(requested) != 1 || requested[0].State != "in work" {
		t.Fatalf("exit %d, %+v", code, requested)
	}
	p.must(p.store.Delete(t.Context(), layout.BlockManifest(later, 0, timegrid.Raw, 1)))
	p.must(p.store.Delete(t.Context(), layout.RollupPlan(later, 0, 2)))
	p.must(p.store.Delete(t.Context(), plan.Key()))

	// Rebuilt without need.
	if code := p.lmctl(nil, "rollup", "renew", p.url, "--yes"); code != cli.ExitUsage {
		t.Errorf("without --from: exit %d", code)
	}
	if code := p.lmctl(&requested, "rollup", "renew", p.url, "--from", "2026-03-01", "--yes"); code != 0 || len(requested) != 1 || requested[0].Generation != 3 {
		t.Fatalf("exit %d, %+v", code, requested)
	}
	p.published(3)
	p.eventually("the order is done", done)

	// The hour has a set, but not all that was accepted.
	var cov coverageView
	args := []string{"rollup", "coverage", p.url, "--from", "2026-03-01", "--to", "2026-03-02"}
	if code := p.lmctl(&cov, args...); code != 0 || cov.Batches != 20 {
		t.Fatalf("exit %d, %+v", code, cov)
	}
	p.accept(plantHour, 2, false)
	p.accept(plantHour+1, 1, false)
	cov = coverageView{}
	if code := p.lmctl(&cov, args...); code != cli.ExitFindings || len(cov.Uncovered) != 2 || cov.Uncovered[0].Batches != 2 || cov.Uncovered[0].None || !cov.Uncovered[1].None {
		t.Fatalf("exit %d, %+v", code, cov)
	}
	p.progress(journal.Positions{}) // what lmctl reprocess does
	p.published(4)
	p.eventually("covered", func() bool { p.clock.Add(int64(time.Minute)); return p.lmctl(nil, args...) == 0 })
}

// References that a restored metadata store lacks are found and made again.
// An operator sees who is set aside, and has one tried again.
func TestRollupAsideCommand(t *testing.T) {
	p := newPlant(t)
	var views []asideView
	if code := p.lmctl(&views, "rollup", "aside", p.url); code != 0 || len(views) != 0 {
		t.Fatalf("exit %d, %+v", code, views)
	}
	a := catalog.Aside{AuthorityID: "authority", Hour: plantHour, Agent: "noisy", Series: 5, Records: 6, Bytes: 7, Limit: 1 << 62, Reason: "too large", By: "w", At: 1}
	b := a
	b.Agent = "loud"
	p.put(a.Key(), a.Marshal())
	p.put(b.Key(), b.Marshal())
	if code := p.lmctl(&views, "rollup", "aside", p.url); code != cli.ExitFindings || len(views) != 2 {
		t.Fatalf("exit %d, %+v", code, views)
	}
	if code := p.lmctl(&views, "rollup", "aside", p.url, "--release", "nobody"); code != cli.ExitFindings {
		t.Errorf("exit %d", code)
	}
	if code := p.lmctl(&views, "rollup", "aside", p.url, "--release", "noisy"); code != 0 {
		t.Fatalf("exit %d", code)
	}
	if code := p.lmctl(&views, "rollup", "aside", p.url); code != cli.ExitFindings || len(views) != 1 || views[0].Agent != "loud" || views[0].Series != 5 {
		t.Fatalf("exit %d, %+v", code, views)
	}
	p.put(b.Key(), []byte("{"))
	if code := p.lmctl(&views, "rollup", "aside", p.url); code != cli.ExitFindings || len(views) != 0 {
		t.Errorf("a record that can't be read: exit %d, %+v", code, views)
	}
}

func TestReferencesCommand(t *testing.T) {
	p := newPlant(t)
	p.accept(plantHour, 5, true)
	copied := func() []publish.Record {
		rs, _, err := p.refs.List(t.Context(), "", 1000)
		p.must(err)
		return rs
	}
	p.worker()
	p.published(1)
	var v referencesView
	// Those of raw and of 1h; rows of a sample a minute are not made.
	if code := p.lmctl(&v, "rollup", "references", p.url, "--addr", p.refsAddr); code != 0 || v.Blocks != 2 || v.Missing != 0 || len(copied()) != v.Objects {
		t.Fatalf("exit %d, %+v, %d records", code, v, len(copied()))
	}
	f, err := p.refs.Epoch(t.Context())
	p.must(err)
	_, err = p.refs.Delete(t.Context(), f.Token(), copied()[:3]...)
	p.must(err)
	if code := p.lmctl(&v, "rollup", "references", p.url, "--addr", p.refsAddr); code != cli.ExitFindings || v.Missing != 3 {
		t.Fatalf("exit %d, %+v", code, v)
	}
	if code := p.lmctl(&v, "rollup", "references", "rebuild", p.url, "--addr", p.refsAddr); code != cli.ExitUsage {
		t.Errorf("exit %d", code)
	}
	if code := p.lmctl(&v, "rollup", "references", "rebuild", p.url, "--addr", p.refsAddr, "--yes"); code != 0 || !v.Rebuilt || v.Missing != 3 || v.Epoch != 1 {
		t.Fatalf("exit %d, %+v", code, v)
	}
	if code := p.lmctl(&v, "rollup", "references", p.url, "--addr", p.refsAddr); code != 0 || v.Missing != 0 || v.Rebuilt {
		t.Fatalf("exit %d, %+v", code, v)
	}
}

// A date is all of its hours, at both ends.
func TestHoursOfADay(t *testing.T) {
	for _, c := range []struct{ from, to, first, last string }{
		{"2026-03-01", "2026-03-01", "2026-03-01T00", "2026-03-01T23"},
		{"2026-03-01", "2026-03-02", "2026-03-01T00", "2026-03-02T23"},
		{"2026-03-01T05", "2026-03-01T05", "2026-03-01T05", "2026-03-01T05"},
		{"2026-03-01T05:00:00Z", "2026-03-01T07:00:00Z", "2026-03-01T05", "2026-03-01T07"},
	} {
		o, err := (&rollupHours{from: c.from, to: c.to, shard: allShards}).options()
		if err != nil || o.From.String() != c.first || o.To.String() != c.last {
			t.Errorf("%s to %s: %s to %s, %v", c.from, c.to, o.From, o.To, err)
		}
	}
}
