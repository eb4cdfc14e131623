package coordinator

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// A worker that is bound to another region may do nothing to this one's shards, pending work and references. Its own region's, workers
// that are bound to none, operators and readers are let pass, and so is everybody where the coordinator is of no region.
func TestPrincipalsOfOtherRegions(t *testing.T) {
	t.Parallel()
	const principals = `
- {name: worker, token_sha256: {work}, roles: [worker], workers: ["*"], regions: [us]}
- {name: operator, token_sha256: {operate}, roles: [operator, worker], workers: ["*"], regions: [eu]}
- {name: reader, token_sha256: {read}, roles: [reader, worker], workers: ["*"], regions: [eu]}
- {name: any, token_sha256: {fresh}, roles: [worker], workers: ["*"]}
- {name: other, token_sha256: {other}, roles: [worker], workers: ["*"], regions: [eu, asia]}
`
	// beside worker, of those who are bound to other regions
	roles := map[string][]rpc.Role{"operate": {rpc.RoleOperator}, "read": {rpc.RoleReader}, "other": nil}
	refused := func(err error) bool {
		return status.Code(err) == codes.PermissionDenied && rpc.Reason(err) == rpc.ReasonRegionDenied
	}
	for _, region := range []string{"us", ""} {
		cfg := quick(t.TempDir())
		cfg.Region = region
		g := guard(t, cfg, rpc.AuthToken, principals)
		ctx := bounded(t)
		for _, token := range []string{"work", "operate", "read", "fresh", "other"} {
			conn := g.dial(g.as(token))
			_, elsewhere := roles[token]
			elsewhere = elsewhere && region != ""
			for _, d := range []*grpc.ServiceDesc{&coordinatorv1.OwnershipService_ServiceDesc, &coordinatorv1.WorkService_ServiceDesc, &coordinatorv1.RefsService_ServiceDesc} {
				for _, m := range d.Methods {
					method := "/" + d.ServiceName + "/" + m.MethodName
					bound := elsewhere && slices.Contains(access[method], rpc.RoleWorker) && !slices.ContainsFunc(roles[token], func(r rpc.Role) bool { return slices.Contains(access[method], r) })
					if err := conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{}); refused(err) != bound || bound && !strings.Contains(err.Error(), "us") {
						t.Errorf("region %q, %s as %s: %v", region, method, token, err)
					}
				}
			}
			if err := register(t, conn, "w-"+token); refused(err) != elsewhere {
				t.Errorf("region %q, Own as %s: %v", region, token, err)
			}
		}
		// So over JSON, whose calls pass no interceptor of gRPC.
		if region != "" {
			for token, want := range map[string]int{"work": http.StatusOK, "operate": http.StatusOK, "read": http.StatusOK, "fresh": http.StatusOK, "other": http.StatusForbidden} {
				if code, body := g.json(t, "GET", "/v1/jobs", token); code != want || code == http.StatusForbidden && !strings.Contains(body, "region") {
					t.Errorf("GET /v1/jobs as %s: %d: %s", token, code, body)
				}
			}
		}
		// The linearizer is of all regions.
		if _, err := coordinatorv1.NewIdentityServiceClient(g.dial(g.as("other"))).ListClaims(ctx, &coordinatorv1.ListClaimsRequest{AgentId: "a", BootId: "b", SeqStart: 1, SeqEnd: 2}); rpc.Reason(err) != "CLAIMS_UNAVAILABLE" {
			t.Error(err)
		}
	}
}

func TestTheRegionOfACoordinator(t *testing.T) {
	for region, ok := range map[string]bool{"": true, "eu": true, "us": true, "mars": false, "EU": false} {
		cfg := withRegions(quick(t.TempDir()), threeBuckets())
		if cfg.Region = region; (cfg.Validate() == nil) != ok {
			t.Errorf("%q: %v", region, cfg.Validate())
		}
	}
	cfg := quick(t.TempDir())
	if cfg.Region = "anywhere"; cfg.Validate() != nil {
		t.Error(cfg.Validate())
	}
}
