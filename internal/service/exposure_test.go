package service

import (
	"context"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
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

// Of two listeners at one address the second never opens: settings say so before a start does.
func TestListenersHaveAddressesOfTheirOwn(t *testing.T) {
	b := DefaultBase("127.0.0.1:4760", "127.0.0.1:4761")
	if err := b.Validate(); err != nil {
		t.Fatal(err)
	}
	b.GRPC.Listen, b.Admin.Listen = "localhost:4760", ":4760"
	err := b.checkListeners()
	for _, want := range []string{"grpc.listen", "http.listen", "admin.listen"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	b.HTTP.Listen, b.GRPC.Listen, b.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0", ""
	if err := b.checkListeners(); err != nil {
		t.Error(err)
	}
}

// A store that does not answer is the store's failure, and not the end of its caller's time.
func TestAHungStoreIsUnavailable(t *testing.T) {
	s := objstore.Deadline(fault.New(mem.New(nil), 1, fault.Rule{Kind: fault.Hang}), time.Millisecond)
	_, _, err := s.Get(t.Context(), "k", objstore.GetOptions{})
	if f := Describe(err, func(error) (rpc.Failure, bool) { return rpc.Failure{}, false }); f.Reason != rpc.ReasonStoreUnavailable || f.RetryAfter == 0 {
		t.Errorf("%v is %+v", err, f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, _, err = objstore.Deadline(fault.New(mem.New(nil), 1, fault.Rule{Kind: fault.Hang}), time.Minute).Get(ctx, "k", objstore.GetOptions{})
	if f := Describe(err, func(error) (rpc.Failure, bool) { return rpc.Failure{}, false }); f.Reason != rpc.ReasonDeadline {
		t.Errorf("the caller's deadline, %v, is %+v", err, f)
	}
}
