package sendtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// PKI is an authority that signs certificates for tests.
type PKI struct {
	// CAFile has the authority's certificate.
	CAFile string
	t      testing.TB
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

// NewPKI makes an authority; its files go with the test.
func NewPKI(t testing.TB) *PKI {
	t.Helper()
	p := &PKI{t: t, dir: t.TempDir(), serial: 1}
	p.cert, p.key = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign}, newKey(t)
	p.CAFile = p.write("ca.pem", "CERTIFICATE", p.sign(p.cert, p.key))
	return p
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (p *PKI) sign(c *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	p.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, p.cert, &key.PublicKey, p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	return der
}

func (p *PKI) write(name, kind string, der []byte) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// Issue gives the files of a certificate for a DNS name, for servers and clients, that is
// valid until then.
func (p *PKI) Issue(name string, until time.Time) (certFile, keyFile string) {
	p.t.Helper()
	p.serial++
	c := &x509.Certificate{SerialNumber: big.NewInt(p.serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	key := newKey(p.t)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.write(name+".pem", "CERTIFICATE", p.sign(c, key)), p.write(name+".key", "EC PRIVATE KEY", der)
}

// ServerOption serves TLS with a certificate for name that is valid until then; clients
// need a certificate of the authority where clientCA is its file.
func (p *PKI) ServerOption(name string, until time.Time, clientCA string) grpc.ServerOption {
	p.t.Helper()
	cert, key := p.Issue(name, until)
	cfg, err := rpc.ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: clientCA}.Config()
	if err != nil {
		p.t.Fatal(err)
	}
	return grpc.Creds(credentials.NewTLS(cfg))
}
