package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ServerTLS is a server's TLS. Files are read again when they change.
type ServerTLS struct {
	CertFile     string `koanf:"cert_file" help:"PEM certificate chain; empty serves plaintext" check:"file"`
	KeyFile      string `koanf:"key_file" help:"PEM private key" check:"file"`
	ClientCAFile string `koanf:"client_ca_file" help:"PEM certificates that sign client certificates; set requires and verifies them" check:"file"`
}

// ClientTLS is a client's TLS. The client certificate is read again when its files change,
// the CA at the start.
type ClientTLS struct {
	Enabled    bool   `koanf:"enabled" help:"use TLS"`
	CAFile     string `koanf:"ca_file" help:"PEM certificates that sign the server's; empty uses the system's" needs:"enabled" check:"file"`
	CertFile   string `koanf:"cert_file" help:"PEM client certificate chain, for mTLS" needs:"enabled" check:"file"`
	KeyFile    string `koanf:"key_file" help:"PEM private key, for mTLS" needs:"enabled" check:"file"`
	ServerName string `koanf:"server_name" help:"name to verify instead of the address" needs:"enabled"`
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

// ProbeConfig is Config for admin paths of their own: client certificates are asked for,
// and checked, but probes need none.
func (c ServerTLS) ProbeConfig() (*tls.Config, error) { return c.config(tls.VerifyClientCertIfGiven) }

// Config gives the tls.Config, or nil when TLS is off. The files must be readable now.
func (c ServerTLS) Config() (*tls.Config, error) { return c.config(tls.RequireAndVerifyClientCert) }

func (c ServerTLS) config(clients tls.ClientAuthType) (*tls.Config, error) {
	if err := c.Validate(); err != nil || !c.Enabled() {
		return nil, err
	}
	cert, err := loadCertificate(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	base := &tls.Config{
		MinVersion: tls.VersionTLS12, CipherSuites: Suites(),
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return cert.get()
		},
	}
	if c.ClientCAFile == "" {
		return base, nil
	}
	cas := &reloader[x509.CertPool]{files: []string{c.ClientCAFile}, load: loadPool(c.ClientCAFile)}
	if _, err := cas.get(); err != nil {
		return nil, err
	}
	base.ClientAuth = clients
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := cas.get()
		if err != nil {
			return nil, err
		}
		cfg := base.Clone()
		cfg.ClientCAs, cfg.GetConfigForClient = pool, nil
		return cfg, nil
	}
	return base, nil
}

// Check reads the files, as a start does.
func (c ClientTLS) Check() error {
	_, err := c.Config()
	return err
}

// Config gives the tls.Config, or nil when TLS is off.
func (c ClientTLS) Config() (*tls.Config, error) {
	if !c.Enabled {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, CipherSuites: Suites(), ServerName: c.ServerName}
	if c.CAFile != "" {
		pool, err := loadPool(c.CAFile)()
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = pool
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errors.New("tls: cert_file and key_file go together")
	}
	if c.CertFile != "" {
		cert, err := loadCertificate(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, err
		}
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert.get() }
	}
	return cfg, nil
}

// reloadEvery bounds how often files are looked at.
const reloadEvery = 5 * time.Second

// refreshed counts calls of RefreshFiles.
var refreshed atomic.Int64

// RefreshFiles has every certificate, token and file of principals of this process looked
// at when it is used next, and not within the next seconds: the operator asked for it.
func RefreshFiles() { refreshed.Add(1) }

// reloader keeps what was read from files and reads again when one of them
// changed. A failed read keeps the old value, so a half-written file breaks nothing.
type reloader[T any] struct {
	files []string
	load  func() (*T, error)

	mu      sync.Mutex
	value   *T
	stamp   string
	checked time.Time
	asked   int64       // value of refreshed when the files were looked at last
	refused string      // stamp of what was refused last
	told    func(error) // nil: nobody
}

// tell has fn called for each version of the files that is refused.
func (r *reloader[T]) tell(fn func(error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = fn
}

func (r *reloader[T]) get() (*T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := refreshed.Load()
	if r.value != nil && asked == r.asked && time.Since(r.checked) < reloadEvery {
		return r.value, nil
	}
	r.checked, r.asked = time.Now(), asked
	stamp := ""
	for _, f := range r.files {
		if st, err := os.Stat(f); err == nil {
			stamp += fmt.Sprint(st.ModTime().UnixNano(), st.Size(), ";")
		}
	}
	if r.value != nil && stamp == r.stamp {
		return r.value, nil
	}
	v, err := r.load()
	switch {
	case err == nil:
		r.value, r.stamp = v, stamp
	case r.value == nil:
		return nil, err
	case r.told != nil && r.refused != stamp:
		r.refused = stamp
		r.told(err)
	}
	return r.value, nil
}

// reload reads the files now; an error keeps the old value.
func (r *reloader[T]) reload() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := r.load()
	if err == nil {
		r.value, r.stamp, r.checked = v, "", time.Now() // read again in a while, whatever it is then
	}
	return err
}

func loadPair(cert, key string) func() (*tls.Certificate, error) {
	return func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("tls: load %s: %w", cert, err)
		}
		return &c, nil
	}
}

func loadPool(file string) func() (*x509.CertPool, error) {
	return func() (*x509.CertPool, error) {
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
}
