package ingest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

func write(t testing.TB, name, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func bearer(token string) rpc.ClientConfig {
	return rpc.ClientConfig{Token: config.Secret(token), TokenOverPlaintext: true}
}

func TestTokensDecideWhoMayWriteWhat(t *testing.T) {
	principals := write(t, "principals.yaml", fmt.Sprintf(`
principals:
  - name: web
    token_sha256: %v
    roles: [sender]
    agents: ["web-*"]
  - name: nobody
    token_sha256: %v
`, identity.Sum([]byte("web-token")), identity.Sum([]byte("nobody-token"))))
	store := newStore()
	c := launch(t, store, bearer("web-token"), func(c *ingest.Config) {
		c.Auth = rpc.AuthConfig{Mode: rpc.AuthToken, PrincipalsFile: principals}
	})
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	before := contents(t, store)
	foreign := encode(t, identity.Boot{Agent: "db-1", Boot: "b"}, 0, 3, 0)
	good := encode(t, boot, 0, 3, 0)

	// Wrong principal, wrong token, no token: by every way in, nothing is written.
	_, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: foreign})
	if status.Code(err) != codes.PermissionDenied || rpc.Reason(err) != rpc.ReasonForbidden {
		t.Errorf("unary, foreign agent: %v", err)
	}
	if _, _, err := c.open(t, &ingestv1.Hello{AgentId: "db-1", BootId: "b"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("hello of a foreign agent: %v", err)
	}
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "wrong": codes.Unauthenticated, "nobody-token": codes.PermissionDenied} {
		conn, err := rpc.Dial(c.GRPCAddr(), bearer(token))
		if err != nil {
			t.Fatal(err)
		}
		other := &collector{client: ingestv1.NewIngestServiceClient(conn)}
		_, err = other.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: good})
		if status.Code(err) != want {
			t.Errorf("unary, token %q: %v", token, err)
		}
		if _, _, err := other.open(t, &ingestv1.Hello{AgentId: boot.Agent, BootId: boot.Boot}); status.Code(err) != want {
			t.Errorf("stream, token %q: %v", token, err)
		}
		_ = conn.Close()
	}
	for authorization, want := range map[string]int{
		"": 401, "Bearer wrong": 401, "Basic d2ViLXRva2Vu": 401, "Bearer nobody-token": 403,
	} {
		a := c.post(t, good, func(r *http.Request) { r.Header.Set("Authorization", authorization) })
		reason := map[int]string{401: "unauthenticated", 403: "permission_denied"}[want]
		if a.code != want || a.body["error"] != reason {
			t.Errorf("HTTP, %q: %+v", authorization, a)
		}
	}
	if a := c.post(t, foreign, func(r *http.Request) { r.Header.Set("Authorization", "Bearer web-token") }); a.code != 403 {
		t.Errorf("HTTP, foreign agent: %+v", a)
	}
	if after := contents(t, store); !maps.Equal(before, after) {
		t.Errorf("refused senders wrote: %v", after)
	}
	if a := c.post(t, good, func(r *http.Request) { r.Header.Set("Authorization", "Bearer web-token") }); a.code != 200 {
		t.Errorf("HTTP, right token: %+v", a)
	}
	s, _ := c.mustOpen(t, identity.Boot{Agent: "web-2", Boot: "b"}, 0)
	if r := s.ask(encode(t, identity.Boot{Agent: "web-2", Boot: "b"}, 0, 3, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Errorf("stream, right token: %v", r)
	}
	s.done()
}

// authority of certificates for one test.
type ca struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	dir  string
	n    int64
}

func newCA(t testing.TB) *ca {
	c := &ca{t: t, dir: t.TempDir()}
	c.key, c.cert = c.issue("ca", nil)
	return c
}

func (c *ca) issue(name string, parent *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	c.n++
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(c.n), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: parent == nil, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{name},
	}
	signer, signed := c.key, parent
	if parent == nil {
		signer, signed = key, tmpl
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, signed, &key.PublicKey, signer)
	if err != nil {
		c.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: k},
	} {
		if err := os.WriteFile(c.file(file), pem.EncodeToMemory(block), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	return key, cert
}

func (c *ca) file(name string) string { return filepath.Join(c.dir, name) }

func TestMutualTLS(t *testing.T) {
	authority := newCA(t)
	for _, n := range []string{"server", "web-1", "prom", "stranger"} {
		authority.issue(n, authority.cert)
	}
	other := newCA(t)
	other.issue("web-1", other.cert)
	clientTLS := func(a *ca, name string) rpc.ClientConfig {
		return rpc.ClientConfig{TLS: tlsfile.Client{Enabled: true, CAFile: authority.file("ca.crt"), CertFile: a.file(name + ".crt"), KeyFile: a.file(name + ".key")}}
	}
	principals := write(t, "principals.yaml", "principals: [{name: web, tls_name: web-1, roles: [sender], agents: [web-1]}, {name: prometheus, tls_name: prom, roles: [reader]}]")
	store := newStore()
	c := launch(t, store, clientTLS(authority, "web-1"), func(c *ingest.Config) {
		c.TLS = rpc.ServerTLS{CertFile: authority.file("server.crt"), KeyFile: authority.file("server.key"), ClientCAFile: authority.file("ca.crt")}
		c.Auth = rpc.AuthConfig{Mode: rpc.AuthMTLS, PrincipalsFile: principals}
		c.Admin.Listen = "127.0.0.1:0"
	})
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	good := encode(t, boot, 0, 3, 0)
	if r, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: good}); err != nil || r.GetDuplicate() {
		t.Fatalf("right certificate: %v, %v", r, err)
	}
	if _, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: encode(t, identity.Boot{Agent: "web-2", Boot: "b"}, 0, 1, 0)}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("foreign agent: %v", err)
	}
	before := contents(t, store)
	for name, tc := range map[string]struct {
		client rpc.ClientConfig
		want   codes.Code
	}{
		"no principal for the certificate": {clientTLS(authority, "stranger"), codes.Unauthenticated},
		"certificate of another authority": {clientTLS(other, "web-1"), codes.Unavailable},
		"plaintext":                        {rpc.ClientConfig{}, codes.Unavailable},
	} {
		conn, err := rpc.Dial(c.GRPCAddr(), tc.client)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ingestv1.NewIngestServiceClient(conn).SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: encode(t, boot, 3, 1, 0)})
		if status.Code(err) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.Close()
	}
	if after := contents(t, store); !maps.Equal(before, after) {
		t.Errorf("refused senders wrote: %v", after)
	}
	cfg, err := clientTLS(authority, "web-1").TLS.Config()
	if err != nil {
		t.Fatal(err)
	}
	hc := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg}}
	defer hc.CloseIdleConnections()
	req, err := http.NewRequestWithContext(bound(t), http.MethodPost, "https://"+c.HTTPAddr()+"/v1/batches", strings.NewReader(string(good)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", frame.MediaType)
	if a := do(t, hc, req); a.code != 200 || a.body["duplicate"] != true {
		t.Errorf("HTTPS: %+v", a)
	}
	var none tls.Config
	none.RootCAs = cfg.RootCAs
	bare := &http.Client{Transport: &http.Transport{TLSClientConfig: &none}}
	defer bare.CloseIdleConnections()
	if resp, err := bare.Get("https://" + c.HTTPAddr() + "/-/ready"); err == nil {
		resp.Body.Close()
		t.Errorf("HTTPS without a certificate: %s", resp.Status)
	}
	// The admin address takes probes without a certificate, and checks those that there are.
	prom, err := clientTLS(authority, "prom").TLS.Config()
	if err != nil {
		t.Fatal(err)
	}
	scraper := &http.Client{Transport: &http.Transport{TLSClientConfig: prom}}
	defer scraper.CloseIdleConnections()
	for _, r := range []struct {
		client *http.Client
		path   string
		want   int
	}{{bare, "/-/ready", 200}, {bare, "/metrics", 401}, {hc, "/metrics", 403}, {scraper, "/metrics", 200}, {scraper, "/config", 403}} {
		resp, err := r.client.Get("https://" + c.AdminAddr() + r.path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != r.want {
			t.Errorf("admin %s: %s, want %d", r.path, resp.Status, r.want)
		}
	}
}

func TestExposureIsRefused(t *testing.T) {
	tokens := rpc.AuthConfig{Mode: rpc.AuthToken, PrincipalsFile: "p.yaml"}
	for name, tc := range map[string]struct {
		change func(*ingest.Config)
		ok     bool
	}{
		"loopback":              {func(*ingest.Config) {}, true},
		"everybody everywhere":  {func(c *ingest.Config) { c.GRPC.Listen = "0.0.0.0:4750" }, false},
		"everybody, by HTTP":    {func(c *ingest.Config) { c.HTTP.Listen = ":4751" }, false},
		"everybody, on purpose": {func(c *ingest.Config) { c.GRPC.Listen, c.Auth.AllowInsecure = ":4750", true }, true},
		"tokens in the clear":   {func(c *ingest.Config) { c.GRPC.Listen, c.Auth = ":4750", tokens }, false},
		"tokens by TLS": {func(c *ingest.Config) {
			c.GRPC.Listen, c.Auth = ":4750", tokens
			c.TLS.CertFile, c.TLS.KeyFile = "c", "k"
		}, true},
		"mtls without authorities": {func(c *ingest.Config) { c.Auth = tokens; c.Auth.Mode = rpc.AuthMTLS }, false},
		"admin paths everywhere":   {func(c *ingest.Config) { c.Admin.Listen = ":4752" }, false},
		"profiles of everybody": {func(c *ingest.Config) {
			c.Admin.Listen, c.Pprof, c.Auth.AllowInsecure = ":4752", true, true
		}, false},
		"room for no frame":    {func(c *ingest.Config) { c.Limits.InFlightBytes = 1 << 20 }, false},
		"spool without folder": {func(c *ingest.Config) { c.Acceptance = "local_spool" }, false},
		"unknown acceptance":   {func(c *ingest.Config) { c.Acceptance = "hope" }, false},
		"no window":            {func(c *ingest.Config) { c.Limits.StreamBatches = 0 }, false},
	} {
		c := ingest.DefaultConfig()
		c.Store.Bucket = "bucket"
		tc.change(&c)
		if err := c.Validate(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ingest.DefaultConfig().Check(); err == nil {
		t.Error("no bucket was named, and nothing was said")
	}
}
