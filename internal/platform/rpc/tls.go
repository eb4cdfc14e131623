package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// ServerTLS is a server's TLS. Files are read again when they change.
type ServerTLS struct {
	CertFile     string `koanf:"cert_file" help:"PEM certificate chain; empty serves plaintext" check:"file"`
	KeyFile      string `koanf:"key_file" help:"PEM private key" check:"file"`
	ClientCAFile string `koanf:"client_ca_file" help:"PEM certificates that sign client certificates; set requires and verifies them" check:"file"`
}

// Enabled reports whether TLS is on.
func (c ServerTLS) Enabled() bool { return c.CertFile != "" }

// HTTPScheme is the scheme of URLs that this server answers.
func (c ServerTLS) HTTPScheme() string {
	if c.Enabled() {
		return "https"
	}
	return "http"
}

// GRPCScheme is grpcs with TLS and grpc without, as lmctl takes them.
func (c ServerTLS) GRPCScheme() string {
	if c.Enabled() {
		return "grpcs"
	}
	return "grpc"
}

// Validate checks that what belongs together is together.
func (c ServerTLS) Validate() error {
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("tls: cert_file and key_file go together")
	}
	if c.ClientCAFile != "" && c.CertFile == "" {
		return errors.New("tls: client_ca_file needs cert_file")
	}
	return nil
}

// Check reads the files, as a start does.
func (c ServerTLS) Check() error {
	if c.Validate() != nil {
		return nil // said by whoever validates the settings
	}
	_, err := c.Config()
	return err
}

// ProbeConfig is Config for admin paths of their own: client certificates are asked for,
// and checked, but probes need none.
func (c ServerTLS) ProbeConfig() (*tls.Config, error) { return c.config(tls.VerifyClientCertIfGiven) }

// Config gives the tls.Config, or nil when TLS is off. The files must be readable now.
func (c ServerTLS) Config() (*tls.Config, error) { return c.config(tls.RequireAndVerifyClientCert) }

func (c ServerTLS) config(clients tls.ClientAuthType) (*tls.Config, error) {
	if err := c.Validate(); err != nil || !c.Enabled() {
		return nil, err
	}
	cert, err := tlsfile.LoadCertificate(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	// The certificate is asked for with each handshake, so that a renewed one is served without a restart.
	base := &tls.Config{
		MinVersion: tls.VersionTLS12, CipherSuites: tlsfile.Suites(),
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return cert.Get()
		},
	}
	if c.ClientCAFile == "" {
		return base, nil
	}
	cas := tlsfile.NewValue(func() (*x509.CertPool, error) { return tlsfile.ReadPool(c.ClientCAFile) }, c.ClientCAFile)
	if _, err := cas.Get(); err != nil {
		return nil, err
	}
	base.ClientAuth = clients
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := cas.Get()
		if err != nil {
			return nil, err
		}
		// A configuration per handshake, so that a replaced client CA applies to the next connection.
		cfg := base.Clone()
		cfg.ClientCAs, cfg.GetConfigForClient = pool, nil
		return cfg, nil
	}
	return base, nil
}
