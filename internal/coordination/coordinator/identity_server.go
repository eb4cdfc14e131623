package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// MaxChanges of one call.
const MaxChanges = 128

// Claimer does operations on claims: a linearizer.
type Claimer interface {
	Do(context.Context, []claims.Op) []linearizer.Result
}

// Scanner reads claims of all boots, page by page: a linearizer.
type Scanner interface {
	Scan(context.Context, claims.Scan) (claims.Page, error)
}

// IdentityServer serves IdentityService over a linearizer.
type IdentityServer struct {
	coordinatorv1.UnimplementedIdentityServiceServer
	claimer Claimer
	now     func() time.Time
}

// NewIdentityServer makes a server.
func NewIdentityServer(c Claimer, now func() time.Time) *IdentityServer {
	return &IdentityServer{claimer: c, now: now}
}

// Register adds it to a gRPC server.
func (s *IdentityServer) Register(r grpc.ServiceRegistrar) {
	coordinatorv1.RegisterIdentityServiceServer(r, s)
}

// ChangeClaims makes changes. One that is refused does not keep others from being made.
func (s *IdentityServer) ChangeClaims(ctx context.Context, r *coordinatorv1.ChangeClaimsRequest) (*coordinatorv1.ChangeClaimsResponse, error) {
	if n := len(r.GetChanges()); n == 0 || n > MaxChanges {
		return nil, refusal(fmt.Errorf("%w: %d changes, not 1 to %d", claims.ErrInvalid, n, MaxChanges))
	}
	// Before anything is done: a call is of one caller, who acts for one region.
	for _, c := range r.GetChanges() {
		if err := actsFor(ctx, coordinatorv1.IdentityService_ChangeClaims_FullMethodName, c.GetRegion()); err != nil {
			return nil, err
		}
	}
	out := &coordinatorv1.ChangeClaimsResponse{Results: make([]*coordinatorv1.ClaimResult, len(r.GetChanges()))}
	var ops []claims.Op
	var at []int
	for i, c := range r.GetChanges() {
		op, err := decodeOp(c)
		if err != nil {
			out.Results[i] = encodeResult(linearizer.Result{Err: err})
			continue
		}
		op.At = max(s.now().UnixNano(), 0)
		ops, at = append(ops, op), append(at, i)
	}
	if len(ops) > 0 {
		for i, res := range s.claimer.Do(ctx, ops) {
			out.Results[at[i]] = encodeResult(res)
		}
	}
	return out, nil
}

// actsFor refuses a caller that is bound to other regions. One that was not authenticated is nobody's: the server asks for no
// credentials.
func actsFor(ctx context.Context, method, region string) error {
	p, known := rpc.PrincipalFrom(ctx)
	if !known {
		return nil
	}
	return rpc.Status(rpc.AuthorizeRegion(p, method, region))
}

// ListClaims reads what meets a range.
func (s *IdentityServer) ListClaims(ctx context.Context, r *coordinatorv1.ListClaimsRequest) (*coordinatorv1.ListClaimsResponse, error) {
	res := s.lookUp(ctx, identity.Batch{Agent: r.GetAgentId(), Boot: r.GetBootId(), SeqStart: r.GetSeqStart(), SeqEnd: r.GetSeqEnd()})
	if res.Err != nil {
		return nil, refusal(res.Err)
	}
	return encodeList(res.Answer), nil
}

// lookUp asks the linearizer what meets a range.
func (s *IdentityServer) lookUp(ctx context.Context, id identity.Batch) linearizer.Result {
	op := claims.Op{Kind: claims.DoLookup, Identity: id}
	if err := op.Validate(); err != nil {
		return linearizer.Result{Err: err}
	}
	return s.claimer.Do(ctx, []claims.Op{op})[0]
}

func encodeList(a claims.Answer) *coordinatorv1.ListClaimsResponse {
	out := &coordinatorv1.ListClaimsResponse{Spans: encodeSpans(a.Spans), Epoch: a.Epoch}
	for _, c := range a.Claims {
		out.Claims = append(out.Claims, encodeIdentityClaim(c))
	}
	return out
}

// defaultScan is how many claims a page reads where the request does not say.
const defaultScan = 500

// ScanClaims reads a page of the claims of a region. A claimer that is no Scanner refuses it as unavailable.
func (s *IdentityServer) ScanClaims(ctx context.Context, r *coordinatorv1.ScanClaimsRequest) (*coordinatorv1.ScanClaimsResponse, error) {
	now := max(s.now().UnixNano(), 0)
	q := claims.Scan{
		Home: claims.Region(r.GetRegion()), After: r.GetPageToken(),
		Limit: int(cmp.Or(r.GetPageSize(), defaultScan)), Before: now - int64(min(r.GetOlderThanNs(), uint64(now))),
	}
	if err := q.Home.Validate(); err != nil {
		return nil, refusal(err)
	}
	if err := actsFor(ctx, coordinatorv1.IdentityService_ScanClaims_FullMethodName, r.GetRegion()); err != nil {
		return nil, err
	}
	for _, st := range r.GetStates() {
		// A number that does not fit must not become another state.
		q.States = append(q.States, claims.State(max(min(st, math.MaxUint8), 0)))
	}
	scanner, ok := s.claimer.(Scanner)
	if !ok {
		return nil, refusal(fmt.Errorf("scan claims: %w: this coordinator has none", claims.ErrUnavailable))
	}
	p, err := scanner.Scan(ctx, q)
	if err != nil {
		return nil, refusal(err)
	}
	out := &coordinatorv1.ScanClaimsResponse{NextPageToken: p.Next, Read: uint32(p.Read), Unreadable: uint32(p.Unreadable), Epoch: p.Epoch}
	for _, c := range p.Claims {
		out.Claims = append(out.Claims, encodeIdentityClaim(c))
	}
	return out, nil
}

// encodeResult is the end of one change. An error that the core does not name may have changed something.
func encodeResult(r linearizer.Result) *coordinatorv1.ClaimResult {
	if r.Err != nil {
		i := slices.IndexFunc(claimRefusals, func(f refused) bool { return errors.Is(r.Err, f.sentinel) })
		if i < 0 {
			i = 0
		}
		return &coordinatorv1.ClaimResult{Reason: claimRefusals[i].reason, Message: r.Err.Error()}
	}
	a := r.Answer
	return &coordinatorv1.ClaimResult{Outcome: claimOutcomes[a.Outcome], Epoch: a.Epoch, Claim: encodeIdentityClaim(a.Claim)}
}
