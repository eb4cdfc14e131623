package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// ErrUnauthenticated: no credentials, or wrong ones.
var ErrUnauthenticated = errors.New("unauthenticated")

// Authentication modes.
const (
	AuthNone  = "none"
	AuthToken = "token"
	AuthMTLS  = "mtls"
)

// AuthConfig says how callers are authenticated and who they may be.
type AuthConfig struct {
	Mode string `koanf:"mode" help:"none (loopback only), token or mtls"`
	// PrincipalsFile lists principals (YAML); read again when it changes.
	PrincipalsFile string `koanf:"principals_file" help:"YAML file of principals: name, token_sha256 or tls_name, agents, roles, workers" needs:"mode=token|mtls" check:"file"`
	AllowInsecure  bool   `koanf:"allow_insecure" help:"allow mode none, or tokens without TLS, on an address that is not loopback"`
}

// Validate checks the mode.
func (c AuthConfig) Validate() error {
	switch c.Mode {
	case AuthNone:
		return nil
	case AuthToken, AuthMTLS:
		if c.PrincipalsFile == "" {
			return fmt.Errorf("auth: mode %s needs principals_file", c.Mode)
		}
		return nil
	}
	return fmt.Errorf("auth: mode %q: want none, token or mtls", c.Mode)
}

// Check reads the file of principals, as a start does.
func (c AuthConfig) Check() error {
	if c.PrincipalsFile == "" {
		return nil
	}
	_, err := readPrincipals(c.PrincipalsFile)
	return err
}

type principalKey struct{}

// WithPrincipal puts the principal into a context.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom reads the principal; false when none was authenticated.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// Authenticator turns credentials into a principal.
type Authenticator struct {
	mode       string
	principals *tlsfile.Value[principals]
}

// NewAuthenticator reads the principals file.
func NewAuthenticator(c AuthConfig) (*Authenticator, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	a := &Authenticator{mode: c.Mode}
	if c.Mode == AuthNone {
		return a, nil
	}
	a.principals = tlsfile.NewValue(func() (*principals, error) { return readPrincipals(c.PrincipalsFile) }, c.PrincipalsFile)
	_, err := a.principals.Get()
	return a, err
}

// logRefusedFilesTo logs when a changed file of principals is refused.
func (a *Authenticator) logRefusedFilesTo(log *slog.Logger) {
	if a.principals != nil {
		a.principals.OnRefused(func(err error) {
			log.Warn("the file of principals is refused; the one before stays in force", "error", err)
		})
	}
}

// Reload reads the principals now, not within the next seconds. An error leaves those
// before in force.
func (a *Authenticator) Reload() error {
	if a.principals == nil {
		return nil
	}
	return a.principals.Reload()
}

// current gives the principals in force; nil when callers are not authenticated.
func (a *Authenticator) current() *principals {
	if a.principals == nil {
		return nil
	}
	ps, _ := a.principals.Get() // no error: NewAuthenticator has read a first version
	return ps
}

// Authenticate checks a bearer token ("" is none) or the verified client certificate.
func (a *Authenticator) Authenticate(token string, conn *tls.ConnectionState) (Principal, error) {
	return a.authenticateWith(a.current(), token, conn)
}

// authenticateWith is Authenticate with these principals.
func (a *Authenticator) authenticateWith(ps *principals, token string, conn *tls.ConnectionState) (Principal, error) {
	switch a.mode {
	case AuthNone:
		return anonymous, nil
	case AuthToken:
		return ps.token(token)
	}
	if conn == nil || len(conn.VerifiedChains) == 0 {
		return Principal{}, fmt.Errorf("%w: no verified client certificate", ErrUnauthenticated)
	}
	// VerifiedChains is set only after the handshake has verified the certificate against the
	// client CA; PeerCertificates alone would be what the client claims.
	leaf := conn.VerifiedChains[0][0]
	names := append([]string{leaf.Subject.CommonName}, leaf.DNSNames...)
	for _, u := range leaf.URIs {
		names = append(names, u.String())
	}
	// The common name comes first, then the alternative names in the order of the certificate: the first
	// that is known decides.
	for _, n := range names {
		if p, ok := ps.byName[n]; ok && n != "" {
			return p, nil
		}
	}
	return Principal{}, fmt.Errorf("%w: no principal for certificate %q", ErrUnauthenticated, leaf.Subject)
}

// Authorization is the value of the header; "" when there is none or more than one. With two, a
// proxy in front may have checked another one than this process would.
func Authorization(h http.Header) string {
	if v := h.Values("Authorization"); len(v) == 1 {
		return v[0]
	}
	return ""
}

// BearerToken reads "Bearer <token>"; "" when it is something else.
func BearerToken(authorization string) string {
	scheme, token, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
