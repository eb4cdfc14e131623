package reconciler

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/derived/inventory"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/collect"
)

// collecting looks for garbage only when it is asked.
func collecting(mode string) Config {
	c := quiet()
	c.GC.Mode, c.GC.PollInterval, c.GC.SweepInterval, c.GC.MinAge, c.GC.Delay, c.GC.Rate = mode, time.Hour, 0, 0, 0, 1e6
	return c
}

// plantOrphan writes a frame that nothing refers to.
func plantOrphan(t *testing.T, s objstore.Store, seq uint64) (identity.Digest, string) {
	t.Helper()
	body := encoded(t, identity.Boot{Agent: "o", Boot: "boot"}, seq, 1, 2)
	d := identity.Sum(body)
	create(t, s, layout.Blob(d, 0), body)
	return d, layout.Blob(d, 0)
}

func exists(t *testing.T, s objstore.Store, key string) bool {
	t.Helper()
	_, err := s.Head(bg, key)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// complete waits for the first full audit, before which no plan is made.
func complete(t *testing.T, s objstore.Store) {
	t.Helper()
	eventually(t, "the journal names every accepted batch", func() bool { return exists(t, s, layout.JournalBeginKey) })
}

// An operator asks for a sweep; the breaker trips, holds and is released; a process that ends gives the claim back.
func TestGarbageIsCollectedWhenAsked(t *testing.T) {
	s := newStore()
	m := acceptBatch(t, s, batch("a", 1, 2))
	d, orphan := plantOrphan(t, s, 1)
	r := start(t, collecting(collect.On), s)
	complete(t, s)
	api := r.client()
	state := func() *reconcilerv1.GarbageState {
		t.Helper()
		res, err := api.GetGarbage(bg, &reconcilerv1.GetGarbageRequest{})
		must(t, err)
		return res.GetState()
	}
	notTripped := func() {
		t.Helper()
		_, err := api.ReleaseBreaker(bg, &reconcilerv1.ReleaseBreakerRequest{})
		if status.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != ReasonNotTripped {
			t.Errorf("release of a breaker that has not tripped: %v", err)
		}
	}
	sweep := func() {
		t.Helper()
		res, err := api.StartSweep(bg, &reconcilerv1.StartSweepRequest{})
		must(t, err)
		if !res.GetState().GetSweepRequested() {
			t.Errorf("%v", res)
		}
	}
	if st := state(); st.GetPlan() != 0 || st.GetSweep() != nil || st.GetLastSweep() != nil || st.GetBreakerHolds() {
		t.Errorf("before anything: %v", st)
	}
	notTripped()
	if !exists(t, s, orphan) {
		t.Error("collected, and nobody has asked")
	}

	sweep()
	eventually(t, "the sweep ends", func() bool { return state().GetLastSweep().GetEndedAtUnixS() > 0 })
	st := state()
	if l := st.GetLastSweep(); l.GetListed() != 2 || l.GetCandidates() != 1 || l.GetDeleted() != 1 || l.GetKept() != 0 || st.GetDeletedBlobs() != 1 || st.GetMarkers() != 1 || st.GetSweepRequested() || st.GetSweep() != nil {
		t.Errorf("after the sweep: %v", st)
	}
	if exists(t, s, orphan) || !exists(t, s, layout.Condemned(d, 0)) || !exists(t, s, m.RawBlobKey) {
		t.Error("want the orphan gone, its marker there, and the accepted frame too")
	}

	// Another process need not wait for the lease of one that has ended.
	must(t, r.stop())
	cfg := collecting(collect.On)
	cfg.GC.PollInterval = 10 * time.Millisecond
	r = start(t, cfg, s)
	api = r.client()

	// A collector has seen a manifest that this reconciler can't see.
	d, orphan = plantOrphan(t, s, 3)
	hidden := layout.Accepted(batch("b", 1, 2))
	report := gc.OrphanReport{AuthorityID: testAuthority, CollectorID: "c1", ReportedAt: 1, Submissions: 100, Frames: []identity.Digest{d}, Witness: hidden}
	body, err := report.Marshal()
	must(t, err)
	create(t, s, report.Key(body), body)
	eventually(t, "the breaker trips", func() bool { return state().GetBreakerHolds() })
	if b := state().GetBreaker(); b.GetCause() != string(gc.Hidden) || b.GetKey() != hidden || b.GetReleasedBy() != "" {
		t.Errorf("the breaker: %v", b)
	}
	sweep()
	if exists(t, s, layout.Condemned(d, 0)) || !exists(t, s, orphan) {
		t.Error("condemned while the breaker holds")
	}
	res, err := api.ReleaseBreaker(bg, &reconcilerv1.ReleaseBreakerRequest{})
	must(t, err)
	if b := res.GetState().GetBreaker(); res.GetState().GetBreakerHolds() || b.GetReleasedBy() == "" || b.GetKey() != hidden {
		t.Errorf("released: %v", res)
	}
	eventually(t, "the orphan of the report is collected", func() bool { return !exists(t, s, orphan) && !exists(t, s, report.Key(body)) })
	notTripped()

	must(t, r.stop())
	after, _, err := gc.ReadState(bg, s, testAuthority)
	must(t, err)
	if after.Claim != "" || after.Holder != "" || after.Deleted != 2 {
		t.Errorf("after the end: %+v", after)
	}
}

// A dry run finds the same, and writes nothing but a log; there, and where collection is off, the request stays for others.
func TestGarbageIsLeftWhereCollectionIsNotOn(t *testing.T) {
	for _, mode := range []string{collect.DryRun, collect.Off} {
		t.Run(mode, func(t *testing.T) {
			s := newStore()
			acceptBatch(t, s, batch("a", 1, 2))
			d, orphan := plantOrphan(t, s, 1)
			r := start(t, collecting(mode), s)
			complete(t, s)
			api := r.client()
			_, err := api.StartSweep(bg, &reconcilerv1.StartSweepRequest{})
			must(t, err)
			if mode == collect.DryRun {
				eventually(t, "the sweep ends", func() bool {
					res, err := api.GetGarbage(bg, &reconcilerv1.GetGarbageRequest{})
					must(t, err)
					l := res.GetState().GetLastSweep()
					return l.GetEndedAtUnixS() > 0 && l.GetCandidates() == 1 && l.GetDeleted() == 0
				})
			}
			must(t, r.stop())
			st, _, err := gc.ReadState(bg, s, testAuthority)
			must(t, err)
			if !st.Requested || st.Plan != 0 || st.Last.BeganAt != 0 {
				t.Errorf("%+v", st)
			}
			if !exists(t, s, orphan) || exists(t, s, layout.Condemned(d, 0)) {
				t.Error("collected")
			}
		})
	}
}

// A sweep that is due takes its keys from the files of the newest inventory.
func TestASweepTakesAnInventory(t *testing.T) {
	s, lists := newStore(), newStore()
	acceptBatch(t, s, batch("a", 1, 2))
	_, orphan := plantOrphan(t, s, 1)
	cfg := collecting(collect.On)
	cfg.GC.SweepInterval, cfg.GC.PollInterval, cfg.GC.Inventory, cfg.Audit.Inventory.Prefix = time.Hour, 10*time.Millisecond, true, "lists/metrics/daily/"
	// What S3 writes: the rows of a gzipped file, the manifest with its checksum, and that of the manifest.
	var rows bytes.Buffer
	z := gzip.NewWriter(&rows)
	for o, err := range objstore.List(bg, s, objstore.ListOptions{}) {
		must(t, err)
		fmt.Fprintf(z, "\"metrics\",\"prod%%2F%s\"\n", url.QueryEscape(o.Key))
	}
	must(t, z.Close())
	sum := func(b []byte) string { h := md5.Sum(b); return hex.EncodeToString(h[:]) }
	at := time.Now()
	manifest := fmt.Appendf(nil, `{"sourceBucket":"metrics","destinationBucket":"arn:aws:s3:::lists","version":"2016-11-30","creationTimestamp":"%d","fileFormat":"CSV","fileSchema":"Bucket, Key","files":[{"key":"lists/data/1","size":%d,"MD5checksum":"%s"}]}`,
		at.UnixMilli(), rows.Len(), sum(rows.Bytes()))
	key := cfg.Audit.Inventory.Prefix + at.UTC().Format("2006-01-02T15-04Z") + "/manifest."
	create(t, lists, "lists/data/1", rows.Bytes())
	create(t, lists, key+"json", manifest)
	create(t, lists, key+"checksum", []byte(sum(manifest)))
	r := startWith(t, cfg, Deps{Store: s, Inventory: inventory.Config{Store: lists, Bucket: "lists", Prefix: cfg.Audit.Inventory.Prefix, Source: "metrics", SourcePrefix: "prod/"}.Open})
	eventually(t, "the orphan is gone", func() bool { return !exists(t, s, orphan) })
	eventually(t, "the sweep ends", func() bool {
		st, _, err := gc.ReadState(bg, s, testAuthority)
		must(t, err)
		return st.Last.EndedAt > 0 && st.Last.Inventory == key+"json" && st.Last.Deleted == 1
	})
	must(t, r.stop())
}
