package rpc

import (
	"crypto/tls"
	"net"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// TestSuitesAreAEAD: a client that only has CBC gets no connection, in TLS 1.2 or any other.
func TestSuitesAreAEAD(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.issue("server")
	cfg, err := ServerTLS{CertFile: cert, KeyFile: key}.Config()
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer c.Close()
				_ = c.(*tls.Conn).Handshake() // the client says how it went
			}()
		}
	}()
	roots, err := tlsfile.ReadPool(ca.dir + "/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	try := func(version uint16, suites ...uint16) error {
		raw, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		return tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "server", MinVersion: tls.VersionTLS10, MaxVersion: version, CipherSuites: suites}).Handshake()
	}
	for _, s := range []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256} {
		if try(tls.VersionTLS12, s) == nil {
			t.Errorf("%s is served", tls.CipherSuiteName(s))
		}
	}
	if try(tls.VersionTLS11) == nil {
		t.Error("TLS 1.1 is served")
	}
	if err := try(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256); err != nil {
		t.Errorf("GCM: %v", err)
	}
	if err := try(tls.VersionTLS13); err != nil {
		t.Errorf("TLS 1.3: %v", err)
	}
	insecure := map[uint16]bool{}
	for _, s := range tls.InsecureCipherSuites() {
		insecure[s.ID] = true
	}
	for _, s := range tlsfile.Suites() {
		if insecure[s] {
			t.Errorf("%s is insecure", tls.CipherSuiteName(s))
		}
	}
}
