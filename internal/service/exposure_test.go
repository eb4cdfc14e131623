package service

import (
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

func TestCheckExposure(t *testing.T) {
	const everywhere, here = "0.0.0.0:4750", "127.0.0.1:4750"
	cert, ca := rpc.ServerTLS{CertFile: "c", KeyFile: "k"}, rpc.ServerTLS{CertFile: "c", KeyFile: "k", ClientCAFile: "ca"}
	for name, c := range map[string]struct {
		auth rpc.AuthConfig
		tls  rpc.ServerTLS
		addr string
		ok   bool
	}{
		"none on loopback":       {rpc.AuthConfig{Mode: rpc.AuthNone}, rpc.ServerTLS{}, here, true},
		"none, not served":       {rpc.AuthConfig{Mode: rpc.AuthNone}, rpc.ServerTLS{}, "", true},
		"none everywhere":        {rpc.AuthConfig{Mode: rpc.AuthNone}, cert, everywhere, false},
		"none, on purpose":       {rpc.AuthConfig{Mode: rpc.AuthNone, AllowInsecure: true}, rpc.ServerTLS{}, everywhere, true},
		"tokens in the clear":    {rpc.AuthConfig{Mode: rpc.AuthToken}, rpc.ServerTLS{}, everywhere, false},
		"tokens on loopback":     {rpc.AuthConfig{Mode: rpc.AuthToken}, rpc.ServerTLS{}, here, true},
		"tokens over TLS":        {rpc.AuthConfig{Mode: rpc.AuthToken}, cert, everywhere, true},
		"mTLS":                   {rpc.AuthConfig{Mode: rpc.AuthMTLS}, ca, everywhere, true},
		"mTLS without CA":        {rpc.AuthConfig{Mode: rpc.AuthMTLS}, cert, here, false},
		"mTLS without CA, again": {rpc.AuthConfig{Mode: rpc.AuthMTLS, AllowInsecure: true}, cert, here, false},
	} {
		b := DefaultBase(here, c.addr)
		b.Auth, b.TLS = c.auth, c.tls
		err := b.checkExposure()
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProfilesAreForLoopbackOrOperators(t *testing.T) {
	cert := rpc.ServerTLS{CertFile: "c", KeyFile: "k", ClientCAFile: "ca"}
	for _, c := range []struct {
		auth rpc.AuthConfig
		addr string
		ok   bool
	}{
		{rpc.AuthConfig{Mode: rpc.AuthNone}, "127.0.0.1:1", true},
		{rpc.AuthConfig{Mode: rpc.AuthNone, AllowInsecure: true}, "0.0.0.0:1", false},
		{rpc.AuthConfig{Mode: rpc.AuthToken}, "0.0.0.0:1", true},
		{rpc.AuthConfig{Mode: rpc.AuthToken, AllowInsecure: true}, "0.0.0.0:1", true},
		{rpc.AuthConfig{Mode: rpc.AuthMTLS}, "0.0.0.0:1", true},
	} {
		b := DefaultBase("127.0.0.1:1", "")
		b.Auth, b.TLS, b.Pprof, b.Admin.Listen = c.auth, cert, true, c.addr
		err := b.checkExposure()
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "admin.listen") {
			t.Errorf("%+v on %s: %v", c.auth, c.addr, err)
		}
	}
}
