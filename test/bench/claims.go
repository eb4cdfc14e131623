package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// goalClaims is that of claims which share transactions beside one client that makes one a transaction.
const goalClaims = 30

// benchClaims runs the package's own benchmark, which interleaves both ways.
func benchClaims(ctx context.Context, e *env) ([]Result, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkClaims$", "-benchtime", strconv.Itoa(e.pairs)+"x", "-timeout", "30m",
		"./services/coordinator/internal/etcd")
	cmd.Env = append(os.Environ(), "TMPDIR="+e.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	var rs []Result
	for _, members := range []string{"1", "3"} {
		m := map[string]float64{}
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "BenchmarkClaims/"+members) {
				m = metricsOf(line)
			}
		}
		if m["grouped-claims/s"] == 0 {
			return nil, fmt.Errorf("no figures of %s members in\n%s", members, out)
		}
		at := "claims/" + members + "-members/"
		rs = append(rs,
			Result{Name: at + "rate", Value: m["grouped-claims/s"], Unit: "claims/s", Baseline: "one client, one claim a transaction", BaselineValue: m["one-claims/s"], Ratio: m["ratio"],
				Goal: fmt.Sprintf(">= %d", goalClaims), Pass: m["ratio"] >= goalClaims, Durability: "fsync",
				Note: fmt.Sprintf("64 clients with 32 batches each under way, 10,000 boots that are new in each round; %d rounds, ratio %.1f..%.1f", e.pairs, m["ratio-least"], m["ratio-most"])},
			Result{Name: at + "p50", Value: m["p50-ms"], Unit: "ms", Baseline: "one client, one claim a transaction", BaselineValue: m["one-p50-ms"], Ratio: m["p50-ms"] / m["one-p50-ms"],
				Durability: "fsync", Note: fmt.Sprintf("a call of 32 claims at full load; p99 %.1f ms", m["p99-ms"])},
			Result{Name: at + "cpu", Value: m["cpu-us/claim"], Unit: "us CPU/claim", Baseline: "one client, one claim a transaction", BaselineValue: m["one-cpu-us/claim"], Ratio: m["cpu-us/claim"] / m["one-cpu-us/claim"],
				Note: "linearizer, client and all members in one process"},
			Result{Name: at + "direct", Value: m["grouped-claims/s"], Unit: "claims/s", Baseline: "the same, handed to the member over gRPC", BaselineValue: m["grpc-claims/s"], Ratio: m["direct-over-grpc"],
				Durability: "fsync", Note: "median of the rounds' ratios"},
			Result{Name: at + "direct-cpu", Value: m["cpu-us/claim"], Unit: "us CPU/claim", Baseline: "the same, handed to the member over gRPC", BaselineValue: m["grpc-cpu-us/claim"], Ratio: m["cpu-us/claim"] / m["grpc-cpu-us/claim"],
				Note: "of TCP on loopback; a Unix socket costs somewhat less"},
			Result{Name: at + "batches", Value: m["batches/s"], Unit: "batches/s", Durability: "fsync", Note: "claimed, completed and settled"},
			Result{Name: at + "batch-cpu", Value: m["cpu-us/batch"], Unit: "us CPU/batch", Note: "claimed, completed and settled; all members"})
		if members != "1" {
			rs = append(rs, Result{Name: at + "peer-bytes", Value: m["peer-B/batch"], Unit: "B/batch", Note: "from member to member, all together, of a batch that is claimed, completed and settled"})
		}
	}
	return rs, nil
}

// Identities of all boots in claims-size, and in its full size.
const (
	sizeIdentities     = 1_000_000
	sizeIdentitiesFull = 10_000_000
)

// benchClaimsSize runs the benchmark of the coordinator, whose clock it moves.
func benchClaimsSize(ctx context.Context, e *env) ([]Result, error) {
	n := sizeIdentities
	switch {
	case e.quick:
		n = 1
	case e.full:
		n = sizeIdentitiesFull
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkClaimsSize$", "-benchtime", "1x", "-timeout", "3h", "./services/coordinator")
	cmd.Env = append(os.Environ(), "TMPDIR="+e.dir, "LIGHTMETRICS_IDENTITIES="+strconv.Itoa(n))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return sizeResults(string(out))
}

// sizeResults are the figures in the output of BenchmarkClaimsSize: those of a boot after a quarter, a half and all of its identities, in steps of the
// benchmark, and others.
func sizeResults(out string) ([]Result, error) {
	m := map[string]float64{}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "BenchmarkClaimsSize") {
			m = metricsOf(line)
		}
	}
	quarter := m["each"]
	for name := range m {
		if after, ok := strings.CutPrefix(name, "B/boot@"); ok {
			if n, err := strconv.ParseFloat(after, 64); err == nil {
				quarter = min(quarter, n)
			}
		}
	}
	last, first := m[fmt.Sprintf("B/boot@%.0f", m["each"])], m[fmt.Sprintf("B/boot@%.0f", quarter)]
	if last == 0 || first == 0 || quarter == m["each"] {
		return nil, fmt.Errorf("no figures in\n%s", out)
	}
	rs := []Result{
		compare("claims-size/boot", last, "B", fmt.Sprintf("after %.0f identities", quarter), first, "etcd, fsync",
			fmt.Sprintf("of an active boot in etcd after %.0f identities, compacted and defragmented; a batch each 30 s and default settings, %.0f claims that are not folded yet", m["each"], m["claims/boot"])),
		{Name: "claims-size/flat", Value: m["most/least"], Unit: "x", Goal: "<= 1.10", Pass: m["most/least"] <= 1.10,
			Note: "the most that a boot took after a quarter, a half and all of its identities, by the least"},
		{Name: "claims-size/keys", Value: m["logical-B/boot"], Unit: "B", Note: "keys and values of an active boot alone"},
		{Name: "claims-size/claim", Value: m["B/claim"], Unit: "B", Note: "of etcd's database for each claim"},
	}
	if h, ok := m["history-B/identity"]; ok {
		rs = append(rs, Result{Name: "claims-size/history", Value: h, Unit: "B", Note: "of each identity until etcd is compacted: revisions of its claim that were overwritten or deleted"})
	}
	return rs, nil
}
