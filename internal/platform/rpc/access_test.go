package rpc

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// testAccess is a table of a few methods.
var testAccess = Access{
	coordinatorv1.OwnershipService_Own_FullMethodName:          {RoleWorker},
	coordinatorv1.OwnershipService_ListShards_FullMethodName:   {RoleReader, RoleOperator},
	coordinatorv1.WorkService_GetLog_FullMethodName:            {RoleReader},
	coordinatorv1.WorkService_RedriveDeadLetter_FullMethodName: {RoleOperator},
	ingestv1.IngestService_SubmitBatch_FullMethodName:          {RoleSender},
	journalv1.JournalService_WatchJournal_FullMethodName:       {RoleWorker},
}

func TestWhatTheTableMissesIsNobodys(t *testing.T) {
	for _, m := range []string{"", "/", "/lightmetrics.coordinator.v1.WorkService/Purge", "/lightmetrics.coordinator.v2.WorkService/GetJob", "lightmetrics"} {
		var d *DeniedError
		if err := testAccess.Authorize(anonymous, m); !errors.As(err, &d) || d.Method != m || len(d.Roles) > 0 {
			t.Errorf("%q: %v", m, err)
		}
	}
}

// TestNoRoleImpliesAnother: each role alone is let in exactly where it is named.
func TestNoRoleImpliesAnother(t *testing.T) {
	all := maps.Clone(common)
	maps.Copy(all, testAccess)
	for m, rs := range all {
		for _, r := range []Role{RoleSender, RoleReader, RoleOperator, RoleWorker} {
			if err := testAccess.Authorize(Principal{Name: "p", Roles: []Role{r}}, m); (err == nil) != slices.Contains(rs, r) {
				t.Errorf("%s as %s: %v", m, r, err)
			}
		}
		if err := testAccess.Authorize(Principal{Name: "p", Agents: []string{"*"}}, m); err == nil {
			t.Errorf("%s without a role: let in", m)
		}
	}
}

func TestNamesOfWorkers(t *testing.T) {
	own := coordinatorv1.OwnershipService_Own_FullMethodName
	p := Principal{Name: "p", Roles: []Role{RoleWorker}, Workers: []string{"rollup-*", "one"}}
	for id, want := range map[string]bool{"rollup-1": true, "rollup-": true, "one": true, "one2": false, "xrollup-1": false, "": false} {
		err := testAccess.AuthorizeWorker(p, own, id)
		if (err == nil) != want {
			t.Errorf("%q: %v", id, err)
		}
		var d *DeniedError
		if !want && (!errors.As(err, &d) || d.Worker != id || Describe(err).Metadata["role"] != "worker") {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, p := range []Principal{{Name: "no role", Workers: []string{"*"}}, {Name: "no names", Roles: []Role{RoleWorker}}} {
		if err := testAccess.AuthorizeWorker(p, own, "w"); err == nil {
			t.Errorf("%s: let in", p.Name)
		}
	}
	if err := testAccess.AuthorizeWorker(anonymous, own, "w"); err != nil {
		t.Errorf("where nobody is asked: %v", err)
	}
}

// TestRegionsOfPrincipals: whoever is bound to regions acts for these alone, and the refusal says for which it may not.
func TestRegionsOfPrincipals(t *testing.T) {
	const method = "/m"
	bound := Principal{Name: "p", Roles: []Role{RoleWorker}, Regions: []string{"eu", "us-2"}}
	for region, want := range map[string]bool{"eu": true, "us-2": true, "us": false, "us-22": false, "asia": false, "": false, "*": false, "EU": false} {
		err := AuthorizeRegion(bound, method, region)
		if (err == nil) != want {
			t.Errorf("%q: %v", region, err)
		}
		if err := AuthorizeRegion(Principal{Name: "any", Roles: []Role{RoleWorker}}, method, region); err != nil {
			t.Errorf("of one that is bound to none: %v", err)
		}
		if want {
			continue
		}
		if f := Describe(err); f.Code != codes.PermissionDenied || f.Reason != ReasonRegionDenied || f.Metadata["region"] != region || f.Metadata["principal"] != "p" || f.Metadata["method"] != method {
			t.Errorf("%q: %+v", region, f)
		}
	}
	if err := AuthorizeRegion(Principal{Name: "operator", Roles: []Role{RoleOperator}}, method, "eu"); err == nil {
		t.Error("who is no worker acts for a region")
	}
	if err := AuthorizeRegion(anonymous, method, "eu"); err != nil {
		t.Errorf("where nobody is asked: %v", err)
	}
	ps, err := parsePrincipals("f", []byte("principals: [{name: a, tls_name: b, roles: [worker], regions: [eu]}, {name: c, tls_name: d, roles: [worker]}]"))
	if err != nil || !slices.Equal(ps.byName["b"].Regions, []string{"eu"}) || ps.byName["d"].Regions != nil {
		t.Errorf("%+v, %v", ps, err)
	}
	// One whose regions change is another: its streams are opened again.
	if bound.same(Principal{Name: "p", Roles: bound.Roles}) || bound.same(Principal{Name: "p", Roles: bound.Roles, Regions: []string{"eu"}}) || !bound.same(bound) {
		t.Error("other regions are the same")
	}
}

func TestBadRolesAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"unknown role":         "principals: [{name: a, tls_name: b, roles: [admin]}]",
		"everything":           "principals: [{name: a, tls_name: b, roles: [\"*\"]}]",
		"empty role":           "principals: [{name: a, tls_name: b, roles: [\"\"]}]",
		"upper case":           "principals: [{name: a, tls_name: b, roles: [Worker]}]",
		"null role":            "principals: [{name: a, tls_name: b, roles: [null]}]",
		"null worker":          "principals: [{name: a, tls_name: b, roles: [worker], workers: [~]}]",
		"roles as text":        "principals: [{name: a, tls_name: b, roles: {worker: true}}]",
		"workers without role": "principals: [{name: a, tls_name: b, roles: [reader], workers: [w]}]",
		"null region":          "principals: [{name: a, tls_name: b, roles: [worker], regions: [~]}]",
		"no regions":           "principals: [{name: a, tls_name: b, roles: [worker], regions: []}]",
		"regions without role": "principals: [{name: a, tls_name: b, roles: [operator], regions: [eu]}]",
		"region as a pattern":  "principals: [{name: a, tls_name: b, roles: [worker], regions: [\"*\"]}]",
		"upper case region":    "principals: [{name: a, tls_name: b, roles: [worker], regions: [EU]}]",
		"bad worker pattern":   "principals: [{name: a, tls_name: b, roles: [worker], workers: [\"[\"]}]",
		"agents, no sender":    "principals: [{name: a, tls_name: b, agents: [x]}]",
		"agents of a reader":   "principals: [{name: a, tls_name: b, agents: [x], roles: [reader]}]",
		"sender, no agents":    "principals: [{name: a, tls_name: b, roles: [sender, reader]}]",
		"null principal":       "principals: [null]",
		"null beside a good":   "principals: [{name: a, tls_name: b}, null]",
		"null by an alias":     "principals: [{name: &n a, tls_name: b, agents: &x }, *x]",
		"empty principal":      "principals: [{}]",
		"no list":              "principals:",
	} {
		file := principalsFileWith(t, text)
		if err := (AuthConfig{Mode: AuthToken, PrincipalsFile: file}).Check(); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"no roles":    "principals: [{name: a, tls_name: b}]",
		"empty roles": "principals: [{name: a, tls_name: b, roles: [], workers: []}]",
		"roles: null": "principals: [{name: a, tls_name: b, roles: }]",
	} {
		ps, err := parsePrincipals("p", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for m := range testAccess {
			if err := testAccess.Authorize(ps.byName["b"], m); err == nil {
				t.Errorf("%s: %s: let in", name, m)
			}
		}
	}
	if err := (AuthConfig{Mode: AuthToken, PrincipalsFile: t.TempDir() + "/later"}).Check(); err == nil {
		t.Errorf("a file that is not there is taken")
	}
}

func TestARefusedFileIsLoggedOnce(t *testing.T) {
	f := principalsFileWith(t, "principals: [{name: a, token_sha256: "+hashOf("one")+"}]")
	a, err := NewAuthenticator(AuthConfig{Mode: AuthToken, PrincipalsFile: f})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	a.logRefusedFilesTo(slog.New(slog.NewTextHandler(&b, nil)))
	for _, text := range []string{"principals: [null]", "principals: [null]", "principals: [{name: a, roles: [king]}]"} {
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		stamp := time.Unix(int64(1000+len(text)), 0) // the first two are one version
		if err := os.Chtimes(f, stamp, stamp); err != nil {
			t.Fatal(err)
		}
		tlsfile.Refresh()
		if _, err := a.Authenticate("one", nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(b.String(), "\n"); n != 2 {
		t.Errorf("%d lines: %s", n, &b)
	}
}

// watched is a reconciler whose watch sends as long as it is let.
type watched struct {
	journalv1.UnimplementedJournalServiceServer
	next chan struct{}
}

func (w watched) WatchJournal(_ *journalv1.WatchJournalRequest, st grpc.ServerStreamingServer[journalv1.WatchJournalResponse]) error {
	for range w.next {
		if err := st.Send(&journalv1.WatchJournalResponse{}); err != nil {
			return err
		}
	}
	return nil
}

// TestAWatcherIsTakenOut: a stream on which only the server speaks ends, too.
func TestAWatcherIsTakenOut(t *testing.T) {
	one, two := "{name: a, roles: [worker], token_sha256: "+hashOf("one")+"}", "{name: b, roles: [worker], token_sha256: "+hashOf("two")+"}"
	f := principalsFileWith(t, "principals: ["+one+","+two+"]")
	a, err := NewAuthenticator(AuthConfig{Mode: AuthToken, PrincipalsFile: f})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(ServerTLS{}, a, testAccess, telemetry.Discard())
	if err != nil {
		t.Fatal(err)
	}
	w := watched{next: make(chan struct{})}
	journalv1.RegisterJournalServiceServer(s.Server, w)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Server.Serve(l) }() // until Stop
	defer s.Stop()
	conn, err := Dial(l.Addr().String(), ClientConfig{Token: "one", TokenOverPlaintext: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	st, err := journalv1.NewJournalServiceClient(conn).WatchJournal(ctx, &journalv1.WatchJournalRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.next <- struct{}{}
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		text string
		want codes.Code
	}{{"principals: [" + two + "," + one + "]", codes.OK}, {"principals: [" + two + "]", codes.Unauthenticated}} {
		if err := os.WriteFile(f, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := a.Reload(); err != nil {
			t.Fatal(err)
		}
		w.next <- struct{}{}
		if _, err := st.Recv(); status.Code(err) != step.want {
			t.Errorf("%s: %v", step.text, err)
		}
	}
}
