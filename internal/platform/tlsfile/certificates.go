package tlsfile

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// Certificate is a certificate that this process presents.
type Certificate struct {
	File     string
	NotAfter time.Time
}

// inUse has the certificates of this process, of servers and clients, by file. Each file is in it
// once, however often settings are read, so its size is bounded by the settings.
var inUse struct {
	sync.Mutex
	byFile map[string]*Value[tls.Certificate]
}

// LoadCertificate reads a PEM certificate chain and its key, and again when they change.
func LoadCertificate(cert, key string) (*Value[tls.Certificate], error) {
	v := NewValue(func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("tls: load %s: %w", cert, err)
		}
		return &c, nil
	}, cert, key)
	// Read before it is registered: files that never worked are not shown as in use.
	if _, err := v.Get(); err != nil {
		return nil, err
	}
	inUse.Lock()
	defer inUse.Unlock()
	if inUse.byFile == nil {
		inUse.byFile = map[string]*Value[tls.Certificate]{}
	}
	inUse.byFile[cert] = v
	return v, nil
}

// Certificates lists the certificates that this process presents now, by file name. Where a new
// file cannot be read, that is the one before it.
func Certificates() []Certificate {
	inUse.Lock()
	defer inUse.Unlock()
	var out []Certificate
	for file, v := range inUse.byFile {
		if c, err := v.Get(); err == nil && c.Leaf != nil {
			out = append(out, Certificate{File: file, NotAfter: c.Leaf.NotAfter})
		}
	}
	slices.SortFunc(out, func(a, b Certificate) int { return cmp.Compare(a.File, b.File) })
	return out
}

// ReadPool reads the PEM certificates of authorities.
func ReadPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls: %s has no PEM certificate", file)
	}
	return pool, nil
}

// Suites are those of TLS 1.2 that authenticate what they encrypt and keep past traffic
// secret when a key leaks; CBC has neither a safe implementation everywhere nor a use.
// TLS 1.3 has its own.
func Suites() []uint16 {
	return []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}
}
