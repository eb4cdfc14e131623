package ready

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
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
}

func newRolesBucket(t testing.TB) rolesBucket {
	t.Helper()
	b := rolesBucket{denials: &denials{}}
	oc := objectstore.DefaultConfig()
	oc.Listen, oc.AdminListen, oc.Dir, oc.Buckets = here, here, t.TempDir(), []string{"bucket"}
	oc.Users = []objectstore.User{{Name: "owner", AccessKeyID: "owner", Secret: policySecret}}
	for _, r := range bucketpolicy.Roles {
		policy, err := bucketpolicy.User(bucketpolicy.Options{Bucket: "bucket"}, r)
		must(t, err)
		oc.Users = append(oc.Users, objectstore.User{Name: string(r), AccessKeyID: string(r), Secret: policySecret, Policy: string(policy)})
	}
	tel := telemetry.Discard()
	tel.Log = slog.New(slog.NewTextHandler(b, nil))
	o, err := objectstore.New(oc, objectstore.Deps{Telemetry: tel})
	up(t, "objectstore", o, err)
	b.endpoint = "http://" + o.Addr()
	return b
}

func (b rolesBucket) as(t testing.TB, user string) objstore.Store {
	t.Helper()
	c := s3.DefaultConfig()
	c.Endpoint, c.Bucket, c.PathStyle = b.endpoint, "bucket", true
	c.AccessKeyID, c.SecretAccessKey = user, config.Secret(policySecret)
	s, err := s3.New(t.Context(), c, s3.Options{})
	must(t, err)
	return s
}

// has reports whether a prefix has objects.
func has(t testing.TB, s objstore.Store, prefix string) bool {
	t.Helper()
	page, err := s.List(t.Context(), objstore.ListOptions{Prefix: prefix, Limit: 1})
	must(t, err)
	return len(page.Objects) > 0
}

// TestServicesWorkWithTheirOwnCredentials: every service does its work with the policy of its role and
// is denied nothing: batches, duplicates and conflicts are accepted, journalled, folded, audited and
// scrubbed, answered, rolled up, late ones too, merged, packed into snapshots, and rows removed. Frames
// go a day after they were rolled up at the earliest, and are not removed here.
func TestServicesWorkWithTheirOwnCredentials(t *testing.T) {
	t.Parallel()
	b := newRolesBucket(t)
	owner := b.as(t, "owner")

	ic := ingest.DefaultConfig()
	ic.GRPC.Listen, ic.HTTP.Listen, ic.Store.BucketPolicy = here, here, "require"
	i, err := ingest.New(ic, ingest.Deps{Store: b.as(t, "ingest"), Telemetry: telemetry.Discard()})
	up(t, "ingest", i, err)
	until(t, "the collector to be ready", func() bool { return i.NotReady() == nil })

	start := time.Now().Add(-50 * time.Hour).Truncate(time.Hour)
	client := &http.Client{}
	send := func(agent string, seq uint64, at time.Time, value float64, want int) {
		t.Helper()
		f, err := load.Frame(identity.Boot{Agent: agent, Boot: "boot"}, "requests", seq, 5, at, value)
		must(t, err)
		resp, err := client.Post("http://"+i.HTTPAddr()+"/v1/batches", "application/vnd.lightmetrics.batch", bytes.NewReader(f))
		must(t, err)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Fatalf("%s: %s", resp.Status, body)
		}
	}
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
	r, err := reconciler.New(rc, reconciler.Deps{Store: b.as(t, "reconciler"), Telemetry: telemetry.Discard()})
	up(t, "reconciler", r, err)

	qc := query.DefaultConfig()
	qc.GRPC.Listen, qc.HTTP.Listen = here, here
	q, err := query.New(qc, query.Deps{Store: b.as(t, "query"), Telemetry: telemetry.Discard()})
	up(t, "query", q, err)

	wc := rollup.DefaultConfig()
	wc.HTTP.Listen, wc.Shards = here, 1
	wc.Schedule.FirstAfter, wc.Schedule.LateAfter, wc.Schedule.FoldAfter = -time.Hour, time.Second, 3*time.Second
	wc.Follow.Interval, wc.Follow.Idle = 200*time.Millisecond, 500*time.Millisecond
	wc.Collect.Interval, wc.Collect.Grace = time.Second, time.Second
	wc.Snapshot.Interval, wc.Compact.Interval, wc.Compact.After = 2*time.Second, time.Second, 0
	wc.Compact.Raw = []string{"2h"}
	wc.Retention.Raw, wc.Retention.Minute, wc.Retention.RawFrames, wc.Retention.Interval = 48*time.Hour, 48*time.Hour, 24*time.Hour, time.Second
	w, err := rollup.New(wc, rollup.Deps{Store: b.as(t, "rollup"), Telemetry: telemetry.Discard(), Refs: refsmem.New()})
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
	time.Sleep(settle) // several rounds of everything that repeats
	for _, line := range b.of() {
		t.Error(line)
	}
}

// settle lets what repeats come round; nothing is measured.
const settle = 10 * time.Second
