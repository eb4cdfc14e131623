package cluster

import (
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
	"time"
)

// certsLast is how long the certificates of a run are good for.
const certsLast = 30 * 24 * time.Hour

// authority signs the certificates of a run's etcd members: it is made for the run, and signs nothing else.
type authority struct {
	dir, file string
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
}

func newAuthority(dir string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	a := &authority{dir: dir}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "members of this run"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(certsLast)}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &a.key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	a.file, err = a.write("ca.pem", "CERTIFICATE", der)
	return a, err
}

func (a *authority) write(name, kind string, der []byte) (string, error) {
	path := filepath.Join(a.dir, name)
	return path, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// issue makes the certificate of a member for both ends of a connection.
func (a *authority) issue(name, host string, ip net.IP) (cert, key string, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
	if err != nil {
		return "", "", err
	}
	tmpl := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{ip}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(certsLast), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &k.PublicKey, a.key)
	if err != nil {
		return "", "", err
	}
	secret, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return "", "", err
	}
	if cert, err = a.write(name+".pem", "CERTIFICATE", der); err != nil {
		return "", "", err
	}
	key, err = a.write(name+".key", "EC PRIVATE KEY", secret)
	return cert, key, err
}
