package coordinator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/coordination/trace"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// threeBuckets are those of the regions eu, us and asia.
func threeBuckets() map[claims.Region]*mem.Store {
	return map[claims.Region]*mem.Store{"eu": mem.New(nil), "us": mem.New(nil), "asia": mem.New(nil)}
}

// withRegions is a configuration with those buckets.
func withRegions(c Config, buckets map[claims.Region]*mem.Store) Config {
	for n := range buckets {
		r := RegionConfig{Name: string(n)}
		r.Store.Bucket = "metrics-" + string(n)
		c.Identity.Regions = append(c.Identity.Regions, r)
	}
	return c
}

func startRegions(t testing.TB, c Config, buckets map[claims.Region]*mem.Store) *running {
	t.Helper()
	return startStores(t, c, stores(buckets))
}

func startStores(t testing.TB, c Config, s3 map[claims.Region]regions.Store) *running {
	t.Helper()
	return startWith(t, c, Deps{Regions: s3})
}

func (r *running) claims() *coordinator.Claims {
	r.t.Helper()
	conn, err := rpc.Dial(r.addr(), rpc.ClientConfig{})
	must(r.t, err)
	r.t.Cleanup(func() { conn.Close() })
	return coordinator.NewClaims(conn, patience)
}

// opened waits until identities are decided, in an epoch of at least this number.
func (r *running) openedEpoch(least uint64) {
	r.t.Helper()
	until(r.t, "an epoch to be open", func() bool {
		b := r.back.Load()
		o := b.identities.open.Load()
		return o != nil && o.Epoch.Number >= least
	})
}

func op(k claims.Kind, seq uint64, frame string, region claims.Region, id byte, epoch uint64) claims.Op {
	return claims.Op{Kind: k, Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: seq, SeqEnd: seq + 9}, Hash: identity.Sum([]byte(frame)), Region: region, ID: claims.ID{id}, Epoch: epoch}
}

// ask does an operation and wants the outcome.
func ask(t testing.TB, c *coordinator.Claims, o claims.Op, want claims.Outcome) claims.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := c.Do(ctx, []claims.Op{o})[0]
	if r.Err != nil || r.Answer.Outcome != want {
		t.Fatalf("%s %s by %s: %s, want %s (%v)", o.Kind, o.Identity, o.Region, r.Answer.Outcome, want, r.Err)
	}
	return r.Answer
}

// settle brings an identity of a region to its end, with a manifest in its bucket.
func settle(t testing.TB, c *coordinator.Claims, bucket *mem.Store, region claims.Region, seq uint64, frame string) claims.Answer {
	t.Helper()
	a := ask(t, c, op(claims.DoClaim, seq, frame, region, byte(seq), 0), claims.Held)
	sum := identity.Sum([]byte(frame))
	m := accept.Manifest{
		AuthorityID: "authority", Identity: a.Claim.Identity, FrameSHA256: sum, FrameBytes: uint64(len(frame)), RawBlobKey: layout.Blob(sum, 0), AcceptedAt: 1,
		CollectorID: "c", AttemptID: strings.Repeat("0", 32), RecordCount: a.Claim.Identity.Count(), HomeRegion: string(region), ClaimEpoch: a.Claim.Stamp.Epoch, ClaimFence: a.Claim.Stamp.Fence,
	}
	_, err := bucket.Create(t.Context(), layout.Accepted(m.Identity), m.Marshal(), objstore.PutOptions{})
	must(t, err)
	ask(t, c, op(claims.DoComplete, seq, frame, region, byte(seq), a.Epoch), claims.Decided)
	return ask(t, c, op(claims.DoSettle, seq, frame, region, byte(seq), a.Epoch), claims.Decided)
}

// The linearizer as collectors reach it, over a restart and over the loss of all that etcd had.
func TestIdentities(t *testing.T) {
	t.Parallel()
	dir, buckets := t.TempDir(), threeBuckets()
	cfg := withRegions(quick(dir), buckets)
	first := startRegions(t, cfg, buckets)
	first.openedEpoch(1)
	c := first.claims()
	settle(t, c, buckets["eu"], "eu", 1, "x")
	ask(t, c, op(claims.DoClaim, 1, "x", "us", 9, 0), claims.Decided)
	ask(t, c, op(claims.DoClaim, 1, "y", "us", 9, 0), claims.Conflict)
	ask(t, c, op(claims.DoClaim, 5, "y", "us", 9, 0), claims.RangeConflict)
	if r := c.Do(t.Context(), []claims.Op{op(claims.DoClaim, 101, "y", "mars", 9, 0)})[0]; !errors.Is(r.Err, claims.ErrInvalid) {
		t.Errorf("a region that is none: %+v", r)
	}
	first.end()

	// The same etcd: the same epoch, and what was said is said again.
	second := startRegions(t, cfg, buckets)
	second.openedEpoch(1)
	if a := ask(t, second.claims(), op(claims.DoClaim, 1, "x", "us", 9, 0), claims.Decided); a.Epoch != 1 || a.Claim.State != claims.Settled {
		t.Errorf("%+v", a)
	}
	second.end()

	// etcd is lost, and found again in the buckets: the claim is its home's, and nobody else's before it has completed it.
	must(t, os.RemoveAll(dir))
	must(t, os.MkdirAll(dir, 0o700))
	third := startRegions(t, cfg, buckets)
	third.openedEpoch(2)
	c = third.claims()
	if a := ask(t, c, op(claims.DoClaim, 1, "x", "us", 9, 0), claims.Pending); a.Epoch != 2 || a.Claim.Home != "eu" || !a.Claim.Recovered {
		t.Errorf("%+v", a)
	}
	ask(t, c, op(claims.DoClaim, 1, "y", "us", 9, 0), claims.Contested)
	// A call of its home goes on under the id that is there.
	a := ask(t, c, op(claims.DoClaim, 1, "x", "eu", 8, 0), claims.Held)
	if !a.Claim.Recovered || a.Claim.ID.IsZero() || a.Claim.ID == (claims.ID{8}) {
		t.Errorf("%+v", a)
	}
	// The first coordinator's epoch is over.
	if r := c.Do(t.Context(), []claims.Op{op(claims.DoComplete, 1, "x", "eu", 1, 1)})[0]; !errors.Is(r.Err, claims.ErrEpoch) {
		t.Errorf("a claim of the epoch before: %+v", r)
	}
	complete := op(claims.DoComplete, 1, "x", "eu", 0, 2)
	complete.ID = a.Claim.ID
	ask(t, c, complete, claims.Decided)
}

// A manifest that is in no region is no answer: what is folded is decided by the manifest of its home, also after a boot has had more
// batches than claims fit.
func TestFoldedIdentities(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	cfg := withRegions(quick(t.TempDir()), buckets)
	cfg.Identity.SettleHorizon, cfg.Identity.Idle = time.Second, time.Second
	s := startRegions(t, cfg, buckets)
	s.openedEpoch(1)
	c := s.claims()
	for i := range uint64(3) {
		settle(t, c, buckets["eu"], "eu", 1+10*i, "x")
	}
	until(t, "the claims to be folded", func() bool {
		v := s.back.Load().identities
		_, err := v.foldOld(t.Context(), v.open.Load()) // beside the one that runs in the background
		must(t, err)
		left, err := c.List(t.Context(), identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 30})
		must(t, err)
		return len(left.Claims) == 0 && len(left.Spans) == 1
	})
	if a := ask(t, c, op(claims.DoClaim, 11, "x", "us", 9, 0), claims.Decided); a.Claim.Home != "eu" || a.Claim.State != claims.Settled || a.Claim.Stamp == (accepted.Stamp{}) {
		t.Errorf("%+v", a)
	}
	ask(t, c, op(claims.DoClaim, 11, "y", "us", 9, 0), claims.Conflict)
	// The frame in the way is named: also where the identity reaches beyond what is folded.
	for _, seq := range []uint64{15, 25} {
		if a := ask(t, c, op(claims.DoClaim, seq, "y", "us", 9, 0), claims.RangeConflict); a.Claim.Hash != identity.Sum([]byte("x")) {
			t.Errorf("%+v", a)
		}
	}
	whole := op(claims.DoClaim, 1, "x", "us", 9, 0)
	whole.Identity.SeqEnd = 30
	ask(t, c, whole, claims.RangeConflict)
	// Etcd forgets the boot when it is idle; the buckets still know it.
	until(t, "the boot to be forgotten", func() bool {
		v := s.back.Load().identities
		must(t, v.forgetIdle(t.Context(), v.open.Load()))
		return testutil.ToFloat64(v.m.forgotten) > 0
	})
	ask(t, c, op(claims.DoClaim, 11, "y", "us", 9, 0), claims.Conflict)
	ask(t, c, op(claims.DoClaim, 11, "x", "us", 9, 0), claims.Decided)
	ask(t, c, op(claims.DoClaim, 41, "x", "us", 9, 0), claims.Held)
}

// A sender that catches up has more batches than a boot has room for claims: they are folded before the horizon.
func TestABootWithManyBatches(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	s := startRegions(t, withRegions(quick(t.TempDir()), buckets), buckets)
	s.openedEpoch(1)
	c := s.claims()
	most := claims.DefaultConfig().MaxClaims
	for from := 0; from < most+100; from += 100 {
		var ops []claims.Op
		for i := from; i < from+100; i++ {
			o := op(claims.DoClaim, uint64(1+10*i), "x", "eu", 1, 0)
			o.ID = claims.ID{byte(i), byte(i >> 8), 1}
			ops = append(ops, o)
		}
		for _, k := range []claims.Kind{claims.DoClaim, claims.DoComplete, claims.DoSettle} {
			for i := range ops {
				ops[i].Kind, ops[i].Epoch = k, 1
			}
			for i, r := range c.Do(t.Context(), ops) {
				if r.Err != nil {
					t.Fatalf("%s %d of a boot: %v", k, from+i, r.Err)
				}
			}
		}
	}
}

func TestWithoutRegions(t *testing.T) {
	t.Parallel()
	s := start(t, quick(t.TempDir()), nil)
	if r := s.claims().Do(t.Context(), []claims.Op{op(claims.DoClaim, 1, "x", "eu", 1, 0)})[0]; !errors.Is(r.Err, claims.ErrUnavailable) || !strings.Contains(r.Err.Error(), "identity.regions") {
		t.Errorf("%+v", r)
	}
}

func TestIdentityConfig(t *testing.T) {
	good := func() IdentityConfig {
		return withRegions(DefaultConfig(), threeBuckets()).Identity
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*IdentityConfig){
		"name":           func(c *IdentityConfig) { c.Regions[0].Name = "EU" },
		"same name":      func(c *IdentityConfig) { c.Regions[0].Name = c.Regions[1].Name },
		"same bucket":    func(c *IdentityConfig) { c.Regions[0].Store = c.Regions[1].Store },
		"etcd":           func(c *IdentityConfig) { c.Regions[0].Name = "etcd" },
		"no bucket":      func(c *IdentityConfig) { c.Regions[0].Store.Bucket = "" },
		"settle_horizon": func(c *IdentityConfig) { c.SettleHorizon = 0 },
		"at most 16":     func(c *IdentityConfig) { c.Regions = append(c.Regions, make([]RegionConfig, 16)...) },
	} {
		c := good()
		if spoil(&c); c.Validate() == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}

// Two regions may not have one bucket, in whatever words their settings say it.
func TestRegionsHaveBucketsOfTheirOwn(t *testing.T) {
	for _, c := range []struct {
		one, other string
		same       bool
	}{
		{"http://h", "http://h/", true}, {"http://h", "http://H:80", true}, {"https://h/s3", "https://h:443/s3/", true}, {"http://[::1]:80", "http://[::1]/", true},
		{"", "https://s3.eu-north-1.amazonaws.com", true},
		{"http://h", "http://h:9000", false}, {"https://h/a", "https://h/b", false}, {"http://h", "http://g", false},
	} {
		cfg := withRegions(DefaultConfig(), map[claims.Region]*mem.Store{"eu": nil, "us": nil}).Identity
		cfg.Regions[0].Store, cfg.Regions[1].Store = s3.Config{Bucket: "metrics", Endpoint: c.one, Region: "eu-north-1"}, s3.Config{Bucket: "metrics", Endpoint: c.other}
		if err := cfg.Validate(); (err != nil) != c.same || c.same && !strings.Contains(err.Error(), "has the same bucket") {
			t.Errorf("%q and %q: %v", c.one, c.other, err)
		}
	}
}

// The operator's calls: what regions there are, one that is added with what it had accepted, and every record of a batch.
func TestRegionsOfAnOperator(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	two := map[claims.Region]*mem.Store{"eu": buckets["eu"], "us": buckets["us"]}
	dir := t.TempDir()
	first := startRegions(t, withRegions(quick(dir), two), two)
	first.openedEpoch(1)
	settle(t, first.claims(), buckets["eu"], "eu", 1, "x")
	first.end()
	// What its collector journalled.
	body, _, err := buckets["eu"].Get(t.Context(), layout.Accepted(op(claims.DoClaim, 1, "x", "eu", 1, 0).Identity), objstore.GetOptions{})
	must(t, err)
	m, err := accept.ParseManifest(body)
	must(t, err)
	_, err = buckets["eu"].Create(t.Context(), layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "authority"}.Marshal(), objstore.PutOptions{})
	must(t, err)
	must(t, journaltest.Append(t.Context(), buckets["eu"], "authority", m.Entry(journal.Accepted)))

	s := startRegions(t, withRegions(quick(dir), buckets), buckets)
	s.openedEpoch(1)
	conn, err := rpc.Dial(s.addr(), rpc.ClientConfig{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	c := coordinatorv1.NewIdentityServiceClient(conn)
	list := func() (members []string, r *coordinatorv1.ListRegionsResponse) {
		r, err := c.ListRegions(t.Context(), &coordinatorv1.ListRegionsRequest{})
		must(t, err)
		for _, p := range r.GetRegions() {
			if p.GetMember() {
				members = append(members, p.GetRegion())
			}
		}
		return members, r
	}
	if members, r := list(); strings.Join(members, " ") != "eu us" || len(r.GetRegions()) != 3 || r.GetEpoch() != 1 || r.GetNotOpen() != "" {
		t.Errorf("%v", r)
	}
	if _, err := c.AddRegion(t.Context(), &coordinatorv1.AddRegionRequest{Region: "Mars!"}); rpc.Reason(err) != "CLAIMS_INVALID" {
		t.Error(err)
	}
	if _, err := c.AddRegion(t.Context(), &coordinatorv1.AddRegionRequest{Region: "mars"}); rpc.Reason(err) != coordinator.ReasonRegions {
		t.Error(err)
	}
	added, err := c.AddRegion(t.Context(), &coordinatorv1.AddRegionRequest{Region: "asia"})
	must(t, err)
	if added.GetEpoch() != 2 || added.GetClaims() != 1 {
		t.Errorf("%v", added)
	}
	s.openedEpoch(2)
	if members, r := list(); strings.Join(members, " ") != "asia eu us" || r.GetEpoch() != 2 {
		t.Errorf("%v", r)
	}
	tr, err := c.TraceIdentity(t.Context(), &coordinatorv1.TraceIdentityRequest{AgentId: "a", BootId: "b", SeqStart: 1, SeqEnd: 10})
	must(t, err)
	if len(tr.GetRecords()) != 2 || tr.GetRecords()[0].GetKind() != trace.Manifest || tr.GetRecords()[0].GetRegion() != "eu" || tr.GetRecords()[0].GetError() != "" ||
		tr.GetRecords()[1].GetKind() != trace.Journal || tr.GetRecords()[1].GetOutcome() != "accepted" || len(tr.GetJournals()) != 3 || tr.GetJournals()[1].GetError() != "" || len(tr.GetClaims().GetClaims()) != 1 || !tr.GetClaims().GetClaims()[0].GetRecovered() || len(tr.GetUnread()) != 0 {
		t.Errorf("%v", tr)
	}
}

// silent is a bucket that never answers, as one behind a network that is cut off.
type silent struct{ *mem.Store }

func (s silent) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if !strings.HasPrefix(key, layout.FoldsPrefix) {
		return s.Store.Get(ctx, key, o)
	}
	<-ctx.Done()
	return nil, objstore.Info{}, fmt.Errorf("%w: %w", objstore.ErrUnavailable, ctx.Err())
}

// A region that is cut off holds nobody up: neither boots that nobody has heard of, nor folds.
func TestFoldsWithoutARegion(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	with := stores(buckets)
	with["asia"] = silent{buckets["asia"]}
	cfg := withRegions(quick(t.TempDir()), buckets)
	cfg.Identity.SettleHorizon, cfg.Identity.Idle = time.Second, time.Second
	s := startStores(t, cfg, with)
	s.openedEpoch(1)
	c := s.claims()
	settle(t, c, buckets["eu"], "eu", 1, "x")
	until(t, "the claim to be folded", func() bool {
		v := s.back.Load().identities
		_, err := v.foldOld(t.Context(), v.open.Load())
		must(t, err)
		return testutil.ToFloat64(v.m.folded) > 0
	})
	if n := testutil.ToFloat64(s.back.Load().identities.m.foldsAway); n == 0 {
		t.Error("the region that was away is not counted")
	}
	ask(t, c, op(claims.DoClaim, 1, "y", "us", 9, 0), claims.Conflict)
	for _, r := range []claims.Region{"eu", "us"} {
		if h, err := folds.Read(t.Context(), buckets[r], identity.Boot{Agent: "a", Boot: "b"}); err != nil || len(h.Tail) != 1 {
			t.Errorf("%s: %+v, %v", r, h, err)
		}
	}
}
