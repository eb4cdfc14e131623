package ready

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	refsmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/coordinator"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/query"
	"lightmetrics.dev/lightmetrics/services/reconciler"
	"lightmetrics.dev/lightmetrics/services/rollup"
)

// denials are the lines in which the store says what it denied.
type denials struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (d *denials) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.buf.Write(p)
}

// of are those that were no probe of the policy, which asks for what must be denied.
func (d *denials) of() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for line := range strings.Lines(d.buf.String()) {
		if strings.Contains(line, "a request was denied") && !strings.Contains(line, "probe") {
			out = append(out, line)
		}
	}
	return out
}

// rolesBucket is a bucket of the embedded store with a user for each role, as "lmctl bucket-policy"
// prints their policies.
type rolesBucket struct {
	*denials
	endpoint string
	// ahead is by how many seconds the clock of the store and of everybody else is ahead.
	ahead *atomic.Int64
}

func (b rolesBucket) now() time.Time {
	return time.Now().Add(time.Duration(b.ahead.Load()) * time.Second)
}

// collecting is a user with the two roles of a reconciler that collects garbage.
const collecting = "reconciler-gc"

func newRolesBucket(t testing.TB) rolesBucket {
	t.Helper()
	b := rolesBucket{denials: &denials{}, ahead: &atomic.Int64{}}
	oc := objectstore.DefaultConfig()
	oc.Listen, oc.AdminListen, oc.Dir, oc.Buckets = here, here, t.TempDir(), []string{"bucket"}
	oc.Users = []objectstore.User{{Name: "owner", AccessKeyID: "owner", Secret: policySecret}}
	add := func(name string, roles ...bucketpolicy.Role) {
		policy, err := bucketpolicy.User(bucketpolicy.Options{Bucket: "bucket"}, roles...)
		must(t, err)
		oc.Users = append(oc.Users, objectstore.User{Name: name, AccessKeyID: name, Secret: policySecret, Policy: string(policy)})
	}
	for _, r := range bucketpolicy.Roles {
		add(string(r), r)
	}
	add(collecting, bucketpolicy.Reconciler, bucketpolicy.GC)
	tel := telemetry.Discard()
	tel.Log = slog.New(slog.NewTextHandler(b, nil))
	o, err := objectstore.New(oc, objectstore.Deps{Telemetry: tel, Now: b.now})
	up(t, "objectstore", o, err)
	b.endpoint = "http://" + o.Addr()
	return b
}

func (b rolesBucket) as(t testing.TB, user string) objstore.Store {
	t.Helper()
	c := s3.DefaultConfig()
	c.Endpoint, c.Bucket, c.PathStyle = b.endpoint, "bucket", true
	c.AccessKeyID, c.SecretAccessKey = user, config.Secret(policySecret)
	s, err := s3.New(t.Context(), c, s3.Options{Now: b.now})
	must(t, err)
	return later{s, b.ahead}
}

// later puts the Date of answers forward, which the HTTP library writes by the machine's clock.
type later struct {
	objstore.Store
	ahead *atomic.Int64
}

func (l later) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	i, err := l.Store.Put(ctx, key, body, o)
	i.LastModified = i.LastModified.Add(time.Duration(l.ahead.Load()) * time.Second)
	return i, err
}

func authorityOf(t testing.TB, s objstore.Reader) string {
	t.Helper()
	a, err := accept.ReadAuthority(t.Context(), s)
	must(t, err)
	return a.AuthorityID
}

// has reports whether a prefix has objects.
func has(t testing.TB, s objstore.Store, prefix string) bool {
	t.Helper()
	page, err := s.List(t.Context(), objstore.ListOptions{Prefix: prefix, Limit: 1})
	must(t, err)
	return len(page.Objects) > 0
}

// TestServicesWorkWithTheirOwnCredentials: every service does its work with the policy of its role and
// is denied nothing: batches, duplicates and conflicts are accepted, with frames in their manifests too, journalled, folded, audited and
// scrubbed, answered, rolled up, late ones too, merged, packed into snapshots, and rows removed; orphan frames are collected, reported ones and those of a
// sweep; and after 30 hours, by a clock that is put forward, retention removes frames.
func TestServicesWorkWithTheirOwnCredentials(t *testing.T) {
	t.Parallel()
	b := newRolesBucket(t)
	owner := b.as(t, "owner")

	ic := ingest.DefaultConfig()
	ic.GRPC.Listen, ic.HTTP.Listen, ic.Store.BucketPolicy = here, here, "require"
	i, err := ingest.New(ic, ingest.Deps{Store: b.as(t, "ingest"), Telemetry: telemetry.Discard(), Now: b.now})
	up(t, "ingest", i, err)
	ic.InlineBelow = 16 << 10
	inline, err := ingest.New(ic, ingest.Deps{Store: b.as(t, "ingest"), Telemetry: telemetry.Discard(), Now: b.now})
	up(t, "ingest with frames in manifests", inline, err)
	until(t, "the collectors to be ready", func() bool { return i.NotReady() == nil && inline.NotReady() == nil })

	start := time.Now().Add(-50 * time.Hour).Truncate(time.Hour)
	client := &http.Client{}
	sendTo := func(to *ingest.Service, agent string, seq uint64, at time.Time, value float64, want int) {
		t.Helper()
		f, err := load.Frame(identity.Boot{Agent: agent, Boot: "boot"}, "requests", seq, 5, at, value)
		must(t, err)
		resp, err := client.Post("http://"+to.HTTPAddr()+"/v1/batches", "application/vnd.lightmetrics.batch", bytes.NewReader(f))
		must(t, err)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Fatalf("%s: %s", resp.Status, body)
		}
	}
	send := func(agent string, seq uint64, at time.Time, value float64, want int) {
		t.Helper()
		sendTo(i, agent, seq, at, value, want)
	}
	sendTo(inline, "inline", 1, start, 1, http.StatusOK)
	sendTo(inline, "inline", 1, start, 1, http.StatusOK)
	sendTo(inline, "inline", 1, start, 2, http.StatusConflict)
	for _, agent := range []string{"a", "b"} {
		for k := range 6 {
			send(agent, uint64(1+10*k), start.Add(time.Duration(k)*time.Hour), 1, http.StatusOK)
		}
		send(agent, 1, start, 1, http.StatusOK)       // a duplicate
		send(agent, 1, start, 2, http.StatusConflict) // the same identity, other bytes
		send(agent, 61, time.Now().Add(-time.Minute), 1, http.StatusOK)
	}

	cc := coordinator.DefaultConfig()
	cc.HTTP.Listen, cc.GRPC.Listen = here, here
	cc.Etcd.Embedded.DataDir, cc.Etcd.Embedded.ElectionTimeout = t.TempDir(), 500*time.Millisecond
	c, err := coordinator.New(cc, coordinator.Deps{Telemetry: telemetry.Discard(), Store: b.as(t, "coordinator")})
	up(t, "coordinator", c, err)

	rc := reconciler.DefaultConfig()
	rc.GRPC.Listen, rc.HTTP.Listen, rc.Derived, rc.Audit.AtStart = here, here, reconciler.DerivedObjects, true
	rc.Journal.Polling.Interval, rc.Journal.IdleInterval = 100*time.Millisecond, 200*time.Millisecond
	rc.Journal.Folding.Interval, rc.Journal.Retention, rc.Journal.FenceAfter = time.Second, 0, 5*time.Second
	rc.Scrub.Period, rc.Audit.Interval, rc.Audit.Period = 10*time.Second, 2*time.Second, 10*time.Second
	rc.Ledgers.SaveInterval, rc.Repairs.Interval = time.Second, time.Second
	rc.GC.Mode = "off"
	r, err := reconciler.New(rc, reconciler.Deps{Store: b.as(t, "reconciler"), Telemetry: telemetry.Discard(), Now: b.now})
	up(t, "reconciler", r, err)
	rc.GC.Mode, rc.GC.PollInterval, rc.GC.SweepInterval, rc.GC.MinAge, rc.GC.Delay = "on", 300*time.Millisecond, time.Second, 0, 0
	g, err := reconciler.New(rc, reconciler.Deps{Store: b.as(t, collecting), Telemetry: telemetry.Discard(), Now: b.now})
	up(t, "reconciler that collects garbage", g, err)

	qc := query.DefaultConfig()
	qc.GRPC.Listen, qc.HTTP.Listen = here, here
	q, err := query.New(qc, query.Deps{Store: b.as(t, "query"), Telemetry: telemetry.Discard(), Now: b.now})
	up(t, "query", q, err)

	wc := rollup.DefaultConfig()
	wc.HTTP.Listen, wc.Shards = here, 1
	wc.Schedule.FirstAfter, wc.Schedule.LateAfter, wc.Schedule.FoldAfter = -time.Hour, time.Second, 3*time.Second
	wc.Follow.Interval, wc.Follow.Idle = 200*time.Millisecond, 500*time.Millisecond
	wc.Collect.Interval, wc.Collect.Grace = time.Second, time.Second
	wc.Snapshot.Interval, wc.Compact.Interval, wc.Compact.After = 2*time.Second, time.Second, 0
	wc.Compact.Raw = []string{"2h"}
	wc.Retention.Raw, wc.Retention.Minute, wc.Retention.RawFrames, wc.Retention.Interval = 48*time.Hour, 48*time.Hour, 24*time.Hour, time.Second
	w, err := rollup.New(wc, rollup.Deps{Store: b.as(t, "rollup"), Telemetry: telemetry.Discard(), Refs: refsmem.New(), Now: b.now})
	up(t, "rollup", w, err)

	for what, prefix := range map[string]string{
		"folded": layout.JournalFoldedPrefix, "ledgers": layout.LedgersKey, "derived": layout.AcceptedByTimePrefix, "audit": layout.AuditPrefix,
		"scrub": layout.ScrubKey, "conflict": layout.QuarantinePrefix, "block": layout.ManifestsPrefix, "index": layout.IndexPrefix,
		"snapshot": layout.LiveSnapshotsPrefix, "term": layout.CoordinatorTermKey, "progress": layout.RollupProgressPrefix, "helps": layout.RollupPrefix + "plans/",
	} {
		until(t, what, func() bool { return has(t, owner, prefix) || len(b.of()) > 0 })
	}
	for k := range 2 { // late batches of hours that are published
		send("c", uint64(1+10*k), start.Add(time.Duration(4+k)*time.Hour), 1, http.StatusOK)
	}
	until(t, "a delta", func() bool { return has(t, owner, layout.RollupDeltasPrefix) || len(b.of()) > 0 })
	for path, addr := range map[string]string{
		"/api/v1/query?query=requests": q.HTTPAddr(), "/v1/agents": q.HTTPAddr(), "/v1/conflicts": q.HTTPAddr(), "/status": q.HTTPAddr(), "/v1/ledgers": r.HTTPAddr(),
		"/api/v1/query_range?query=sum(requests)&step=1h&start=" + start.Format(time.RFC3339) + "&end=" + time.Now().UTC().Format(time.RFC3339): q.HTTPAddr(),
	} {
		until(t, path, func() bool {
			resp, err := client.Get("http://" + addr + strings.ReplaceAll(path, "+", "%2B"))
			if err != nil {
				return false
			}
			resp.Body.Close()
			return resp.StatusCode == http.StatusOK || len(b.of()) > 0
		})
	}
	until(t, "rows removed by retention", func() bool { return has(t, owner, layout.LogPrefix+"retention/") || len(b.of()) > 0 })
	// Two frames without a manifest: one that its collector reports, and one that only a sweep finds.
	for k, reported := range []bool{true, false} {
		f, err := load.Frame(identity.Boot{Agent: "orphan", Boot: "boot"}, "requests", uint64(1+10*k), 5, start, 1)
		must(t, err)
		d := identity.Sum(f)
		_, err = b.as(t, "ingest").Create(t.Context(), layout.Blob(d, 0), f, objstore.PutOptions{})
		must(t, err)
		if reported {
			report := gc.OrphanReport{AuthorityID: authorityOf(t, owner), CollectorID: "c", ReportedAt: 1, Submissions: 100, Frames: []identity.Digest{d}}
			body, err := report.Marshal()
			must(t, err)
			_, err = b.as(t, "ingest").Create(t.Context(), report.Key(body), body, objstore.PutOptions{})
			must(t, err)
		}
		until(t, "the orphan frame to go", func() bool {
			_, err := owner.Head(t.Context(), layout.Blob(d, 0))
			return errors.Is(err, objstore.ErrNotFound) && has(t, owner, layout.Condemned(d, 0)) || len(b.of()) > 0
		})
	}
	until(t, "the report of an orphan to be dealt with", func() bool { return !has(t, owner, layout.OrphanReportsPrefix) || len(b.of()) > 0 })
	b.ahead.Store(30 * 3600)
	until(t, "frames removed by retention", func() bool { return has(t, owner, layout.FrameLogsPrefix) || len(b.of()) > 0 })
	time.Sleep(settle) // several rounds of everything that repeats
	for _, line := range b.of() {
		t.Error(line)
	}
}

// settle lets what repeats come round; nothing is measured.
const settle = 10 * time.Second
