package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// Config names the bucket and how to reach it.
type Config struct {
	Endpoint        string        `koanf:"endpoint" help:"URL of the S3 service; empty is AWS S3 in the region"`
	Region          string        `koanf:"region" help:"region that requests are signed for"`
	Bucket          string        `koanf:"bucket" help:"bucket name; access points and multi-region access points are refused"`
	Prefix          string        `koanf:"prefix" help:"prefix of every key, empty or ending in a slash"`
	AccessKeyID     string        `koanf:"access_key_id" help:"access key; empty takes the AWS default credential chain"`
	SecretAccessKey config.Secret `koanf:"secret_access_key" help:"secret of the access key"`
	// SecretAccessKeyFile fills SecretAccessKey when settings are loaded.
	SecretAccessKeyFile string        `koanf:"secret_access_key_file" help:"file that holds the secret of the access key, in place of secret_access_key"`
	PathStyle           bool          `koanf:"path_style" help:"put the bucket into the path, not into the host name"`
	CAFile              string        `koanf:"ca_file" help:"PEM file of the authorities that the endpoint's certificate is checked against; empty takes the system's" check:"file"`
	RequestTimeout      time.Duration `koanf:"request_timeout" help:"deadline of one request, its body included"`
	Attempts            int           `koanf:"attempts" help:"attempts at an operation that failed in a way that a later attempt can mend"`
	MaxConnections      int           `koanf:"max_connections" help:"most connections to the service; more requests wait for one"`
}

// DefaultConfig leaves Endpoint, Bucket and credentials to the operator.
func DefaultConfig() Config {
	return Config{
		Region:         "us-east-1",
		RequestTimeout: objstore.DefaultPolicy().Timeout,
		Attempts:       objstore.DefaultPolicy().Retry.Attempts,
		MaxConnections: 512,
	}
}

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// aliasSuffixes end bucket names that are not plain buckets: access point aliases,
// Object Lambda, directory buckets (listed without order), multi-region access points, tables.
var aliasSuffixes = []string{"-s3alias", "--ol-s3", "--x-s3", "--xa-s3", ".mrap", "--table-s3"}

// Validate refuses settings that can't work, and buckets that can't be one acceptance authority.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("s3: "+format, args...)) }
	switch {
	case c.Bucket == "":
		bad("bucket is empty")
	case strings.HasPrefix(c.Bucket, "arn:"):
		bad("bucket %q is an ARN: access points and multi-region access points are not one bucket", c.Bucket)
	case !bucketName.MatchString(c.Bucket):
		bad("bucket %q: want 3 to 63 of a-z, 0-9, dot and hyphen", c.Bucket)
	}
	for _, s := range aliasSuffixes {
		if strings.HasSuffix(c.Bucket, s) {
			bad("bucket %q is an alias or a directory bucket (%s)", c.Bucket, s)
		}
	}
	if c.Endpoint != "" {
		if err := checkEndpoint(c.Endpoint); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Region == "" {
		bad("region is empty")
	}
	if c.Prefix != "" {
		// Two authorities with prefixes "a" and "ab" would share keys in listings; the slash keeps them
		// apart.
		if !strings.HasSuffix(c.Prefix, "/") {
			bad("prefix %q does not end in a slash", c.Prefix)
		} else if err := objstore.CheckKey(c.Prefix + "x"); err != nil {
			bad("prefix %q: %w", c.Prefix, err)
		}
	}
	if (c.AccessKeyID == "") != (c.SecretAccessKey == "") {
		bad("access_key_id and secret_access_key go together")
	}
	if c.CAFile != "" && strings.HasPrefix(c.Endpoint, "http://") {
		bad("ca_file has no effect: endpoint %q is without TLS", c.Endpoint)
	}
	if c.RequestTimeout <= 0 {
		bad("request_timeout %v is not positive", c.RequestTimeout)
	}
	if c.Attempts < 1 || c.Attempts > 10 {
		bad("attempts %d: want 1 to 10", c.Attempts)
	}
	if c.MaxConnections < 1 {
		bad("max_connections %d is not positive", c.MaxConnections)
	}
	return errors.Join(errs...)
}

// Policy is the objstore.Policy of these settings.
func (c Config) Policy() objstore.Policy {
	p := objstore.DefaultPolicy()
	p.Timeout, p.Retry.Attempts = c.RequestTimeout, c.Attempts
	return p
}

// Check reads the certificates as New does, so that a wrong file is found when settings are checked.
func (c Config) Check() error {
	_, err := c.transport()
	return err
}

func checkEndpoint(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("s3: endpoint: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("s3: endpoint %q: want http://host or https://host", s)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("s3: endpoint %q: want no user, query or fragment", u.Redacted())
	case strings.Contains(u.Host, "accesspoint"):
		return fmt.Errorf("s3: endpoint %q is an access point", s)
	}
	return nil
}

// idleTimeout is shorter than the idle timeout of common servers, so that a write is seldom
// sent on a connection that the server is closing: its outcome would be unknown.
const (
	idleTimeout      = 15 * time.Second
	handshakeTimeout = 10 * time.Second
)

func (c Config) transport() (*http.Transport, error) {
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dial,
		MaxIdleConns:           c.MaxConnections,
		MaxIdleConnsPerHost:    c.MaxConnections,
		MaxConnsPerHost:        c.MaxConnections,
		IdleConnTimeout:        idleTimeout,
		TLSHandshakeTimeout:    handshakeTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        16 << 10, // a manifest or a small frame is sent with one system call
		// Otherwise Go asks for gzip and removes the Content-Length of what it decompresses, which
		// readBody needs.
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if c.CAFile != "" {
		cas := tlsfile.NewValue(func() (*x509.CertPool, error) { return tlsfile.ReadPool(c.CAFile) }, c.CAFile)
		pool, err := cas.Get()
		if err != nil {
			return nil, fmt.Errorf("s3: ca_file: %w", err)
		}
		t.TLSClientConfig.RootCAs = pool // for connections through a proxy
		t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			cfg := &tls.Config{MinVersion: tls.VersionTLS12}
			cfg.RootCAs, _ = cas.Get() // there is one since the first
			return dialTLS(ctx, network, addr, cfg)
		}
	}
	return t, nil
}
