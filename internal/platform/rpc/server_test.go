package rpc

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// patience bounds every wait of a test; nothing is timed.
const patience = 30 * time.Second

// whoami answers with the principal's name, or panics.
type whoami struct {
	ingestv1.UnimplementedIngestServiceServer
}

func (whoami) SubmitBatch(ctx context.Context, r *ingestv1.SubmitBatchRequest) (*ingestv1.SubmitBatchResponse, error) {
	if len(r.GetFrame()) > 0 {
		panic("handler bug")
	}
	p, _ := PrincipalFrom(ctx)
	return &ingestv1.SubmitBatchResponse{Acceptance: &ingestv1.Acceptance{CollectorId: p.Name}}, nil
}

func serve(t *testing.T, tls ServerTLS, auth AuthConfig) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, tls, auth)
}

func serveOn(t *testing.T, l net.Listener, tls ServerTLS, auth AuthConfig) string {
	t.Helper()
	a, err := NewAuthenticator(auth)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(tls, a, Access{ingestv1.IngestService_SubmitBatch_FullMethodName: {RoleSender}, ingestv1.IngestService_StreamBatches_FullMethodName: {RoleSender}}, telemetry.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ingestv1.RegisterIngestServiceServer(s.Server, whoami{})
	s.SetServing(true)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l, time.Second) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String()
}

func call(t *testing.T, addr string, c ClientConfig, req *ingestv1.SubmitBatchRequest) (string, error) {
	t.Helper()
	conn, err := Dial(addr, c)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resp, err := ingestv1.NewIngestServiceClient(conn).SubmitBatch(ctx, req, grpc.WaitForReady(false))
	return resp.GetAcceptance().GetCollectorId(), err
}

func TestTokensOverGRPC(t *testing.T) {
	f := principalsFileWith(t, "principals: [{name: web, token_sha256: "+hashOf("tok")+", roles: [sender], agents: [x]}]")
	addr := serve(t, ServerTLS{}, AuthConfig{Mode: AuthToken, PrincipalsFile: f})
	if name, err := call(t, addr, ClientConfig{Token: "tok", TokenOverPlaintext: true}, &ingestv1.SubmitBatchRequest{}); err != nil || name != "web" {
		t.Errorf("right token: %q, %v", name, err)
	}
	for _, token := range []config.Secret{"", "nope"} {
		_, err := call(t, addr, ClientConfig{Token: token, TokenOverPlaintext: true}, &ingestv1.SubmitBatchRequest{})
		if status.Code(err) != codes.Unauthenticated || Reason(err) != ReasonUnauthenticated {
			t.Errorf("token %q: %v", token.Reveal(), err)
		}
	}
	// Health needs no credentials.
	conn, err := Dial(addr, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", h, err)
	}
}

func TestAPanicIsInternalAndTheServerLivesOn(t *testing.T) {
	addr := serve(t, ServerTLS{}, AuthConfig{Mode: AuthNone})
	if _, err := call(t, addr, ClientConfig{}, &ingestv1.SubmitBatchRequest{Frame: []byte{1}}); status.Code(err) != codes.Internal {
		t.Errorf("panic: %v", err)
	}
	if name, err := call(t, addr, ClientConfig{}, &ingestv1.SubmitBatchRequest{}); err != nil || name != "anonymous" {
		t.Errorf("after the panic: %q, %v", name, err)
	}
}

func TestATokenIsNotSentInPlaintext(t *testing.T) {
	if _, err := Dial("127.0.0.1:1", ClientConfig{Token: "tok"}); err == nil {
		t.Error("dialled")
	}
}

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// lasts is the life of what it issues; an hour when 0.
	lasts time.Duration
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.key = newKey(t)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (a *authority) write(name, kind string, der []byte) string {
	f := filepath.Join(a.dir, name)
	if err := os.WriteFile(f, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return f
}

func (a *authority) issue(name string) (cert, key string) {
	k := newKey(a.t)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(cmp.Or(a.lasts, time.Hour)),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	kder, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".pem", "CERTIFICATE", der), a.write(name+".key", "EC PRIVATE KEY", kder)
}

func TestMutualTLSGivesThePrincipalOfTheCertificate(t *testing.T) {
	ca := newAuthority(t)
	caFile := filepath.Join(ca.dir, "ca.pem")
	cert, key := ca.issue("collector")
	good, goodKey := ca.issue("web-agent")
	unknown, unknownKey := ca.issue("unknown")
	f := principalsFileWith(t, "principals: [{name: web, tls_name: web-agent, roles: [sender], agents: [x]}]")
	addr := serve(t, ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: caFile}, AuthConfig{Mode: AuthMTLS, PrincipalsFile: f})

	with := func(cert, key string) ClientConfig {
		return ClientConfig{TLS: tlsfile.Client{Enabled: true, CAFile: caFile, CertFile: cert, KeyFile: key}}
	}
	if name, err := call(t, addr, with(good, goodKey), &ingestv1.SubmitBatchRequest{}); err != nil || name != "web" {
		t.Errorf("known certificate: %q, %v", name, err)
	}
	if _, err := call(t, addr, with(unknown, unknownKey), &ingestv1.SubmitBatchRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("certificate without a principal: %v", err)
	}
	other := newAuthority(t)
	forged, forgedKey := other.issue("web-agent")
	if _, err := call(t, addr, with(forged, forgedKey), &ingestv1.SubmitBatchRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("certificate of another authority: %v", err)
	}
	if _, err := call(t, addr, with("", ""), &ingestv1.SubmitBatchRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("no certificate: %v", err)
	}
}

func TestCompressedMessagesAreRefused(t *testing.T) {
	addr := serve(t, ServerTLS{}, AuthConfig{Mode: AuthNone})
	conn, err := Dial(addr, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := ingestv1.NewIngestServiceClient(conn)
	// The handler panics over a frame: it must not see one.
	_, err = client.SubmitBatch(ctx, &ingestv1.SubmitBatchRequest{Frame: make([]byte, 4<<20)}, grpc.UseCompressor(gzip.Name))
	if status.Code(err) != codes.Unimplemented || Reason(err) != ReasonContentEncoding {
		t.Errorf("unary: %v", err)
	}
	st, err := client.StreamBatches(ctx, grpc.UseCompressor(gzip.Name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); status.Code(err) != codes.Unimplemented || Reason(err) != ReasonContentEncoding {
		t.Errorf("stream: %v", err)
	}
	if _, err := client.SubmitBatch(ctx, &ingestv1.SubmitBatchRequest{}); err != nil {
		t.Errorf("uncompressed: %v", err)
	}
}

// TestAReplacedCACountsFromTheNextConnection: a client needs no restart for a new authority.
func TestAReplacedCACountsFromTheNextConnection(t *testing.T) {
	replace := func(file, by string) {
		t.Helper()
		b, err := os.ReadFile(by)
		if err == nil {
			err = os.WriteFile(file, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	before, after := newAuthority(t), newAuthority(t)
	cert, key := before.issue("collector")
	caFile := filepath.Join(before.dir, "ca.pem")
	addr := serve(t, ServerTLS{CertFile: cert, KeyFile: key}, AuthConfig{Mode: AuthNone})
	conns := make(chan net.Conn, 1)
	conn, err := Dial(addr, ClientConfig{TLS: tlsfile.Client{Enabled: true, CAFile: caFile}}, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		select {
		case conns <- c:
		default:
		}
		return c, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ask := func(wait bool) error {
		_, err := ingestv1.NewIngestServiceClient(conn).SubmitBatch(ctx, &ingestv1.SubmitBatchRequest{}, grpc.WaitForReady(wait))
		return err
	}
	if err := ask(true); err != nil {
		t.Fatal(err)
	}
	newCert, newKey := after.issue("collector")
	replace(cert, newCert)
	replace(key, newKey)
	tlsfile.Refresh()
	_ = (<-conns).Close()
	if err := ask(false); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		for range 100 { // the closed connection itself may be the first answer
			if err = ask(false); err != nil && strings.Contains(err.Error(), "unknown authority") {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("another authority's certificate: %v", err)
		}
	}
	replace(caFile, filepath.Join(after.dir, "ca.pem"))
	tlsfile.Refresh()
	if err := ask(true); err != nil {
		t.Errorf("after the CA was replaced: %v", err)
	}
}
