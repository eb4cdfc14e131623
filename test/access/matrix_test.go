package access

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// verdict is what became of a call: in, unknown (who calls), denied.
const (
	in      = "in"
	unknown = "unknown"
	denied  = "denied"
)

// want is the table's verdict on a token.
func want(roles, token string) string {
	switch {
	case roles == open:
		return in
	case token == "" || token == "stranger":
		return unknown
	case slices.Contains(strings.Fields(roles), token):
		return in
	}
	return denied
}

// everybody are the principals, a token of nobody, and none.
func everybody() []string { return append(slices.Clone(tokens), "stranger", "") }

// TestEveryMethodHasALine: by the descriptors of everything that the services link in.
func TestEveryMethodHasALine(t *testing.T) {
	left := maps.Clone(methods)
	ours := 0
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			if !strings.HasPrefix(string(s.FullName()), "lightmetrics.") && !strings.HasPrefix(string(s.FullName()), "grpc.") {
				continue // etcd's
			}
			for j := range s.Methods().Len() {
				m := fmt.Sprintf("/%s/%s", s.FullName(), s.Methods().Get(j).Name())
				if _, ok := methods[m]; !ok {
					t.Errorf("%s has no line in the table", m)
				}
				delete(left, m)
				ours++
			}
		}
		return true
	})
	if len(left) > 0 || ours < 50 {
		t.Errorf("%d methods; no such methods: %v", ours, slices.Sorted(maps.Keys(left)))
	}
}

// TestMatrix starts every service, and asks each for each of its methods and routes with
// each role alone.
func TestMatrix(t *testing.T) {
	sys := start(t)
	t.Run("methods", func(t *testing.T) { sys.checkMethods(t) })
	t.Run("routes", func(t *testing.T) { sys.checkRoutes(t) })
}

func (sys system) checkMethods(t *testing.T) {
	asked := 0
	for pkg, addr := range sys.grpc {
		for _, token := range everybody() {
			c := rpc.ClientConfig{Token: config.Secret(token), TokenOverPlaintext: true}
			conn, err := rpc.Dial(addr, c)
			must(t, err)
			for m, roles := range methods {
				if !strings.HasPrefix(m, "/"+pkg+".") && !strings.HasPrefix(m, "/grpc.") {
					continue
				}
				asked++
				if got := call(t, conn, m); got != want(roles, token) {
					t.Errorf("%s as %q: %s, the table says %s", m, token, got, want(roles, token))
				}
			}
			must(t, conn.Close())
		}
	}
	t.Logf("%d calls", asked)
}

// TestRegions asks the coordinator for each method that is called for a region, as one who may act for any and one who is bound to
// another.
func TestRegions(t *testing.T) {
	addr := start(t).grpc["lightmetrics.coordinator.v1"]
	left := maps.Clone(regional)
	for _, token := range []string{"worker", bound} {
		conn, err := rpc.Dial(addr, rpc.ClientConfig{Token: config.Secret(token), TokenOverPlaintext: true})
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		c := coordinatorv1.NewIdentityServiceClient(conn)
		for _, region := range []string{"eu", "us"} {
			calls := map[string]func() error{
				coordinatorv1.IdentityService_ChangeClaims_FullMethodName: func() error {
					_, err := c.ChangeClaims(t.Context(), &coordinatorv1.ChangeClaimsRequest{Changes: []*coordinatorv1.ClaimRequest{{Region: region}}})
					return err
				},
				coordinatorv1.IdentityService_ScanClaims_FullMethodName: func() error {
					_, err := c.ScanClaims(t.Context(), &coordinatorv1.ScanClaimsRequest{Region: region, States: []coordinatorv1.ClaimState{1}})
					return err
				},
			}
			for m := range regional {
				fn, there := calls[m]
				if !there {
					t.Fatalf("%s is not asked for", m)
				}
				delete(left, m)
				err := fn()
				if got, want := rpc.Reason(err) == rpc.ReasonRegionDenied && status.Code(err) == codes.PermissionDenied, token == bound && region != "eu"; got != want {
					t.Errorf("%s for %s as %s: %v", m, region, token, err)
				}
			}
		}
	}
	if len(left) > 0 {
		t.Errorf("not asked for: %v", left)
	}
	// A method of the linearizer with a region in its request, and the role worker, is one of these.
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			if s.FullName() != "lightmetrics.coordinator.v1.IdentityService" {
				continue
			}
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				name := fmt.Sprintf("/%s/%s", s.FullName(), m.Name())
				named := m.Input().Fields().ByName("region") != nil || m.Input().Fields().ByName("changes") != nil
				if _, listed := regional[name]; named && strings.Contains(methods[name], "worker") != listed {
					t.Errorf("%s is called for a region, and is listed so: %v", name, listed)
				}
			}
		}
		return true
	})
}

// call makes a call with an empty message, as every kind of method takes one.
func call(t testing.TB, conn *grpc.ClientConn, method string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	st, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	must(t, err)
	_ = st.SendMsg(&emptypb.Empty{}) // RecvMsg has the reason
	_ = st.CloseSend()
	switch err = st.RecvMsg(&emptypb.Empty{}); {
	case status.Code(err) == codes.Unauthenticated:
		return unknown
	case status.Code(err) == codes.PermissionDenied && rpc.Reason(err) == rpc.ReasonForbidden:
		return denied
	case status.Code(err) == codes.DeadlineExceeded, status.Code(err) == codes.Unimplemented && !strings.HasPrefix(method, "/grpc."):
		t.Errorf("%s: %v", method, err)
	}
	return in
}

type indexRoute struct {
	Method, Path string
	Roles        []string
}

var wildcard = regexp.MustCompile(`\{[^}]*\}`)

func (sys system) checkRoutes(t *testing.T) {
	for name, addr := range sys.http {
		table := maps.Clone(routes[name])
		maps.Copy(table, admin)
		left := maps.Clone(table)
		for _, r := range index(t, addr) {
			key := r.Method + " " + r.Path
			roles, ok := table[key]
			if !ok {
				t.Errorf("%s: %s has no line in the table", name, key)
				continue
			}
			delete(left, key)
			if got := strings.Join(r.Roles, " "); got != roles && !(roles == open && got == "") {
				t.Errorf("%s: the index says of %s %q, the table %q", name, key, got, roles)
			}
			for _, token := range everybody() {
				if w := want(roles, token); w != in || !strings.HasPrefix(r.Path, "/debug/pprof/") { // profiles take half a minute
					if got := fetch(t, addr, r, token); got != w {
						t.Errorf("%s: %s as %q: %s, the table says %s", name, key, token, got, w)
					}
				}
			}
		}
		if len(left) > 0 {
			t.Errorf("%s: no such routes: %v", name, slices.Sorted(maps.Keys(left)))
		}
	}
	for name := range routes {
		if sys.http[name] == "" {
			t.Errorf("%s was not started", name)
		}
	}
}

func index(t testing.TB, addr string) []indexRoute {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/")
	must(t, err)
	defer resp.Body.Close()
	var d struct{ Routes []indexRoute }
	must(t, json.NewDecoder(resp.Body).Decode(&d))
	if resp.StatusCode != http.StatusOK || len(d.Routes) == 0 {
		t.Fatalf("%s/: %s, %+v", addr, resp.Status, d)
	}
	return d.Routes
}

func fetch(t testing.TB, addr string, r indexRoute, token string) string {
	t.Helper()
	method, path := r.Method, wildcard.ReplaceAllString(r.Path, "x")
	if method == "" {
		method, path = http.MethodGet, path+"labels"
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, nil)
	must(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	switch {
	case resp.StatusCode == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") == `Bearer realm="lightmetrics"`:
		return unknown
	case resp.StatusCode == http.StatusForbidden && json.Valid(body):
		return denied
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		t.Errorf("%s %s as %q: %s: %s", method, path, token, resp.Status, body)
	}
	return in
}
