package coordinator

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish/refstest"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// guarded is a coordinator with TLS and a file of principals.
type guarded struct {
	*running
	ca   *authority
	file string
}

func guard(t *testing.T, cfg Config, mode, principals string) *guarded {
	t.Helper()
	g := &guarded{ca: newAuthority(t)}
	g.file = filepath.Join(g.ca.dir, "principals.yaml")
	g.write(t, principals)
	cert, key := g.ca.issue("coordinator")
	cfg.TLS = rpc.ServerTLS{CertFile: cert, KeyFile: key}
	if mode == rpc.AuthMTLS {
		cfg.TLS.ClientCAFile = g.ca.file
	}
	cfg.Auth = rpc.AuthConfig{Mode: mode, PrincipalsFile: g.file}
	g.running = start(t, cfg, nil)
	return g
}

// write replaces the principals; {x} is the hash of token x.
func (g *guarded) write(t *testing.T, principals string) {
	t.Helper()
	for _, token := range []string{"work", "operate", "read", "nothing", "fresh", "other"} {
		sum := sha256.Sum256([]byte(token))
		principals = strings.ReplaceAll(principals, "{"+token+"}", hex.EncodeToString(sum[:]))
	}
	must(t, os.WriteFile(g.file+".new", []byte("principals:\n"+principals), 0o600))
	must(t, os.Rename(g.file+".new", g.file))
}

func (g *guarded) as(token string) rpc.ClientConfig {
	return rpc.ClientConfig{TLS: tlsfile.Client{Enabled: true, CAFile: g.ca.file}, Token: config.Secret(token)}
}

func (g *guarded) dial(c rpc.ClientConfig) *grpc.ClientConn {
	g.t.Helper()
	conn, err := rpc.Dial(g.addr(), c)
	must(g.t, err)
	g.t.Cleanup(func() { conn.Close() })
	return conn
}

// worker owns shards of b with these credentials.
func (g *guarded) worker(b *book, name string, c rpc.ClientConfig) *worker {
	wc := coordinator.DefaultConfig()
	wc.Addresses, wc.WorkerID, wc.Client = []string{g.addr()}, name, c
	return b.workWith(wc)
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// register sends a worker's first message and gives what the coordinator says to it.
func register(t *testing.T, conn *grpc.ClientConn, worker string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	stream, err := coordinatorv1.NewOwnershipServiceClient(conn).Own(ctx)
	must(t, err)
	_ = stream.Send(&coordinatorv1.OwnRequest{Message: &coordinatorv1.OwnRequest_Register{ // Recv has the reason
		Register: &coordinatorv1.RegisterWorker{Kind: "rollup", WorkerId: worker, Shards: 4}}})
	_, err = stream.Recv()
	return err
}

// denied reports whether err is a refusal that names method and role.
func denied(err error, method string) bool {
	if status.Code(err) != codes.PermissionDenied || rpc.Reason(err) != rpc.ReasonForbidden {
		return false
	}
	for _, d := range status.Convert(err).Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			return i.GetMetadata()["method"] == method && i.GetMetadata()["role"] != "" && i.GetMetadata()["principal"] != ""
		}
	}
	return false
}

const everybody = `
- {name: worker, token_sha256: {work}, roles: [worker], workers: ["w*"]}
- {name: operator, token_sha256: {operate}, roles: [operator]}
- {name: reader, token_sha256: {read}, roles: [reader]}
- {name: nobody, token_sha256: {nothing}, agents: ["*"], roles: [sender]}
- {name: other, token_sha256: {other}, roles: [worker], workers: ["other-?"]}
`

// TestRoles: who has the role gets as far as the method, who has not is reported which he needs;
// over gRPC with every method, and over JSON.
func TestRoles(t *testing.T) {
	t.Parallel()
	g := guard(t, quick(t.TempDir()), rpc.AuthToken, everybody)
	ctx := bounded(t)
	may := map[string][]string{ // beside those of workers alone
		"Drain": {"operate"}, "ListShards": {"read", "operate"}, "ListWorkers": {"read", "operate"}, "ListMoves": {"read", "operate"},
		"SendMessage": {"work", "operate"}, "RedriveDeadLetter": {"operate"}, "CreateJob": {"work", "operate"}, "ClaimJob": {"work", "operate"},
		"CheckpointJob": {"work", "operate"}, "ReleaseJob": {"work", "operate"}, "TouchJob": {"work", "operate"}, "CompleteJob": {"work", "operate"},
		"ForgetLog": {"work", "operate"}, "ListRegions": {"read", "operate"}, "AddRegion": {"operate"}, "PrepareRegion": {"operate"}, "RetireRegion": {"operate"}, "DissolveLinearizer": {"operate"}, "TraceIdentity": {"read", "operate"},
	}
	for _, m := range []string{"ListDeadLetters", "GetDepth", "GetJob", "ListJobs", "GetLog", "ListLogs", "GetEpoch", "GetRefRecords", "ListRefRecords", "ListClaims"} {
		may[m] = []string{"read", "work", "operate"}
	}
	calls := 0
	for _, d := range []*grpc.ServiceDesc{&coordinatorv1.OwnershipService_ServiceDesc, &coordinatorv1.WorkService_ServiceDesc, &coordinatorv1.RefsService_ServiceDesc, &coordinatorv1.IdentityService_ServiceDesc} {
		for _, token := range []string{"work", "operate", "read", "nothing", "guess", ""} {
			conn := g.dial(g.as(token))
			for _, m := range d.Methods {
				method := "/" + d.ServiceName + "/" + m.MethodName
				who, ok := may[m.MethodName]
				if !ok {
					who = []string{"work"}
				}
				err := conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
				calls++
				switch {
				case token == "guess" || token == "":
					if status.Code(err) != codes.Unauthenticated {
						t.Errorf("%s with token %q: %v", method, token, err)
					}
				case slices.Contains(who, token):
					if c := status.Code(err); rpc.Reason(err) == rpc.ReasonForbidden || c == codes.Unauthenticated || c == codes.Unimplemented {
						t.Errorf("%s as %s: %v", method, token, err)
					}
				case !denied(err, method):
					t.Errorf("%s as %s: %v", method, token, err)
				}
			}
		}
	}
	if calls < 6*33 {
		t.Errorf("only %d calls", calls)
	}
	own := coordinatorv1.OwnershipService_Own_FullMethodName
	for _, token := range []string{"operate", "read", "nothing"} {
		if err := register(t, g.dial(g.as(token)), "w0"); !denied(err, own) {
			t.Errorf("Own as %s: %v", token, err)
		}
	}
	// Worker names are bound.
	for token, names := range map[string][2]string{"work": {"w0", "other-1"}, "other": {"other-1", "w0"}} {
		must(t, register(t, g.dial(g.as(token)), names[0]))
		if err := register(t, g.dial(g.as(token)), names[1]); !denied(err, own) || !strings.Contains(err.Error(), names[1]) {
			t.Errorf("%s registers as %s: %v", token, names[1], err)
		}
	}
	g.overJSON(t)
}

// json makes a request of the JSON API.
func (g *guarded) json(t *testing.T, method, path, token string) (int, string) {
	t.Helper()
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(g.ca.file)
	must(t, err)
	pool.AppendCertsFromPEM(pem)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(bounded(t), method, "https://"+g.HTTPAddr()+path, strings.NewReader("{}"))
	must(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := tr.RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(b)
}

func (g *guarded) overJSON(t *testing.T) {
	drain := "/v1/ownership/rollup/workers/w7:drain"
	for _, c := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", "/v1/ownership/rollup/shards", "read", 200}, {"GET", "/v1/ownership/rollup/shards", "operate", 200},
		{"GET", "/v1/ownership/rollup/shards", "nothing", 403}, {"GET", "/v1/ownership/rollup/workers", "work", 403},
		{"GET", "/v1/ownership/rollup/shards", "", 401}, {"GET", "/v1/ownership/rollup/shards", "guess", 401},
		{"POST", drain, "read", 403}, {"POST", drain, "work", 403}, {"POST", drain, "nothing", 403}, {"POST", drain, "operate", 404},
		{"GET", "/v1/jobs", "read", 200}, {"GET", "/v1/jobs", "nothing", 403}, {"GET", "/v1/logs", "nothing", 403},
		{"GET", "/v1/topics/x/depth", "read", 200}, {"GET", "/v1/topics/x/dead-letters", "nothing", 403},
	} {
		code, body := g.json(t, c.method, c.path, c.token)
		if code != c.want || c.want == 403 && !strings.Contains(body, `"role"`) {
			t.Errorf("%s %s as %q: %d: %s", c.method, c.path, c.token, code, body)
		}
	}
}

// TestRoleIsLost: at a reload a worker's principal loses its role while its stream runs.
// It loses its shards by its lease, can't continue, can't publish, and comes back with the role.
func TestRoleIsLost(t *testing.T) {
	t.Parallel()
	g := guard(t, brief(t.TempDir()), rpc.AuthToken, everybody)
	b := newBook(t, 4)
	g.worker(b, "w0", g.as("work"))
	g.worker(b, "other-1", g.as("other"))
	until(t, "both to own", func() bool { return b.balanced("w0", "other-1") })
	refs := coordinator.NewRefs(g.dial(g.as("work")), 0)
	if _, err := refs.Epoch(bounded(t)); err != nil && !errors.Is(err, publish.ErrNoRecord) {
		t.Fatal(err)
	}

	// Unknown roles, entries of nothing, a cut file: what was, stays.
	for _, bad := range []string{strings.Replace(everybody, "roles: [worker]", "roles: [wroker]", 1), "- null\n", "- {}\n" + everybody, ""} {
		g.write(t, bad)
		if err := g.ReloadPrincipals(); err == nil {
			t.Errorf("taken: %s", bad)
		}
	}
	must(t, register(t, g.dial(g.as("work")), "w1"))

	g.write(t, strings.Replace(everybody, `roles: [worker], workers: ["w*"]`, "roles: [reader]", 1))
	until(t, "the other one to own everything", func() bool { return b.balanced("other-1") })
	if err := register(t, g.dial(g.as("work")), "w0"); !denied(err, coordinatorv1.OwnershipService_Own_FullMethodName) {
		t.Errorf("registers without the role: %v", err)
	}
	// Nothing is published without the references of what it names.
	err := refs.Add(bounded(t), "00000000000000000000000000000000", publish.Addition{Txn: refstest.Txn(1), Keys: []string{"k"}})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("adds references without the role: %v", err)
	}
	g.write(t, everybody)
	until(t, "both to own, again", func() bool { return b.balanced("w0", "other-1") })
}

// TestTokenIsSwapped: while streams run, tokens change. Two entries of one name hand over
// without losing a shard; a token that is taken out ends its stream.
func TestTokenIsSwapped(t *testing.T) {
	t.Parallel()
	g := guard(t, quick(t.TempDir()), rpc.AuthToken, everybody)
	ctx := bounded(t)
	stream, err := coordinatorv1.NewOwnershipServiceClient(g.dial(g.as("work"))).Own(ctx)
	must(t, err)
	must(t, stream.Send(&coordinatorv1.OwnRequest{Message: &coordinatorv1.OwnRequest_Register{
		Register: &coordinatorv1.RegisterWorker{Kind: "rollup", WorkerId: "w0", Shards: 4}}}))
	m, err := stream.Recv()
	must(t, err)
	token := m.GetRegistered().GetSession()
	renew := func() error {
		if err := stream.Send(&coordinatorv1.OwnRequest{Message: &coordinatorv1.OwnRequest_KeepAlive{KeepAlive: &coordinatorv1.KeepAlive{}}}); err != nil {
			_, err = stream.Recv()
			return err
		}
		for {
			m, err := stream.Recv()
			if err != nil || m.GetKeptAlive() != nil {
				return err
			}
		}
	}
	must(t, renew())

	both := everybody + "- {name: worker, token_sha256: {fresh}, roles: [worker], workers: [\"w*\"]}\n"
	g.write(t, both)
	must(t, g.ReloadPrincipals())
	must(t, renew()) // the old one holds
	next, err := coordinatorv1.NewOwnershipServiceClient(g.dial(g.as("fresh"))).Own(ctx)
	must(t, err)
	must(t, next.Send(&coordinatorv1.OwnRequest{Message: &coordinatorv1.OwnRequest_Register{
		Register: &coordinatorv1.RegisterWorker{Kind: "rollup", WorkerId: "w0", Shards: 4, Session: token}}}))
	m, err = next.Recv()
	must(t, err)
	if !m.GetRegistered().GetContinued() {
		t.Errorf("the same principal with another token: %v", m)
	}

	g.write(t, strings.Replace(both, "{name: worker, token_sha256: {work},", "{name: worker, token_sha256: "+fmt.Sprintf("%064d", 0)+",", 1))
	must(t, g.ReloadPrincipals())
	if err := renew(); status.Code(err) != codes.Unauthenticated || rpc.Reason(err) != rpc.ReasonUnauthenticated {
		t.Errorf("renewed with a token that is gone: %v", err)
	}
	stream = next
	must(t, renew())
	// Rights that only change end a stream for another try.
	g.write(t, strings.ReplaceAll(both, `workers: ["w*"]`, `workers: ["w?"]`))
	must(t, g.ReloadPrincipals())
	if err := renew(); status.Code(err) != codes.Unavailable || rpc.Reason(err) != rpc.ReasonCredentialsChanged {
		t.Errorf("renewed with other rights: %v", err)
	}
}

// TestCertificatesAreTheWorkers: mTLS; the subject says who it is.
func TestCertificatesAreTheWorkers(t *testing.T) {
	t.Parallel()
	g := guard(t, quick(t.TempDir()), rpc.AuthMTLS, `
- {name: rollups, tls_name: rollup.example, roles: [worker], workers: ["w*"]}
- {name: operator, tls_name: operator.example, roles: [operator]}
`)
	with := func(ca *authority, name string) rpc.ClientConfig {
		cert, key := ca.issue(name)
		return rpc.ClientConfig{TLS: tlsfile.Client{Enabled: true, CAFile: g.ca.file, CertFile: cert, KeyFile: key}}
	}
	b := newBook(t, 4)
	g.worker(b, "w0", with(g.ca, "rollup.example"))
	until(t, "all shards", func() bool { return b.balanced("w0") })
	list := func(c rpc.ClientConfig) error {
		_, err := coordinatorv1.NewOwnershipServiceClient(g.dial(c)).ListShards(bounded(t), &coordinatorv1.ListShardsRequest{Kind: "rollup"})
		return err
	}
	must(t, list(with(g.ca, "operator.example")))
	if err := list(with(g.ca, "rollup.example")); !denied(err, coordinatorv1.OwnershipService_ListShards_FullMethodName) {
		t.Errorf("a worker lists shards: %v", err)
	}
	if err := list(with(g.ca, "stranger.example")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a certificate that is nobody's: %v", err)
	}
	if err := list(with(newAuthority(t), "operator.example")); status.Code(err) != codes.Unavailable {
		t.Errorf("a certificate of another authority: %v", err)
	}
	if err := register(t, g.dial(with(g.ca, "rollup.example")), "x"); !denied(err, coordinatorv1.OwnershipService_Own_FullMethodName) {
		t.Errorf("a worker under another name: %v", err)
	}
}

// TestPrincipalsOfRegions: with a file of principals, a collector of one region changes no claim for another one, and its rights change
// with the file.
func TestPrincipalsOfRegions(t *testing.T) {
	t.Parallel()
	const file = `
- {name: eu, token_sha256: {work}, roles: [worker], regions: [eu]}
- {name: any, token_sha256: {other}, roles: [worker]}
`
	g := guard(t, quick(t.TempDir()), rpc.AuthToken, file)
	// The coordinator has no regions, so whoever is let in hears that it is of no use.
	want := func(token string, region claims.Region, want error) {
		t.Helper()
		c := coordinator.NewClaims(g.dial(g.as(token)), patience)
		if r := c.Do(bounded(t), []claims.Op{op(claims.DoClaim, 1, "x", region, 1, 0)})[0]; !errors.Is(r.Err, want) {
			t.Errorf("%s for %s: %v, want %v", token, region, r.Err, want)
		}
		if _, err := c.Scan(bounded(t), claims.Scan{Home: region, States: []claims.State{claims.Claimed}, Limit: 1}, 0); !errors.Is(err, want) {
			t.Errorf("%s scans %s: %v, want %v", token, region, err, want)
		}
	}
	want("work", "eu", claims.ErrUnavailable)
	want("work", "us", claims.ErrDenied)
	want("other", "us", claims.ErrUnavailable)
	want("nothing", "eu", claims.ErrDenied)
	g.write(t, strings.Replace(file, "regions: [eu]", "regions: [us]", 1))
	until(t, "the file to be read", func() bool {
		r := coordinator.NewClaims(g.dial(g.as("work")), patience).Do(bounded(t), []claims.Op{op(claims.DoClaim, 1, "x", "eu", 1, 0)})[0]
		return errors.Is(r.Err, claims.ErrDenied)
	})
	want("work", "us", claims.ErrUnavailable)
}

// TestPrincipalsAreChecked: --config.check looks into the file of principals.
func TestPrincipalsAreChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "principals.yaml")
	check := func(principals string) error {
		must(t, os.WriteFile(file, []byte(principals), 0o600))
		cmd := Command()
		cmd.SetOut(io.Discard)
		cmd.SetArgs([]string{"--config.check", "--coordinator.auth.mode", rpc.AuthToken, "--coordinator.auth.principals_file", file})
		return cmd.ExecuteContext(t.Context())
	}
	must(t, check("principals: [{name: a, tls_name: b, roles: [worker, operator, reader], workers: [w]}]"))
	deployed, err := os.ReadFile("../../deploy/principals/principals.yaml")
	must(t, err)
	must(t, check(string(deployed)))
	deployed, err = os.ReadFile("../../deploy/principals/regions.yaml")
	must(t, err)
	must(t, check(string(deployed)))
	for _, bad := range []string{"principals: [null]", "principals: [{}]", "principals: [{name: a, tls_name: b, roles: [king]}]", "principals:", ""} {
		if err := check(bad); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
