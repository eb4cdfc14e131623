package all

import (
	"context"
	"fmt"
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

// TestVariablesOfServicesArePlanned: what a service takes from the environment, those that
// call it know, before what the file says.
func TestVariablesOfServicesArePlanned(t *testing.T) {
	p := &plan{cfg: DefaultConfig(), creds: &credentials{dir: "/credentials"},
		file: map[string]section{ingest: {"grpc": section{"listen": "127.0.0.1:1"}}, reconciler: {"grpc": section{"listen": "127.0.0.1:2"}}},
		environ: []string{"LIGHTMETRICS_INGEST_GRPC_LISTEN=127.0.0.1:3", "LIGHTMETRICS_OBJECTSTORE_LISTEN=127.0.0.1:4",
			"LIGHTMETRICS_QUERY_TLS_CERT_FILE=c", "LIGHTMETRICS_QUERY_HTTP_LISTEN=127.0.0.1:5", "LIGHTMETRICS_COORDINATOR_GRPC_LISTEN="}}
	send := p.of(agent)[agent].(section)["send"].(section)["collectors"]
	if got := fmt.Sprint(send); got != "[127.0.0.1:3]" {
		t.Errorf("agents send to %s", got)
	}
	if got := p.of(rollup)[rollup].(section)["store"].(section)["endpoint"]; got != "http://127.0.0.1:4" {
		t.Errorf("the store is at %s", got)
	}
	if got := p.readyURL(query); got != "https://127.0.0.1:5/-/ready" {
		t.Errorf("query is asked at %s", got)
	}
	if p.reconcilerGRPC() != "127.0.0.1:2" || p.coordinatorGRPC() != "127.0.0.1:4781" {
		t.Errorf("reconciler %s, coordinator %s", p.reconcilerGRPC(), p.coordinatorGRPC())
	}
	for _, l := range p.listeners() {
		if l.service == ingest && l.setting == "grpc.listen" && l.addr != "127.0.0.1:3" {
			t.Errorf("the start waits for %s", l.addr)
		}
	}
}
