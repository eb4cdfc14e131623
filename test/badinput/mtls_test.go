package badinput

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// mtlsCase calls a collector that wants certificates. The right one is of the
// collector's authority, is named web-1, and may write the agent web-1.
type mtlsCase struct {
	named `yaml:",inline"`
	Face  string `yaml:"face"` // http or unary
	// Send is what stands in place of a certificate: plaintext, none (TLS without one), token.
	Send string `yaml:"send"`
	// By signs: the collector's ca (default), other, twin (another key, the same name),
	// self, leaf (a certificate that is no authority), ca-itself.
	By      string   `yaml:"by"`
	CN      string   `yaml:"cn"` // - is none
	DNS     []string `yaml:"dns"`
	URI     []string `yaml:"uri"`
	Email   []string `yaml:"email"`
	IP      bool     `yaml:"ip"`
	From    string   `yaml:"from"` // validity, relative to now
	To      string   `yaml:"to"`
	Usage   string   `yaml:"usage"` // of the key: client (default), server, code
	Version string   `yaml:"version"`
	Agent   string   `yaml:"agent"`
	Want    string   `yaml:"want"`
}

type issuer struct {
	key  crypto.Signer
	cert *x509.Certificate
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// issue makes a certificate; without an issuer it signs itself.
func issue(t testing.TB, tmpl *x509.Certificate, by *issuer) *issuer {
	t.Helper()
	key := newKey(t)
	tmpl.SerialNumber = big.NewInt(time.Now().UnixNano())
	if tmpl.NotAfter.IsZero() {
		tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	if by == nil {
		by = &issuer{key: key, cert: tmpl}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, by.cert, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{key: key, cert: cert}
}

func authorityCert(name string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
}

func (i *issuer) tls() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{i.cert.Raw}, PrivateKey: i.key}
}

// files writes certificate and key as PEM.
func (i *issuer) files(t testing.TB, dir, name string) (cert, key string) {
	t.Helper()
	b, err := x509.MarshalPKCS8PrivateKey(i.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for f, p := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: i.cert.Raw}, key: {Type: "PRIVATE KEY", Bytes: b}} {
		if err := os.WriteFile(f, pem.EncodeToMemory(p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func (k mtlsCase) certificate(t testing.TB, by map[string]*issuer) []tls.Certificate {
	t.Helper()
	switch {
	case k.Send == "none" || k.Send == "token":
		return nil
	case k.By == "ca-itself":
		return []tls.Certificate{by["ca"].tls()}
	}
	tmpl := &x509.Certificate{Subject: pkix.Name{CommonName: or(k.CN, "web-1")}, DNSNames: k.DNS, EmailAddresses: k.Email, KeyUsage: x509.KeyUsageDigitalSignature}
	if k.CN == "-" {
		tmpl.Subject = pkix.Name{Organization: []string{"o"}}
	}
	for _, u := range k.URI {
		p, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		tmpl.URIs = append(tmpl.URIs, p)
	}
	if k.IP {
		tmpl.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	if k.From != "" {
		from, err := time.ParseDuration(k.From)
		if err != nil {
			t.Fatal(err)
		}
		to, err := time.ParseDuration(k.To)
		if err != nil {
			t.Fatal(err)
		}
		tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(from), time.Now().Add(to)
	}
	switch k.Usage {
	case "":
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	case "server":
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	case "code":
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning, x509.ExtKeyUsageEmailProtection}
	default:
		t.Fatalf("usage %q", k.Usage)
	}
	signer := by[or(k.By, "ca")]
	if k.By == "self" {
		signer = nil
	}
	c := issue(t, tmpl, signer).tls()
	if k.By == "leaf" {
		c.Certificate = append(c.Certificate, by["leaf"].cert.Raw)
	}
	return []tls.Certificate{c}
}

// TestMTLS calls with bad certificates, and good ones of others.
func TestMTLS(t *testing.T) {
	dir := t.TempDir()
	by := map[string]*issuer{"ca": issue(t, authorityCert("ca"), nil), "twin": issue(t, authorityCert("ca"), nil), "other": issue(t, authorityCert("other"), nil)}
	by["leaf"] = issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "web-1"}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true}, by["ca"])
	server := issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature}, by["ca"])
	caFile, _ := by["ca"].files(t, dir, "ca")
	cert, key := server.files(t, dir, "server")
	principals := filepath.Join(dir, "principals.yaml")
	if err := os.WriteFile(principals, []byte("principals: [{name: web, tls_name: web-1, roles: [sender], agents: [web-1]}, {name: spiffe, tls_name: \"spiffe://lm/agent/db-1\", roles: [sender], agents: [db-1]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(by["ca"].cert)
	client := func(k mtlsCase) *tls.Config {
		cfg := &tls.Config{RootCAs: roots, Certificates: k.certificate(t, by)}
		// A certificate is sent whether the server knows its issuer or not.
		if len(cfg.Certificates) > 0 {
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cfg.Certificates[0], nil }
		}
		if k.Version != "" {
			cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, map[string]uint16{"1.0": tls.VersionTLS10, "1.1": tls.VersionTLS11, "1.2": tls.VersionTLS12}[k.Version]
		}
		return cfg
	}
	store := memStore()
	c := startCollector(t, store, func(cfg *ingest.Config) {
		cfg.TLS = rpc.ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: caFile}
		cfg.Auth = rpc.AuthConfig{Mode: rpc.AuthMTLS, PrincipalsFile: principals}
	})
	boundMemory(t, 96<<20)
	before := listing(t, store)
	for i, k := range load[mtlsCase](t, "mtls") {
		t.Run(k.Name, func(t *testing.T) {
			if got := k.call(t, c, client(k), goodFrame(t, or(k.Agent, "web-1"), "boot", uint64(2*i))); got != k.Want {
				t.Errorf("got %q, want %q", got, k.Want)
			}
			wantUnchanged(t, store, before)
		})
	}
	wantNoPanics(t)
	good := mtlsCase{}
	for face, want := range map[string]string{"http": "200", "unary": "OK"} {
		good.Face = face
		if got := good.call(t, c, client(good), goodFrame(t, "web-1", "boot", 1000)); got != want {
			t.Errorf("%s, right certificate: %s", face, got)
		}
	}
}

// call gives the answer's code and reason, or "refused" when there is no connection.
func (k mtlsCase) call(t testing.TB, c *collector, cfg *tls.Config, f []byte) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if k.Face == "http" {
		scheme := "https"
		if k.Send == "plaintext" {
			scheme = "http"
		}
		hc := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://"+c.HTTPAddr()+"/v1/batches", bytes.NewReader(f))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", frame.MediaType)
		if k.Send == "token" {
			req.Header.Set("Authorization", "Bearer "+webToken)
		}
		resp, err := hc.Do(req)
		if err != nil {
			return "refused"
		}
		defer resp.Body.Close()
		var e struct{ Error string }
		_ = json.NewDecoder(resp.Body).Decode(&e) // not all refusals are the service's own
		return strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", e.Error))
	}
	creds := credentials.NewTLS(cfg)
	if k.Send == "plaintext" {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(c.GRPCAddr(), grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = ingestv1.NewIngestServiceClient(conn).SubmitBatch(ctx, &ingestv1.SubmitBatchRequest{Frame: f})
	if code := status.Code(err).String(); code != "Unavailable" {
		return strings.TrimSpace(code + " " + rpc.Reason(err))
	}
	return "refused"
}
