package peerframes

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what is believed of a collector.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Run: "TestFramesAreTaken|TestLiars|TestSilent|TestAnEnded|TestRunsHave|TestWhatFits|TestAFrameInPieces|TestCallsThatWait", Timeout: 10 * time.Second,
		Mutants: []mutants.Mutant{
			{Name: "the hash is not compared", File: "assembly.go", Old: "sum != b.FrameSHA256", New: "sum == (identity.Digest{})", By: "TestLiars"},
			{Name: "the length is not compared", File: "assembly.go", Old: "> b.FrameBytes:", New: "> 1<<30:", By: "TestLiars"},
			{Name: "pieces are taken as they come", File: "assembly.go", Old: "int64(p.GetIndex()) != int64(a.next)", New: "false", By: "TestLiars"},
			{Name: "an empty piece is a piece", File: "assembly.go", Old: "case p.GetMissing() || len(data) == 0:", New: "case p.GetMissing():", By: "TestLiars"},
			{Name: "an answer that ends early is whole", File: "assembly.go", Old: "	if a.next < len(a.batches) {", New: "	if false {", By: "TestLiars"},
			{Name: "empty messages go on for ever", File: "peerframes.go", Old: "if len(m.GetPieces()) == 0 {", New: "if false {", By: "TestLiars"},
			{Name: "a liar is asked again", File: "circuit.go", Old: "	if lies {", New: "	if false {", By: "TestLiars"},
			{Name: "a silent collector is asked for ever", File: "circuit.go", Old: "	if c.failures >= tolerated {", New: "	if false {", By: "TestSilent"},
			{Name: "everybody tries after a pause", File: "circuit.go", Old: "	if !c.until.IsZero() {", New: "	if false {", By: "TestSilent"},
			{Name: "a call waits as long as its caller", File: "peerframes.go", Old: "context.WithTimeout(ctx, wait)", New: "context.WithTimeout(ctx, wait+time.Hour)", By: "TestSilent"},
			{Name: "the caller's end is a fault", File: "peerframes.go", Old: "	if ctx.Err() != nil {", New: "	if false {", By: "TestAnEnded"},
			{Name: "a call that was not sent is the collector's fault", File: "peerframes.go", Old: "		return errQueued\n", New: "		return ctx.Err()\n", By: "TestCallsThatWait"},
			{Name: "buffers of frames grow by doubling", File: "assembly.go", Old: "make([]byte, 0, min(b.FrameBytes, maxFrame))", New: "[]byte(nil)", By: "TestAFrameInPieces"},
			{Name: "a run stays with who has left", File: "peerframes.go", Old: "	for _, run := range p.runs {\n		p.forget(run)\n	}\n", New: "", By: "TestRunsHave"},
		},
	})
}
