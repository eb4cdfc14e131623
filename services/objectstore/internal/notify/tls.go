package notify

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
)

// TLS says how a webhook's server is verified and which certificate this store presents. Files
// are read again when they change.
type TLS struct {
	CAFile     string `koanf:"ca_file" check:"file"`
	CertFile   string `koanf:"cert_file" check:"file"`
	KeyFile    string `koanf:"key_file" check:"file"`
	ServerName string `koanf:"server_name"`
}

// Check reads the files, as a start does.
func (t TLS) Check() error {
	_, err := t.config()
	return err
}

func (t TLS) config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls: %s has no PEM certificate", t.CAFile)
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, errors.New("tls: cert_file and key_file go together")
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls: load %s: %w", t.CertFile, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// stamp changes when one of the files does.
func (t TLS) stamp() string {
	stamp := ""
	for _, f := range []string{t.CAFile, t.CertFile, t.KeyFile} {
		if st, err := os.Stat(f); err == nil {
			stamp += fmt.Sprint(st.ModTime().UnixNano(), st.Size(), ";")
		}
	}
	return stamp
}

// Client makes a client that follows no redirect: a webhook's credentials are for its URL alone.
func Client(t TLS) *http.Client {
	return &http.Client{
		Transport:     &transport{tls: t},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// transport is an http.Transport that is replaced when its TLS files change. While they cannot be
// read, the one before stays in use.
type transport struct {
	tls TLS

	mu    sync.Mutex
	inner *http.Transport
	stamp string
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	inner, err := t.current()
	if err != nil {
		return nil, err
	}
	return inner.RoundTrip(r)
}

func (t *transport) current() (*http.Transport, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamp := t.tls.stamp()
	if t.inner != nil && stamp == t.stamp {
		return t.inner, nil
	}
	cfg, err := t.tls.config()
	if err != nil {
		if t.inner != nil {
			return t.inner, nil
		}
		return nil, err
	}
	if t.inner != nil {
		t.inner.CloseIdleConnections()
	}
	t.inner = http.DefaultTransport.(*http.Transport).Clone()
	t.inner.TLSClientConfig, t.stamp = cfg, stamp
	return t.inner, nil
}
