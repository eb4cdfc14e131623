package tlsfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
)

// Client is a client's TLS settings. The client certificate is read again when its files
// change; the CA is, too, where every connection asks Configs.
type Client struct {
	Enabled    bool   `koanf:"enabled" help:"use TLS"`
	CAFile     string `koanf:"ca_file" help:"PEM certificates that sign the server's; empty uses the system's" needs:"enabled" check:"file"`
	CertFile   string `koanf:"cert_file" help:"PEM client certificate chain, for mTLS" needs:"enabled" check:"file"`
	KeyFile    string `koanf:"key_file" help:"PEM private key, for mTLS" needs:"enabled" check:"file"`
	ServerName string `koanf:"server_name" help:"name to verify instead of the address" needs:"enabled"`
}

// Check reads the files, as a start does.
func (c Client) Check() error {
	_, err := c.Config()
	return err
}

// Config gives the tls.Config with the CA as its file is now, or nil when TLS is off.
func (c Client) Config() (*tls.Config, error) {
	next, err := c.Configs()
	if next == nil {
		return nil, err
	}
	return next(), nil
}

// Configs gives a function that makes the tls.Config of each connection, with the CA as its
// file is by then, or nil when TLS is off. The files must be readable now.
func (c Client) Configs() (func() *tls.Config, error) {
	if !c.Enabled {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, CipherSuites: Suites(), ServerName: c.ServerName}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errors.New("tls: cert_file and key_file go together")
	}
	if c.CertFile != "" {
		cert, err := LoadCertificate(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, err
		}
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert.Get() }
	}
	if c.CAFile == "" {
		return func() *tls.Config { return cfg.Clone() }, nil
	}
	// Read once now, so that a wrong file fails the start and not the first connection.
	cas := NewValue(func() (*x509.CertPool, error) { return ReadPool(c.CAFile) }, c.CAFile)
	if _, err := cas.Get(); err != nil {
		return nil, err
	}
	return func() *tls.Config {
		next := cfg.Clone()
		next.RootCAs, _ = cas.Get() // there is one since the first
		return next
	}, nil
}
