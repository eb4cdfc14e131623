package etcd

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"crypto/x509"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// etcd's own, which it does not wait for when it stops.
		goleak.IgnoreTopFunction("go.etcd.io/etcd/client/pkg/v3/logutil.(*MergeLogger).outputLoop"),
		goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"),
		// HTTP between the members of a cluster, where one is stopped under the others.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
		goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"))
}

const patience = 60 * time.Second

var discard = slog.New(slog.DiscardHandler)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// secured is an etcd with TLS, client certificates, users and passwords.
func secured(t *testing.T, certs string) Config {
	t.Helper()
	info, err := transport.SelfCert(zap.NewNop(), certs, []string{"127.0.0.1:0"}, 1, x509.ExtKeyUsageClientAuth)
	must(t, err)
	info.TrustedCAFile, info.ClientCertAuth = info.CertFile, true
	cfg := DefaultConfig().Embedded
	cfg.DataDir = t.TempDir()
	e := cfg.embed(zapToSlog{h: discard.Handler()})
	client := url.URL{Scheme: "https", Host: "127.0.0.1:0"}
	e.ListenClientUrls, e.AdvertiseClientUrls, e.ClientTLSInfo = []url.URL{client}, []url.URL{client}, info
	e.BcryptCost = 4 // passwords are checked within a dial
	m, err := embed.StartEtcd(e)
	must(t, err)
	t.Cleanup(m.Close)
	<-m.Server.ReadyNotify()
	c := DefaultConfig()
	c.Endpoints = []string{"https://" + m.Clients[0].Addr().String()}
	c.RequestTimeout = patience / 2
	c.TLS = tlsfile.Client{Enabled: true, CAFile: info.CertFile, CertFile: info.CertFile, KeyFile: info.KeyFile}

	admin, err := Dial(context.Background(), c, "", discard)
	must(t, err)
	defer admin.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, u := range []string{"root", "coordinator", "stranger"} {
		_, err = admin.Etcd.UserAdd(ctx, u, "secret of "+u)
		must(t, err)
	}
	_, err = admin.Etcd.UserGrantRole(ctx, "root", "root")
	must(t, err)
	_, err = admin.Etcd.RoleAdd(ctx, "coordinator")
	must(t, err)
	_, err = admin.Etcd.RoleGrantPermission(ctx, "coordinator", c.Prefix+"/", clientv3.GetPrefixRangeEnd(c.Prefix+"/"), clientv3.PermissionType(clientv3.PermReadWrite))
	must(t, err)
	_, err = admin.Etcd.UserGrantRole(ctx, "coordinator", "coordinator")
	must(t, err)
	_, err = admin.Etcd.AuthEnable(ctx)
	must(t, err)
	return c
}

// TestExternalEtcdWithTLSAndUsers: everything that a coordinator does, with a user who
// may touch nothing but the prefix; and nobody else may.
func TestExternalEtcdWithTLSAndUsers(t *testing.T) {
	certs := filepath.Join(t.TempDir(), "certs")
	c := secured(t, certs)
	c.Username, c.Password = "coordinator", "secret of coordinator"
	must(t, c.Validate())
	cl, err := Dial(context.Background(), c, "", discard)
	must(t, err)
	t.Cleanup(func() { cl.Close() })
	m := NewMirror(cl, discard)
	l := &Leader{Client: cl, Mirror: m, ID: "c1", TTL: patience / 4, Log: discard, Now: time.Now}
	ctx, cancel := context.WithCancel(context.Background())
	g := run.NewGroup(ctx)
	g.Go("mirror", m.Run)
	g.Go("leader", l.Run)
	s := NewSessions(cl, m, patience)
	h, ttl, err := s.Begin(ctx, ownership.Rollup, "w0", "", "p", 4, time.Now())
	must(t, err)
	if ttl < patience {
		t.Errorf("time to live %s", ttl)
	}
	held := func() int { return m.State(ownership.Rollup).Held()[h.ID] }
	until(t, "the shards", func() bool { return held() == 4 })
	_, err = s.KeepAlive(ctx, h)
	must(t, err)
	_, _, err = s.Continue(ctx, ownership.Rollup, "w0", h.Token, "p")
	must(t, err)
	for _, x := range [][3]string{{"w1", h.Token, "p"}, {"w0", h.Token, "q"}, {"w0", h.Token[:len(h.Token)-1] + "?", "p"}, {"w0", "x", "p"}} {
		if _, _, err := s.Continue(ctx, ownership.Rollup, x[0], x[1], x[2]); !errors.Is(err, ErrSessionLost) {
			t.Errorf("continued as worker %s, token %s, principal %s: %v", x[0], x[1], x[2], err)
		}
	}
	var count *ShardCountError
	if _, _, err := s.Begin(ctx, ownership.Rollup, "w1", "", "p", 5, time.Now()); !errors.As(err, &count) || count.Have != 4 {
		t.Errorf("another number of shards: %v", err)
	}
	grants, err := s.Grants(ctx, h)
	must(t, err)
	must(t, s.Release(ctx, h, 1, grants[1].Epoch+1)) // not the session's: let be
	if again, err := s.Grants(ctx, h); err != nil || len(again) != 4 || again[1] != grants[1] {
		t.Errorf("after the release of another epoch: %v, %v", again, err)
	}
	must(t, s.Release(ctx, h, 1, grants[1].Epoch))
	until(t, "the released shard to be granted anew", func() bool { return m.State(ownership.Rollup).Grants[1].Epoch == grants[1].Epoch+1 })
	must(t, s.Drain(ctx, ownership.Rollup, h.ID, true))
	until(t, "the session to drain", func() bool { return m.State(ownership.Rollup).Sessions[h.ID].Draining })
	must(t, s.End(ctx, h))
	until(t, "the session's end", func() bool { return held() == 0 })
	if _, err := s.KeepAlive(ctx, h); !errors.Is(err, ErrSessionLost) {
		t.Errorf("renewed after its end: %v", err)
	}
	cancel()
	must(t, g.Wait())

	// A user without the role, a wrong password, no client certificate, no TLS.
	bound, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	stranger := c
	stranger.Username, stranger.Password = "stranger", "secret of stranger"
	sc, err := Dial(context.Background(), stranger, "", discard)
	must(t, err)
	defer sc.Close()
	if _, err := sc.get(bound, keys{c.Prefix}.election()); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("a user without the role: %v", err)
	}
	for what, change := range map[string]func(*Config){
		"wrong password":        func(c *Config) { c.Password = config.Secret("guess") },
		"no client certificate": func(c *Config) { c.TLS.CertFile, c.TLS.KeyFile = "", "" },
		"another CA": func(c *Config) {
			info, err := transport.SelfCert(zap.NewNop(), filepath.Join(filepath.Dir(certs), "other"), []string{"127.0.0.1:0"}, 1)
			must(t, err)
			c.TLS.CAFile = info.CertFile
		},
	} {
		bad := c
		change(&bad)
		x, err := Dial(context.Background(), bad, "", discard)
		if err == nil {
			_, err = x.get(bound, keys{c.Prefix}.election())
			x.Close()
		}
		if err == nil {
			t.Errorf("%s: let in", what)
		}
	}
	if _, err := os.Stat(certs); err != nil {
		t.Fatal(err)
	}
}
