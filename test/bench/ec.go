package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
)

// benchEC measures what a store on several drives does. All drives of it are directories of one file system here: rates of
// real drives differ, ratios of work on the same bytes less so.
func benchEC(ctx context.Context, e *env) ([]Result, error) {
	var rs []Result
	for _, part := range []struct {
		name string
		run  func(context.Context, *env) ([]Result, error)
	}{{"encode", ecEncode}, {"read", ecRead}, {"heal", ecHeal}, {"mirrors", ecMirrors}, {"segments", ecSegments}} {
		if !e.cases.MatchString("ec/" + part.name + "/") {
			continue
		}
		got, err := part.run(ctx, e)
		rs = append(rs, got...)
		if err != nil {
			return rs, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return rs, nil
}

// goalEncode is that of coding with its hashes beside klauspost/reedsolomon with the same.
const goalEncode = 0.70

// ecEncode runs the package's own benchmark, which interleaves in the same way.
func ecEncode(ctx context.Context, e *env) ([]Result, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkEncodeFiles$", "-benchtime", strconv.Itoa(e.pairs)+"x",
		"./services/objectstore/internal/erasure")
	cmd.Env = append(os.Environ(), "TMPDIR="+e.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	m := metricsOf(string(out))
	var rs []Result
	for _, code := range []string{"4+2", "8+3"} {
		for _, size := range []string{"1MiB", "8MiB", "64MiB"} {
			for _, w := range []struct{ where, durability, what string }{
				{"files", "page cache", "to files"}, {"memory", "memory", "to nobody, from bytes in memory, which Encode reads into memory of its own"},
			} {
				from := code + "/" + size + "/" + w.where + "/"
				if m[from+"encode-MB/s"] == 0 {
					return nil, fmt.Errorf("no figures of %s in\n%s", from, out)
				}
				for _, base := range []struct{ name, what string }{{"hashed", "klauspost/reedsolomon, the same hashes"}, {"alone", "klauspost/reedsolomon, no hash"}} {
					of := from + "of-" + base.name
					r := Result{Name: "ec/encode/" + from + base.name, Value: m[from+"encode-MB/s"], Unit: "MB/s", Baseline: base.what, BaselineValue: m[from+base.name+"-MB/s"],
						Ratio: m[of], Durability: w.durability, Note: fmt.Sprintf("%s; %d rounds, ratio %.2f..%.2f", w.what, e.pairs, m[of+"-least"], m[of+"-most"])}
					if base.name == "hashed" && w.where == "files" {
						r.Goal, r.Pass = fmt.Sprintf(">= %.2f", goalEncode), r.Ratio >= goalEncode
					}
					rs = append(rs, r)
				}
			}
		}
	}
	return rs, nil
}
