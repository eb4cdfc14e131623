package coordinator

import (
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// acceptAlone has a region accept batches of a boot on its own, and its reconciler fold the journal.
func acceptAlone(t testing.TB, b *mem.Store, boot string, n int) {
	t.Helper()
	var es []journal.Entry
	for i := range uint64(n) {
		id := identity.Batch{Agent: "a", Boot: boot, SeqStart: 10*i + 1, SeqEnd: 10*i + 10}
		sum := identity.Sum([]byte(id.String()))
		m := accept.Manifest{
			AuthorityID: "authority", Identity: id, FrameSHA256: sum, FrameBytes: 1, RawBlobKey: layout.Blob(sum, 0), AcceptedAt: int64(i) + 1,
			CollectorID: "c", AttemptID: strings.Repeat("0", 32), RecordCount: id.Count(), MinTime: 1, MaxTime: 2,
		}
		_, err := b.Create(t.Context(), layout.Accepted(id), m.Marshal(), objstore.PutOptions{})
		must(t, err)
		es = append(es, m.Entry(journal.Accepted))
	}
	must(t, journaltest.Append(t.Context(), b, "authority", es...))
	_, err := journaltest.Fold(t.Context(), b, "authority")
	must(t, err)
}

// A region with a history is prepared while the others decide, and then added; without that it is refused, and nothing has changed.
func TestARegionIsPreparedAndAdded(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	acceptAlone(t, buckets["asia"], "x", 40)
	m := external(t, t.TempDir())
	t.Cleanup(func() { m.Close() }) // after the coordinators
	two := map[claims.Region]*mem.Store{"eu": buckets["eu"], "us": buckets["us"]}
	first := startRegions(t, withRegions(shared(m), two), two)
	first.openedEpoch(1)
	first.end()
	cfg := withRegions(shared(m), buckets)
	cfg.Identity.MaxUnprepared = 10
	s := startStores(t, cfg, stores(buckets))
	s.openedEpoch(1)
	conn, err := rpc.Dial(s.addr(), rpc.ClientConfig{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	api := coordinatorv1.NewIdentityServiceClient(conn)
	if _, err := api.AddRegion(t.Context(), &coordinatorv1.AddRegionRequest{Region: "asia"}); rpc.Reason(err) != "UNPREPARED" {
		t.Fatal(err)
	}
	if n := epochIn(t, buckets["eu"]); n != 1 {
		t.Errorf("epoch %d", n)
	}
	p, err := api.PrepareRegion(t.Context(), &coordinatorv1.PrepareRegionRequest{Region: "asia"})
	must(t, err)
	if !p.GetDone() || p.GetPreparation().GetBatches() != 40 || p.GetPreparation().GetAcceptedAtUnixNs() != 40 {
		t.Errorf("%v", p)
	}
	if _, err := api.PrepareRegion(t.Context(), &coordinatorv1.PrepareRegionRequest{Region: "mars"}); rpc.Reason(err) != "REGIONS" {
		t.Error(err)
	}
	l, err := api.ListRegions(t.Context(), &coordinatorv1.ListRegionsRequest{})
	must(t, err)
	if got := l.GetRegions()[0]; got.GetRegion() != "asia" || got.GetMember() || got.GetPreparation().GetBatches() != 40 {
		t.Errorf("%v", l)
	}
	ask(t, s.claims(), op(claims.DoClaim, 1, "y", "eu", 3, 0), claims.Held) // nothing stands still
	acceptAlone(t, buckets["asia"], "y", 3)
	r, err := api.AddRegion(t.Context(), &coordinatorv1.AddRegionRequest{Region: "asia"})
	must(t, err)
	if r.GetClaims() != 3 {
		t.Errorf("%v", r)
	}
	s.openedEpoch(r.GetEpoch())
	o := op(claims.DoClaim, 201, "", "eu", 5, 0)
	o.Identity.Boot = "x"
	o.Hash = identity.Sum([]byte(o.Identity.String()))
	if a := ask(t, s.claims(), o, claims.Decided); a.Claim.Home != "asia" || a.Claim.State != claims.Settled {
		t.Errorf("%+v", a)
	}
	o.Hash = identity.Sum([]byte("another"))
	ask(t, s.claims(), o, claims.Conflict)
}

// Regions that were prepared before there was an epoch: nobody begins one until somebody asks for it, and then at once.
func TestAFirstEpochIsAskedFor(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	acceptAlone(t, buckets["eu"], "x", 20)
	m := external(t, t.TempDir())
	t.Cleanup(func() { m.Close() })
	cfg := withRegions(shared(m), buckets)
	cfg.Identity.MaxUnprepared = 10
	s := startStores(t, cfg, stores(buckets))
	conn, err := rpc.Dial(s.addr(), rpc.ClientConfig{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	api := coordinatorv1.NewIdentityServiceClient(conn)
	says := func(what string) {
		t.Helper()
		until(t, "the linearizer to say why it is not open", func() bool {
			l, err := api.ListRegions(t.Context(), &coordinatorv1.ListRegionsRequest{})
			return err == nil && strings.Contains(l.GetNotOpen(), what)
		})
	}
	says("not prepared")
	p, err := api.PrepareRegion(t.Context(), &coordinatorv1.PrepareRegionRequest{Region: "eu"})
	must(t, err)
	if !p.GetDone() || p.GetPreparation().GetBatches() != 20 {
		t.Errorf("%v", p)
	}
	says("was prepared, and was not added")
	r, err := api.AddRegion(t.Context(), &coordinatorv1.AddRegionRequest{Region: "eu"})
	must(t, err)
	if r.GetEpoch() != 1 || r.GetClaims() != 0 {
		t.Errorf("%v", r)
	}
	s.openedEpoch(1)
	if o := s.back.Load().identities.open.Load(); !slices.Equal(o.Epoch.Regions, []claims.Region{"asia", "eu", "us"}) {
		t.Errorf("%+v", o.Epoch)
	}
}
