package rpc

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

func principalsFileWith(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "principals.yaml")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func hashOf(token string) string {
	h := sha256.Sum256([]byte(token))
	return hex.EncodeToString(h[:])
}

func TestTokenGivesItsPrincipal(t *testing.T) {
	f := principalsFileWith(t, "principals:\n"+
		"- {name: web, token_sha256: "+hashOf("s3cret")+", roles: [sender], agents: [\"web-*\", db-1]}\n"+
		"- {name: all, token_sha256: "+hashOf("other")+", roles: [sender], agents: [\"*\"]}\n")
	a, err := NewAuthenticator(AuthConfig{Mode: AuthToken, PrincipalsFile: f})
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Authenticate("s3cret", nil)
	if err != nil || p.Name != "web" {
		t.Fatalf("got %v, %v", p, err)
	}
	for agent, want := range map[string]bool{"web-1": true, "web-": true, "db-1": true, "db-2": false, "xweb-1": false, "": false} {
		if got := p.MayWrite(agent); got != want {
			t.Errorf("MayWrite(%q) = %v", agent, got)
		}
	}
	for _, token := range []string{"", "S3cret", "s3cret ", hashOf("s3cret")} {
		if _, err := a.Authenticate(token, nil); !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

func TestPrincipalsAreReadAgainAndABrokenFileChangesNothing(t *testing.T) {
	f := principalsFileWith(t, "principals: [{name: a, token_sha256: "+hashOf("one")+", roles: [sender], agents: [x]}]")
	a, err := NewAuthenticator(AuthConfig{Mode: AuthToken, PrincipalsFile: f})
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tlsfile.Refresh() // the period is over
	}
	write("principals: [broken")
	if _, err := a.Authenticate("one", nil); err != nil {
		t.Fatalf("a broken file shut the door: %v", err)
	}
	write("principals: [{name: b, token_sha256: " + hashOf("two") + ", roles: [sender], agents: [x, y]}]")
	if _, err := a.Authenticate("one", nil); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("the removed token: %v", err)
	}
	if p, err := a.Authenticate("two", nil); err != nil || p.Name != "b" {
		t.Errorf("the new token: %v, %v", p, err)
	}
}

func TestBadPrincipalsAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no name":         "principals: [{token_sha256: " + hashOf("x") + "}]",
		"no credentials":  "principals: [{name: a}]",
		"both":            "principals: [{name: a, tls_name: b, token_sha256: " + hashOf("x") + "}]",
		"plaintext token": "principals: [{name: a, token_sha256: hunter2}]",
		"unknown field":   "principals: [{name: a, tls_name: b, agnts: [x]}]",
		"one token twice": "principals: [{name: a, token_sha256: " + hashOf("x") + "}, {name: b, token_sha256: " + hashOf("x") + "}]",
		"one name twice":  "principals: [{name: a, tls_name: x}, {name: b, tls_name: x}]",
		"two documents":   "principals: [{name: a, tls_name: x}]\n---\nprincipals: []",
		"bad pattern":     "principals: [{name: a, tls_name: b, roles: [sender], agents: [\"[\"]}]",
	} {
		if _, err := NewAuthenticator(AuthConfig{Mode: AuthToken, PrincipalsFile: principalsFileWith(t, text)}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	for _, c := range []AuthConfig{{Mode: ""}, {Mode: "ldap"}, {Mode: AuthToken}, {Mode: AuthMTLS}} {
		if _, err := NewAuthenticator(c); err == nil {
			t.Errorf("%+v: taken", c)
		}
	}
}

func TestBearerToken(t *testing.T) {
	for in, want := range map[string]string{
		"Bearer abc": "abc", "bearer abc": "abc", "Basic abc": "", "Bearer": "", "": "", "Bearer  abc ": "abc",
	} {
		if got := BearerToken(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func FuzzBearerToken(f *testing.F) {
	for _, s := range []string{"Bearer abc", "bearer  abc ", "Basic abc", "Bearer", "", "Bearer a b", "Bearer \x00", "BEARER \u00e9", " Bearer x", "Bearer\tx"} {
		f.Add(s, "abc")
	}
	f.Fuzz(func(t *testing.T, header, secret string) {
		token := BearerToken(header)
		if len(token) >= len(header) && token != "" || strings.TrimSpace(token) != token {
			t.Fatalf("%q gives %q", header, token)
		}
		ps := &principals{byToken: map[[sha256.Size]byte]Principal{sha256.Sum256([]byte(secret)): {Name: "p"}}}
		p, err := ps.token(token)
		if (err == nil) != (token == secret && token != "") || err != nil && (!errors.Is(err, ErrUnauthenticated) || p.Name != "") {
			t.Fatalf("token %q against %q: %v, %v", token, secret, p, err)
		}
	})
}

func FuzzPrincipals(f *testing.F) {
	good := "principals:\n- {name: web, token_sha256: " + hashOf("s3cret") + ", roles: [sender], agents: [\"web-*\", db-1]}\n"
	for _, s := range []string{good, good + "- {name: tls, tls_name: web-1, roles: [sender], agents: [\"*\"]}\n", good + "- {name: w, tls_name: w, roles: [worker, reader], workers: [\"w*\"]}\n", "principals: [null]",
		"principals: []", "", "principals: [{name: a, tls_name: b, roles: [sender], agents: [\"[\"]}]",
		"a: &a [x,x]\nb: [*a,*a]", good + "---\n" + good, "principals: [{name: a, tls_name: b, roles: [sender], agents: [\"[a-\\\\]*\"]}]"} {
		f.Add([]byte(s), "web-1")
	}
	f.Fuzz(func(t *testing.T, b []byte, agent string) {
		if len(b) > 64<<10 {
			return // an operator's file
		}
		ps, err := parsePrincipals("principals.yaml", b)
		if err != nil {
			if ps != nil {
				t.Fatal("principals beside an error")
			}
			return
		}
		if _, err := ps.token(""); err == nil {
			t.Fatal("no token is somebody's")
		}
		for h, p := range ps.byToken {
			if p.Name == "" {
				t.Fatalf("%x has no name", h)
			}
			p.MayWrite(agent)
			if p.MayWorkAs(agent) && (len(p.Workers) == 0 || !slices.Contains(p.Roles, RoleWorker)) {
				t.Fatalf("%v works as %q", p, agent)
			}
		}
		for n, p := range ps.byName {
			if n == "" || p.Name == "" {
				t.Fatalf("%q: %v", n, p)
			}
			if len(p.Agents) == 0 && p.MayWrite(agent) {
				t.Fatal("writes without a pattern")
			}
		}
	})
}
