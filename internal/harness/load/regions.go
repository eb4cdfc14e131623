package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// settledWithin is how long reconcilers may take, after the last fault, until each batch is counted and each claim settled.
const settledWithin = 3 * time.Minute

// RegionsReport is what CheckRegions found.
type RegionsReport struct {
	// Counted are the batches that each region counts.
	Counted map[string]int
	// Claims are those that are listed; Folded are spans.
	Claims, Folded int
}

// CheckRegions compares a system of several regions at rest with what a contest was answered, and gives every difference
// that is still there when reconcilers had their time: each acknowledged batch has a manifest of its bytes in its home
// region, and an entry of the journal that counts in that region and in no other; no other batch of the contest counts
// anywhere; and no claim is held. Regions that were lost count nothing.
func CheckRegions(ctx context.Context, r *cluster.Regions, seen *Contested) (RegionsReport, error) {
	ctx, cancel := context.WithTimeout(ctx, settledWithin)
	defer cancel()
	var report RegionsReport
	var last error
	err := cluster.Poll(ctx, "every batch to be counted once, and every claim to be settled", func() (bool, error) {
		var err error
		report, err = checkRegions(ctx, r, seen)
		if ctx.Err() == nil {
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		err = fmt.Errorf("%w\n%w", err, last)
	}
	return report, err
}

// CompareRegions is one look of CheckRegions.
func CompareRegions(ctx context.Context, r *cluster.Regions, seen *Contested) error {
	_, err := checkRegions(ctx, r, seen)
	return err
}

func checkRegions(ctx context.Context, r *cluster.Regions, seen *Contested) (RegionsReport, error) {
	report := RegionsReport{Counted: map[string]int{}}
	var errs, wrong []error
	homes, err := ReadHomes(ctx, r, func(b identity.Boot) bool { _, ours := seen.Boots[b]; return ours })
	if err != nil {
		return report, err
	}
	for _, i := range r.Left() {
		store, err := r.Of[i].OpenStore(ctx)
		if err != nil {
			return report, err
		}
		counted := homes[r.Names[i]]
		report.Counted[r.Names[i]] = len(counted)
		for id, e := range counted {
			if want, acked := seen.Acked[id]; !acked || e.SHA256 != want {
				wrong = append(wrong, fmt.Errorf("%s counts %s with %s, which was acknowledged with %s", r.Names[i], id, e.SHA256, want))
				continue
			}
			if err := hasManifest(ctx, store, id, e.SHA256); err != nil {
				wrong = append(wrong, fmt.Errorf("%s counts %s: %w", r.Names[i], id, err))
			}
		}
	}
	for id := range seen.Acked {
		if at := homes.Of(id); len(at) != 1 {
			errs = append(errs, fmt.Errorf("%s was acknowledged and is counted by %d regions %v", id, len(at), at))
		}
	}
	errs = append(append(errs, wrong...), claimsAtRest(ctx, r, seen, &report))
	if len(errs) > maxReported {
		errs = append(errs[:maxReported], fmt.Errorf("and %d more", len(errs)-maxReported))
	}
	return report, errors.Join(errs...)
}

// Homes are the entries of each region's journal that count there, by region and identity.
type Homes map[string]map[identity.Batch]journal.Entry

// Of are the regions that count a batch.
func (h Homes) Of(id identity.Batch) (regions []string) {
	for region, counted := range h {
		if _, ok := counted[id]; ok {
			regions = append(regions, region)
		}
	}
	slices.Sort(regions)
	return regions
}

// ReadHomes reads the journals of all regions that were not lost from their buckets, and keeps the batches of the boots that are asked for.
func ReadHomes(ctx context.Context, r *cluster.Regions, of func(identity.Boot) bool) (Homes, error) {
	homes := Homes{}
	for _, i := range r.Left() {
		c := r.Of[i]
		store, err := c.OpenStore(ctx)
		if err != nil {
			return nil, err
		}
		if homes[r.Names[i]], err = countedIn(ctx, store, c.AuthorityID(), r.Names[i], of); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Names[i], err)
		}
	}
	return homes, nil
}

// countedIn reads a region's journal: the batches whose home it is.
func countedIn(ctx context.Context, store objstore.Store, authority, region string, of func(identity.Boot) bool) (map[identity.Batch]journal.Entry, error) {
	var mu sync.Mutex
	counted := map[identity.Batch]journal.Entry{}
	var errs []error
	take := func(_ context.Context, es []journal.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		for i := range es {
			e := &es[i]
			// Without regions a batch has no home, and whoever has it counts it.
			if e.Outcome.Conflict() || e.HomeRegion != "" && e.HomeRegion != region || !of(identity.Boot{Agent: e.ID.Agent, Boot: e.ID.Boot}) {
				continue
			}
			if was, ok := counted[e.ID]; ok && was.SHA256 != e.SHA256 && len(errs) < maxReported {
				errs = append(errs, fmt.Errorf("the journal counts %s with %s and with %s", e.ID, was.SHA256, e.SHA256))
			}
			counted[e.ID] = *e
		}
		return nil
	}
	f, err := journal.NewFollower(journal.FollowerConfig{Store: store, Authority: authority, Folded: take,
		Segment: func(ctx context.Context, s *journal.Segment) error { return take(ctx, s.Entries) }})
	if err != nil {
		return nil, err
	}
	if _, err := f.Poll(ctx); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	return counted, errors.Join(errs...)
}

func hasManifest(ctx context.Context, store objstore.Store, id identity.Batch, want identity.Digest) error {
	body, _, err := store.Get(ctx, layout.Accepted(id), objstore.GetOptions{Limit: accept.MaxObjectBytes})
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	m, err := accept.ParseManifest(body)
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if m.FrameSHA256 != want {
		return fmt.Errorf("its manifest has %s", m.FrameSHA256)
	}
	return nil
}

// claimsAtRest asks a coordinator for all claims of the contest: each is settled.
func claimsAtRest(ctx context.Context, r *cluster.Regions, seen *Contested, report *RegionsReport) error {
	if !r.Global() {
		return nil
	}
	conn, err := rpc.Dial(r.LeftOf()[0].Addr.CoordinatorGRPC, rpc.ClientConfig{})
	if err != nil {
		return err
	}
	defer conn.Close()
	client := coordinatorv1.NewIdentityServiceClient(conn)
	var errs []error
	for b, through := range seen.Boots {
		tctx, cancel := context.WithTimeout(ctx, askTimeout)
		resp, err := client.ListClaims(tctx, &coordinatorv1.ListClaimsRequest{AgentId: b.Agent, BootId: b.Boot, SeqStart: 1, SeqEnd: through})
		cancel()
		if err != nil {
			return fmt.Errorf("claims of %s: %w", b, err)
		}
		report.Claims += len(resp.GetClaims())
		report.Folded += len(resp.GetSpans())
		for _, c := range resp.GetClaims() {
			if c.GetState() != coordinatorv1.ClaimState_CLAIM_STATE_SETTLED {
				errs = append(errs, fmt.Errorf("%s %d..%d is held: %s, home %s, recovered %v, bound %v", b, c.GetIdentity().GetSeqStart(),
					c.GetIdentity().GetSeqEnd(), c.GetState(), c.GetHomeRegion(), c.GetRecovered(), c.GetBound()))
			}
		}
	}
	return errors.Join(errs...)
}
