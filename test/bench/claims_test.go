package main

import (
	"strings"
	"testing"
)

func TestFiguresOfClaimsSize(t *testing.T) {
	// Steps of the benchmark do not divide the identities by four.
	const line = "BenchmarkClaimsSize-2   	       1	8965748789805 ns/op	     12400 B/boot@19532	     12384 B/boot@39060	     12360 B/boot@9768	       325.9 B/claim	        38.00 claims/boot	     39060 each	       137.8 history-B/identity	      8661 logical-B/boot	         1.003 most/least\n"
	rs, err := sizeResults("goos: linux\n" + line + "PASS\n")
	if err != nil || len(rs) != 5 || rs[0].Value != 12384 || !strings.Contains(rs[0].Baseline, "9768") || rs[0].Ratio < 1.001 || !strings.Contains(rs[0].Note, "39060 identities") || rs[1].Value != 1.003 || !rs[1].Pass {
		t.Errorf("%+v, %v", rs, err)
	}
	if rs, err := sizeResults(strings.Replace(line, "history", "other", 1)); err != nil || len(rs) != 4 {
		t.Errorf("etcd compacted by itself: %+v, %v", rs, err)
	}
	for _, out := range []string{"", "PASS\n", strings.ReplaceAll(line, "B/boot@", "B/boat@")} {
		if rs, err := sizeResults(out); err == nil {
			t.Errorf("%q: %+v", out, rs)
		}
	}
}
