package coordinator

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/coordination/trace"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// Reasons of refusals of a change of the regions.
const (
	ReasonRegions = "REGIONS"
	// ReasonUndecided: claims are left that somebody has to complete or release first.
	ReasonUndecided = "REGIONS_UNDECIDED"
	// ReasonDissolved: the linearizer was dissolved, or is being it.
	ReasonDissolved = "REGIONS_DISSOLVED"
	// ReasonUnprepared: a region has to be prepared before it is added.
	ReasonUnprepared = "UNPREPARED"
	// ReasonTooManyClaims: more batches are not folded than a recovery may enter into etcd; the journals of their regions can be folded.
	ReasonTooManyClaims = "TOO_MANY_CLAIMS"
)

// Regional is the epoch and its regions: a claimer that has regions.
type Regional interface {
	// Regions is what etcd and the buckets say; notOpen is why identities are not decided here, or nil.
	Regions(context.Context) (s regions.Status, names []claims.Region, notOpen, err error)
	AddRegion(context.Context, claims.Region) (regions.Opened, error)
	// PrepareRegion is regions.Keeper.Prepare, for a while.
	PrepareRegion(context.Context, claims.Region) (p regions.Preparation, all bool, _ error)
	// RetireRegion is regions.Keeper.Retire.
	RetireRegion(ctx context.Context, name claims.Region, forget bool) (regions.Opened, error)
	// Dissolve is regions.Keeper.Dissolve.
	Dissolve(ctx context.Context, name claims.Region) (regions.Record, error)
	// Trace is trace.Find over all regions.
	Trace(context.Context, trace.Query) trace.Result
}

// regional is the claimer's side with regions, or a refusal.
func (s *IdentityServer) regional() (Regional, error) {
	if r, ok := s.claimer.(Regional); ok {
		return r, nil
	}
	return nil, refusal(fmt.Errorf("%w: this coordinator has no regions", claims.ErrUnavailable))
}

// regionsFailed is the status of an error of regions: those that waiting may mend are UNAVAILABLE, and settings that are wrong are not.
func regionsFailed(err error) error {
	reason, undecided := "", (*regions.UndecidedError)(nil)
	switch {
	case errors.As(err, &undecided):
		reason = ReasonUndecided
	case errors.Is(err, regions.ErrDissolved) || errors.Is(err, regions.ErrDissolving):
		reason = ReasonDissolved
	// A bucket that refuses, or is not there, is one of the settings, too: no later try mends it.
	case errors.Is(err, regions.ErrRegionSettings) || errors.Is(err, regions.ErrForgets) || errors.Is(err, regions.ErrRetiring) || errors.Is(err, objstore.ErrDenied) || errors.Is(err, objstore.ErrNoBucket):
		reason = ReasonRegions
	case errors.Is(err, regions.ErrUnprepared):
		reason = ReasonUnprepared
	case errors.Is(err, regions.ErrTooManyClaims):
		reason = ReasonTooManyClaims
	}
	if reason != "" {
		return rpc.Failure{Code: codes.FailedPrecondition, Reason: reason, Message: err.Error()}.Err()
	}
	return rpc.Failure{Code: codes.Unavailable, Reason: ReasonRegions, Message: err.Error(), RetryAfter: RetryAfter}.Err()
}

// ListRegions reads what etcd and the buckets say.
func (s *IdentityServer) ListRegions(ctx context.Context, _ *coordinatorv1.ListRegionsRequest) (*coordinatorv1.ListRegionsResponse, error) {
	r, err := s.regional()
	if err != nil {
		return nil, err
	}
	st, names, notOpen, err := r.Regions(ctx)
	if err != nil {
		return nil, regionsFailed(err)
	}
	out := &coordinatorv1.ListRegionsResponse{Epoch: st.Epoch.Number, Cluster: fmt.Sprintf("%016x", st.Cluster)}
	if cause := cmp.Or(notOpen, st.Open); cause != nil {
		out.NotOpen = cause.Error()
	}
	newest := st.Newest
	out.Dissolved = newest.Dissolved
	retired := map[claims.Region]bool{}
	for _, t := range newest.Retired {
		retired[t.Name] = true
		names = append(names, t.Name)
	}
	ours := slices.Clone(names)
	names = append(names, newest.Regions...)
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		rec := st.Records[n]
		p := &coordinatorv1.RegionRecord{Region: string(n), Member: slices.Contains(newest.Regions, n), Retired: retired[n], Epoch: rec.Number, Joining: slices.Contains(newest.Joining, n)}
		if done, there := st.Prepared[n]; there {
			p.Preparation = preparationMessage(done)
		}
		if rec.Number > 0 {
			p.EpochId = hex.EncodeToString(rec.ID[:])
		}
		switch {
		case !slices.Contains(ours, n):
			p.Error = "it has no bucket in the settings of this coordinator"
		case rec.Number > 0 && rec.Region != n:
			p.Error = fmt.Sprintf("its bucket is that of region %s", rec.Region)
		case rec.Number == 0 && p.Member && slices.Contains(st.Epoch.Regions, n):
			p.Error = "its bucket has no record: it was emptied, or is another one"
		}
		for _, u := range st.Unread {
			if u.Region == n {
				p.Error = u.Err.Error()
			}
		}
		out.Regions = append(out.Regions, p)
	}
	return out, nil
}

// named is the claimer's side with regions, and the region that a request names; or a refusal.
func (s *IdentityServer) named(q interface{ GetRegion() string }) (Regional, claims.Region, error) {
	name := claims.Region(q.GetRegion())
	if err := name.Validate(); err != nil {
		return nil, "", refusal(err)
	}
	r, err := s.regional()
	return r, name, err
}

// AddRegion takes a region into the next epoch.
func (s *IdentityServer) AddRegion(ctx context.Context, q *coordinatorv1.AddRegionRequest) (*coordinatorv1.AddRegionResponse, error) {
	r, name, err := s.named(q)
	if err != nil {
		return nil, err
	}
	o, err := r.AddRegion(ctx, name)
	if err != nil {
		return nil, regionsFailed(err)
	}
	return &coordinatorv1.AddRegionResponse{Epoch: o.Epoch.Number, Claims: o.Recovered.Claims}, nil
}

// PrepareRegion goes on with the preparation of a region.
func (s *IdentityServer) PrepareRegion(ctx context.Context, q *coordinatorv1.PrepareRegionRequest) (*coordinatorv1.PrepareRegionResponse, error) {
	r, name, err := s.named(q)
	if err != nil {
		return nil, err
	}
	p, all, err := r.PrepareRegion(ctx, name)
	if err != nil {
		return nil, regionsFailed(err)
	}
	return &coordinatorv1.PrepareRegionResponse{Preparation: preparationMessage(p), Done: all}, nil
}

func preparationMessage(p regions.Preparation) *coordinatorv1.RegionPreparation {
	return &coordinatorv1.RegionPreparation{Batches: p.Batches, Left: p.Left, FoldedBatches: p.FoldedBatches, AcceptedAtUnixNs: p.AcceptedAt, UpdatedAtUnixNs: p.UpdatedAt}
}

// RetireRegion takes a region out for good.
func (s *IdentityServer) RetireRegion(ctx context.Context, q *coordinatorv1.RetireRegionRequest) (*coordinatorv1.RetireRegionResponse, error) {
	r, name, err := s.named(q)
	if err != nil {
		return nil, err
	}
	o, err := r.RetireRegion(ctx, name, q.GetForget())
	if err != nil {
		return nil, regionsFailed(err)
	}
	return &coordinatorv1.RetireRegionResponse{Epoch: o.Epoch.Number, Claims: o.Recovered.Claims}, nil
}

// DissolveLinearizer ends the linearizer.
func (s *IdentityServer) DissolveLinearizer(ctx context.Context, q *coordinatorv1.DissolveLinearizerRequest) (*coordinatorv1.DissolveLinearizerResponse, error) {
	r, name, err := s.named(q)
	if err != nil {
		return nil, err
	}
	rec, err := r.Dissolve(ctx, name)
	if err != nil {
		return nil, regionsFailed(err)
	}
	return &coordinatorv1.DissolveLinearizerResponse{Epoch: rec.Number}, nil
}

// traceAfter is how long after a known time journals are searched, where a request does not say.
const traceAfter = 15 * time.Minute

// NotARegion is what a trace calls the place of claims, beside the names of regions.
const NotARegion = "etcd"

// TraceIdentity reads every record of identities.
func (s *IdentityServer) TraceIdentity(ctx context.Context, q *coordinatorv1.TraceIdentityRequest) (*coordinatorv1.TraceIdentityResponse, error) {
	find := trace.Query{
		Identity: identity.Batch{Agent: q.GetAgentId(), Boot: q.GetBootId(), SeqStart: q.GetSeqStart(), SeqEnd: q.GetSeqEnd()},
		After:    time.Duration(min(cmp.Or(q.GetJournalAfterNs(), uint64(traceAfter)), math.MaxInt64)),
	}
	if err := find.Identity.Validate(); err != nil {
		return nil, refusal(fmt.Errorf("%w: %w", claims.ErrInvalid, err))
	}
	if find.After > trace.MaxAfter {
		return nil, refusal(fmt.Errorf("%w: journals are searched %s after a known time, at most %s", claims.ErrInvalid, find.After, trace.MaxAfter))
	}
	r, err := s.regional()
	if err != nil {
		return nil, err
	}
	out := &coordinatorv1.TraceIdentityResponse{Unread: map[string]string{}}
	// What the buckets have is worth showing while etcd does not answer.
	res := s.lookUp(ctx, find.Identity)
	switch {
	case res.Err == nil:
		find.Claims, out.Claims = res.Answer.Claims, encodeList(res.Answer)
	case !errors.Is(res.Err, claims.ErrDissolved): // then there are no claims, and never will be
		out.Unread[NotARegion] = res.Err.Error()
	}
	found := r.Trace(ctx, find)
	for _, f := range found.Records {
		p := &coordinatorv1.IdentityRecord{
			Region: string(f.Region), Key: f.Key, Kind: f.Kind, FrameSha256: f.Hash, Epoch: f.Stamp.Epoch, Fence: f.Stamp.Fence, AtUnixNs: f.At,
			Identity: encodeBatch(f.Identity), HomeRegion: string(f.Home), Outcome: f.Outcome,
		}
		if f.Err != nil {
			p.Error = f.Err.Error()
		}
		out.Records = append(out.Records, p)
	}
	for _, j := range found.Journals {
		p := &coordinatorv1.JournalSearch{Region: string(j.Region), FromUnixNs: j.From, ToUnixNs: j.To, Files: uint32(j.Files), Segments: uint32(j.Segments)}
		if j.Err != nil {
			p.Error = j.Err.Error()
		}
		out.Journals = append(out.Journals, p)
	}
	for _, u := range found.Unread {
		out.Unread[string(u.Region)] = u.Err.Error()
	}
	return out, nil
}
