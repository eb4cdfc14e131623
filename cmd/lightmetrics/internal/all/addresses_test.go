package all

import (
	"context"
	"net"
	"strings"
	"testing"
)

// TestAddressesInUse: what another process has is named with the setting that changes it,
// and nothing else is.
func TestAddressesInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &plan{cfg: DefaultConfig(), file: map[string]section{
		query: {"http": section{"listen": taken.Addr().String()}},
	}}
	var own []listener
	for _, l := range p.listeners() {
		if l.service == query && l.setting == "http.listen" {
			own = append(own, l)
			continue
		}
		l.addr = "127.0.0.1:0"
		own = append(own, l)
	}
	err = awaitAddresses(context.Background(), own, 0)
	if err == nil || !strings.Contains(err.Error(), "query.http.listen") || strings.Contains(err.Error(), "ingest") {
		t.Errorf("got %v", err)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if err := awaitAddresses(context.Background(), own, 0); err != nil {
		t.Errorf("free again: %v", err)
	}
}

// TestBannerNamesTheScheme: what the banner says to call is what is served.
func TestBannerNamesTheScheme(t *testing.T) {
	for want, file := range map[string]map[string]section{
		"http://127.0.0.1:4760":  {},
		"https://127.0.0.1:4760": {query: {"tls": section{"cert_file": "c", "key_file": "k"}}},
	} {
		p := &plan{cfg: DefaultConfig(), file: file, creds: &credentials{dir: "/credentials"}}
		var b strings.Builder
		banner(&b, p, "")
		for _, line := range []string{"queries to   " + want + "\n", "'" + want + "/api/v1/query"} {
			if !strings.Contains(b.String(), line) {
				t.Errorf("no %q in\n%s", line, &b)
			}
		}
	}
}
