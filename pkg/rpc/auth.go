package rpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strings"

	"gopkg.in/yaml.v3"
)

// ErrUnauthenticated: no credentials, or wrong ones.
var ErrUnauthenticated = errors.New("unauthenticated")

// Authentication modes.
const (
	AuthNone  = "none"
	AuthToken = "token"
	AuthMTLS  = "mtls"
)

// AuthConfig says who may call.
type AuthConfig struct {
	Mode string `koanf:"mode" help:"none (loopback only), token or mtls"`
	// PrincipalsFile lists principals (YAML); read again when it changes.
	PrincipalsFile string `koanf:"principals_file" help:"YAML file of principals: name, token_sha256 or tls_name, agents"`
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

// Principal is who calls.
type Principal struct {
	Name string
	// Agents are path.Match patterns of the agent ids that it may write.
	Agents []string
}

// MayWrite reports whether the principal may write the agent's batches.
func (p Principal) MayWrite(agentID string) bool {
	for _, pat := range p.Agents {
		if pat == "*" { // slashes too
			return true
		}
		if ok, err := path.Match(pat, agentID); ok && err == nil {
			return true
		}
	}
	return false
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
	principals *reloader[principals]
}

// principals is the parsed file.
type principals struct {
	byToken map[[sha256.Size]byte]Principal
	byName  map[string]Principal
}

type principalFile struct {
	Principals []struct {
		Name        string   `yaml:"name"`
		TokenSHA256 string   `yaml:"token_sha256"`
		TLSName     string   `yaml:"tls_name"`
		Agents      []string `yaml:"agents"`
	} `yaml:"principals"`
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
	a.principals = &reloader[principals]{files: []string{c.PrincipalsFile}, load: func() (*principals, error) {
		return readPrincipals(c.PrincipalsFile)
	}}
	_, err := a.principals.get()
	return a, err
}

// Authenticate checks a bearer token ("" is none) or the verified client certificate.
func (a *Authenticator) Authenticate(token string, conn *tls.ConnectionState) (Principal, error) {
	if a.mode == AuthNone {
		return Principal{Name: "anonymous", Agents: []string{"*"}}, nil
	}
	ps, err := a.principals.get()
	if err != nil {
		return Principal{}, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	if a.mode == AuthToken {
		return ps.token(token)
	}
	if conn == nil || len(conn.VerifiedChains) == 0 {
		return Principal{}, fmt.Errorf("%w: no verified client certificate", ErrUnauthenticated)
	}
	leaf := conn.VerifiedChains[0][0]
	names := append([]string{leaf.Subject.CommonName}, leaf.DNSNames...)
	for _, u := range leaf.URIs {
		names = append(names, u.String())
	}
	for _, n := range names {
		if p, ok := ps.byName[n]; ok && n != "" {
			return p, nil
		}
	}
	return Principal{}, fmt.Errorf("%w: no principal for certificate %q", ErrUnauthenticated, leaf.Subject)
}

// token looks a token up by its hash; the comparison of hashes is constant-time.
func (ps *principals) token(token string) (Principal, error) {
	if token == "" {
		return Principal{}, fmt.Errorf("%w: no bearer token", ErrUnauthenticated)
	}
	sum := sha256.Sum256([]byte(token))
	for h, p := range ps.byToken {
		if subtle.ConstantTimeCompare(h[:], sum[:]) == 1 {
			return p, nil
		}
	}
	return Principal{}, fmt.Errorf("%w: unknown bearer token", ErrUnauthenticated)
}

func readPrincipals(file string) (*principals, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	return parsePrincipals(file, b)
}

func parsePrincipals(file string, b []byte) (*principals, error) {
	var f principalFile
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("auth: %s: %w", file, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) { // it would go unread
		return nil, fmt.Errorf("auth: %s: something follows the first document", file)
	}
	ps := &principals{byToken: map[[sha256.Size]byte]Principal{}, byName: map[string]Principal{}}
	for i, e := range f.Principals {
		if e.Name == "" || (e.TokenSHA256 == "") == (e.TLSName == "") {
			return nil, fmt.Errorf("auth: %s: principal %d: want name, and one of token_sha256 and tls_name", file, i)
		}
		for _, pat := range e.Agents {
			if _, err := path.Match(pat, ""); err != nil {
				return nil, fmt.Errorf("auth: %s: principal %q: pattern %q: %w", file, e.Name, pat, err)
			}
		}
		p := Principal{Name: e.Name, Agents: e.Agents}
		if e.TLSName != "" {
			if _, ok := ps.byName[e.TLSName]; ok {
				return nil, fmt.Errorf("auth: %s: principal %q: another has its tls_name", file, e.Name)
			}
			ps.byName[e.TLSName] = p
			continue
		}
		h, err := hex.DecodeString(e.TokenSHA256)
		if err != nil || len(h) != sha256.Size {
			return nil, fmt.Errorf("auth: %s: principal %q: token_sha256 is not 64 hex digits", file, e.Name)
		}
		if _, ok := ps.byToken[[sha256.Size]byte(h)]; ok {
			return nil, fmt.Errorf("auth: %s: principal %q: another has its token", file, e.Name)
		}
		ps.byToken[[sha256.Size]byte(h)] = p
	}
	return ps, nil
}

// Authorization is the value of the header; "" when there is none, or more than one:
// a proxy before us may have looked at another than we would.
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
