package service

import (
	"context"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// asked is a QueryService that notes the metadata of its calls.
type asked struct {
	queryv1.UnimplementedQueryServiceServer
	mu  sync.Mutex
	got []metadata.MD
}

func (a *asked) Query(ctx context.Context, _ *queryv1.QueryRequest) (*queryv1.QueryResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got = append(a.got, md)
	return &queryv1.QueryResponse{}, nil
}

// asking is one whose handlers call another service with the contexts that they get.
type asking struct {
	queryv1.UnimplementedQueryServiceServer
	of queryv1.QueryServiceClient
}

func (a asking) Query(ctx context.Context, r *queryv1.QueryRequest) (*queryv1.QueryResponse, error) {
	return a.of.Query(ctx, r)
}

func (a asking) QueryRange(_ *queryv1.QueryRangeRequest, st grpc.ServerStreamingServer[queryv1.QueryRangeResponse]) error {
	_, err := a.of.Query(st.Context(), &queryv1.QueryRequest{})
	return err
}

// TestTokensOfCallersStayHere: a handler behind the JSON API that calls another service sends no header of its caller's on.
func TestTokensOfCallersStayHere(t *testing.T) {
	far := &asked{}
	other := newServer(t, base(), Options{})
	must(t, other.Register(greeterAPI(far)))
	up(t, other)
	conn, err := rpc.Dial(other.GRPCAddr(), rpc.ClientConfig{})
	must(t, err)
	defer conn.Close()
	s := newServer(t, withTokens(t, base()), Options{})
	must(t, s.Register(greeterAPI(asking{of: queryv1.NewQueryServiceClient(conn)})))
	up(t, s)
	for _, path := range []string{"/v1/query?expression=x", "/v1/query_range?expression=x"} {
		if a := get(t, s.HTTPURL()+path, "reader"); a.code != 200 {
			t.Errorf("%s: %d %s", path, a.code, a.body)
		}
	}
	if len(far.got) != 2 {
		t.Fatalf("%d calls arrived", len(far.got))
	}
	for _, md := range far.got {
		for name, values := range md {
			if strings.Contains(name, "authorization") || strings.HasPrefix(name, "x-forwarded") || strings.HasPrefix(name, "grpcgateway") {
				t.Errorf("%s: %q travelled on", name, values)
			}
		}
	}
}
