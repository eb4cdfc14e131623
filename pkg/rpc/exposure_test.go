package rpc

import (
	"strings"
	"testing"
)

func TestCheckExposure(t *testing.T) {
	const everywhere, here = "0.0.0.0:4750", "127.0.0.1:4750"
	cert, ca := ServerTLS{CertFile: "c", KeyFile: "k"}, ServerTLS{CertFile: "c", KeyFile: "k", ClientCAFile: "ca"}
	for name, c := range map[string]struct {
		auth AuthConfig
		tls  ServerTLS
		addr string
		ok   bool
	}{
		"none on loopback":       {AuthConfig{Mode: AuthNone}, ServerTLS{}, here, true},
		"none, not served":       {AuthConfig{Mode: AuthNone}, ServerTLS{}, "", true},
		"none everywhere":        {AuthConfig{Mode: AuthNone}, cert, everywhere, false},
		"none, on purpose":       {AuthConfig{Mode: AuthNone, AllowInsecure: true}, ServerTLS{}, everywhere, true},
		"tokens in the clear":    {AuthConfig{Mode: AuthToken}, ServerTLS{}, everywhere, false},
		"tokens on loopback":     {AuthConfig{Mode: AuthToken}, ServerTLS{}, here, true},
		"tokens over TLS":        {AuthConfig{Mode: AuthToken}, cert, everywhere, true},
		"mTLS":                   {AuthConfig{Mode: AuthMTLS}, ca, everywhere, true},
		"mTLS without CA":        {AuthConfig{Mode: AuthMTLS}, cert, here, false},
		"mTLS without CA, again": {AuthConfig{Mode: AuthMTLS, AllowInsecure: true}, cert, here, false},
	} {
		err := CheckExposure(c.auth, c.tls, false, map[string]string{"http.listen": c.addr, "grpc.listen": here})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProfilesAreForLoopbackOrOperators(t *testing.T) {
	cert := ServerTLS{CertFile: "c", KeyFile: "k", ClientCAFile: "ca"}
	for _, c := range []struct {
		auth AuthConfig
		addr string
		ok   bool
	}{
		{AuthConfig{Mode: AuthNone}, "127.0.0.1:1", true},
		{AuthConfig{Mode: AuthNone, AllowInsecure: true}, "0.0.0.0:1", false},
		{AuthConfig{Mode: AuthToken}, "0.0.0.0:1", true},
		{AuthConfig{Mode: AuthToken, AllowInsecure: true}, "0.0.0.0:1", true},
		{AuthConfig{Mode: AuthMTLS}, "0.0.0.0:1", true},
	} {
		err := CheckExposure(c.auth, cert, true, map[string]string{"admin.listen": c.addr})
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "admin.listen") {
			t.Errorf("%+v on %s: %v", c.auth, c.addr, err)
		}
	}
}
