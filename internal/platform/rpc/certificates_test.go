package rpc

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// TestCertificatesInUse: every certificate that a server or a client shows is listed once
// with its end, the new end once the file has changed, and the one in force while it is broken.
func TestCertificatesInUse(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.issue("server")
	clientCert, clientKey := ca.issue("client")
	for range 3 {
		if _, err := (ServerTLS{CertFile: cert, KeyFile: key}).Config(); err != nil {
			t.Fatal(err)
		}
		if _, err := (tlsfile.Client{Enabled: true, CertFile: clientCert, KeyFile: clientKey}).Config(); err != nil {
			t.Fatal(err)
		}
	}
	ends := func() map[string]time.Time {
		out, dir := map[string]time.Time{}, filepath.Dir(cert)
		for _, c := range tlsfile.Certificates() {
			if filepath.Dir(c.File) != dir {
				continue // another test's
			}
			if _, twice := out[c.File]; twice {
				t.Errorf("%s is listed twice", c.File)
			}
			out[c.File] = c.NotAfter
		}
		return out
	}
	before := ends()
	if len(before) != 2 || before[cert].Before(time.Now()) || before[clientCert].Before(time.Now()) {
		t.Fatalf("got %v", before)
	}
	ca.lasts = 48 * time.Hour
	ca.issue("server")
	tlsfile.Refresh()
	if after := ends(); !after[cert].After(before[cert].Add(24*time.Hour)) || !after[clientCert].Equal(before[clientCert]) {
		t.Errorf("renewed: %v, before %v", after, before)
	}
	renewed := ends()[cert]
	if err := os.WriteFile(cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	tlsfile.Refresh()
	if got := ends()[cert]; !got.Equal(renewed) {
		t.Errorf("broken: %v, want %v", got, renewed)
	}
}
