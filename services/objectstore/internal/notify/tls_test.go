package notify

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// issuer signs certificates for 127.0.0.1.
type issuer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, key := i.sign(tmpl, tmpl, nil)
	i.key = key
	var err error
	if i.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	i.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return i
}

func (i *issuer) sign(tmpl, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), by)
	if err != nil {
		i.t.Fatal(err)
	}
	return der, key
}

// pair gives a certificate and its key, as PEM.
func (i *issuer) pair(name string) (cert, key []byte) {
	der, k := i.sign(&x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, i.cert, i.key)
	b, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		i.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b})
}

// TestWebhookTLS: the server's certificate is checked against ca_file, and the server sees
// the certificate of cert_file, the new one once the file has changed.
func TestWebhookTLS(t *testing.T) {
	ca, dir := newIssuer(t), t.TempDir()
	file := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	seen := ""
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = r.TLS.PeerCertificates[0].Subject.CommonName
	}))
	cert, key := ca.pair("server")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	srv.StartTLS()
	defer srv.Close()

	post := func(c *http.Client) error {
		resp, err := c.Post(srv.URL, "application/json", nil)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	cert, key = ca.pair("store")
	settings := TLS{CAFile: file("ca.pem", ca.pem), CertFile: file("store.pem", cert), KeyFile: file("store.key", key)}
	client := Client(settings)
	if err := post(client); err != nil || seen != "store" {
		t.Fatalf("%v, the server saw %q", err, seen)
	}
	cert, key = ca.pair("the next one")
	file("store.pem", cert) // half of the change: the pair in force stays
	if err := post(client); err != nil || seen != "store" {
		t.Errorf("half-way: %v, the server saw %q", err, seen)
	}
	file("store.key", key)
	if err := post(client); err != nil || seen != "the next one" {
		t.Errorf("after the change: %v, the server saw %q", err, seen)
	}
	for name, bad := range map[string]TLS{
		"no certificate of ours": {CAFile: settings.CAFile},
		"another authority":      {CAFile: file("other.pem", newIssuer(t).pem), CertFile: settings.CertFile, KeyFile: settings.KeyFile},
		"the system's":           {CertFile: settings.CertFile, KeyFile: settings.KeyFile},
		"another name":           {CAFile: settings.CAFile, CertFile: settings.CertFile, KeyFile: settings.KeyFile, ServerName: "other"},
	} {
		if err := post(Client(bad)); err == nil {
			t.Errorf("%s: the POST was taken", name)
		}
	}
	for name, bad := range map[string]TLS{
		"absent":  {CAFile: filepath.Join(dir, "absent")},
		"no PEM":  {CAFile: settings.KeyFile},
		"no key":  {CertFile: settings.CertFile},
		"no cert": {KeyFile: settings.KeyFile},
	} {
		if err := bad.Check(); err == nil {
			t.Errorf("%s: is taken", name)
		}
	}
}
