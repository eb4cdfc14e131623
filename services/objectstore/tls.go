package objectstore

import (
	"crypto/tls"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// TLS is that of the S3 address. Files are read again when they change.
type TLS struct {
	CertFile string `koanf:"cert_file" help:"PEM certificate chain of the S3 address; empty serves in the clear" check:"file"`
	KeyFile  string `koanf:"key_file" help:"PEM private key of it" check:"file"`
}

// Enabled reports whether TLS is on.
func (t TLS) Enabled() bool { return t.CertFile != "" }

// Check reads the files, as a start does.
func (t TLS) Check() error {
	_, err := t.config()
	return err
}

func (t TLS) validate() error {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return errors.New("tls: cert_file and key_file go together")
	}
	return nil
}

// config gives the tls.Config, or nil when TLS is off. The files must be readable now.
func (t TLS) config() (*tls.Config, error) {
	if err := t.validate(); err != nil || !t.Enabled() {
		return nil, err
	}
	cert, err := tlsfile.LoadCertificate(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, CipherSuites: tlsfile.Suites(),
		NextProtos: []string{"http/1.1"}, // the store's server speaks nothing else
		// Asked for with each handshake, so that a renewed certificate is served without a restart.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert.Get() },
	}, nil
}

// scheme is that of URLs of the S3 address.
func (c Config) scheme() string {
	if c.TLS.Enabled() {
		return "https"
	}
	return "http"
}
