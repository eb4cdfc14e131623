package send_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// failing waits until every collector has failed, and gives the first one's status.
func (f *fixture) failing() send.CollectorStatus {
	f.t.Helper()
	f.refused()
	return f.sender.Status().Collectors[0]
}

// refuses gives a hello's answer.
func refuses(err error) func(*ingestv1.Hello) (*ingestv1.Welcome, error) {
	return func(*ingestv1.Hello) (*ingestv1.Welcome, error) { return nil, err }
}

// TestFaultsAreNamed: each fault that only a person can mend has its name, also when the
// transport knows it by a text alone; what may pass by itself has none.
func TestFaultsAreNamed(t *testing.T) {
	ours, theirs := sendtest.NewPKI(t), sendtest.NewPKI(t)
	year := time.Now().Add(365 * 24 * time.Hour)
	trust := tlsfile.Client{Enabled: true, CAFile: ours.CAFile, ServerName: "collector"}
	strange := trust
	strange.CertFile, strange.KeyFile = theirs.Issue("agent", year)
	good := []grpc.ServerOption{ours.ServerOption("collector", year, "")}
	mutual := []grpc.ServerOption{ours.ServerOption("collector", year, ours.CAFile)}
	for name, c := range map[string]struct {
		collector *sendtest.Collector
		tls       tlsfile.Client
		want      send.Fault
	}{
		"unknown token": {&sendtest.Collector{OnHello: refuses(rpc.Failure{Code: codes.Unauthenticated, Reason: rpc.ReasonUnauthenticated}.Err())},
			tlsfile.Client{}, send.FaultUnauthenticated},
		"not permitted": {&sendtest.Collector{OnHello: refuses(rpc.Failure{Code: codes.PermissionDenied, Reason: rpc.ReasonForbidden}.Err())},
			tlsfile.Client{}, send.FaultForbidden},
		"another service":           {&sendtest.Collector{OnHello: refuses(status.Error(codes.Unimplemented, "unknown service"))}, tlsfile.Client{}, send.FaultNotACollector},
		"wrong CA":                  {&sendtest.Collector{Options: []grpc.ServerOption{theirs.ServerOption("collector", year, "")}}, trust, send.FaultServerUntrusted},
		"another name":              {&sendtest.Collector{Options: []grpc.ServerOption{ours.ServerOption("other", year, "")}}, trust, send.FaultServerName},
		"expired":                   {&sendtest.Collector{Options: []grpc.ServerOption{ours.ServerOption("collector", time.Now().Add(-time.Hour), "")}}, trust, send.FaultServerExpired},
		"no client certificate":     {&sendtest.Collector{Options: mutual}, trust, send.FaultClientCertificate},
		"strange client's":          {&sendtest.Collector{Options: mutual}, strange, send.FaultClientCertificate},
		"TLS to a plaintext port":   {&sendtest.Collector{}, trust, send.FaultServerIsPlaintext},
		"plaintext to a TLS port":   {&sendtest.Collector{Options: good}, tlsfile.Client{}, send.FaultServerIsTLS},
		"plaintext to a mutual one": {&sendtest.Collector{Options: mutual}, tlsfile.Client{}, send.FaultServerIsTLS},
		"not ready":                 {&sendtest.Collector{OnHello: refuses(rpc.Failure{Code: codes.Unavailable, Reason: rpc.ReasonNotReady}.Err())}, tlsfile.Client{}, ""},
		"cut":                       {&sendtest.Collector{OnHello: refuses(status.Error(codes.Unavailable, "cut"))}, tlsfile.Client{}, ""},
		"cut, over TLS":             {&sendtest.Collector{Options: good, OnHello: refuses(status.Error(codes.Unavailable, "cut"))}, trust, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.cfg.Client.TLS = c.tls
			f.cfg.BackoffInitial, f.cfg.BackoffMax = time.Hour, time.Hour
			f.collector(c.collector)
			f.run()
			got := f.failing()
			if got.Fault != c.want || got.State != send.Failing || got.Connected {
				t.Errorf("%+v, want %q", got, c.want)
			}
			if c.want != "" && !slices.Contains(send.Faults(), c.want) {
				t.Errorf("%s is not among Faults", c.want)
			}
			if f.sender.Status().DisconnectedSince == nil {
				t.Error("there is no time since when no collector is in use")
			}
		})
	}
}

// TestNobodyListens has no fault of its own, and a collector that is back clears what was noted.
func TestNobodyListens(t *testing.T) {
	f := newFixture(t)
	addr := closedPort(t)
	f.cfg.Collectors = []string{addr}
	f.run()
	if got := f.failing(); got.Fault != "" || got.State != send.Failing {
		t.Errorf("%+v", got)
	}
	c := &sendtest.Collector{Store: f.store}
	if _, err := c.Start(addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	f.append(1)
	f.drained()
	st := f.sender.Status()
	if got := st.Collectors[0]; got.State != send.Connected || got.Fault != "" || got.LastError != "" || st.DisconnectedSince != nil {
		t.Errorf("%+v, disconnected %v", got, st.DisconnectedSince)
	}
}

// TestClockOffset: an acceptance outside of the time between sending and answer tells by
// how much the clocks differ at least; within it they may be the same.
func TestClockOffset(t *testing.T) {
	for name, c := range map[string]struct {
		accepted func(now time.Time) int64
		low, top float64
	}{
		"the same": {func(now time.Time) int64 { return now.UnixNano() }, 0, 0},
		"ahead":    {func(now time.Time) int64 { return now.Add(time.Hour).UnixNano() }, 3000, 3600},
		"behind":   {func(now time.Time) int64 { return now.Add(-time.Hour).UnixNano() }, -3600, -3000},
		"not said": {func(time.Time) int64 { return 0 }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
				r := f.store.Accept(b)
				r.Acceptance = &ingestv1.Acceptance{AcceptedAtUnixNs: c.accepted(time.Now())}
				reply(r)
				return nil
			}})
			f.append(1)
			f.run()
			f.drained()
			if got := f.sender.Status().ClockOffsetSeconds; got < c.low || got > c.top {
				t.Errorf("offset %v s, want %v to %v", got, c.low, c.top)
			}
		})
	}
}
