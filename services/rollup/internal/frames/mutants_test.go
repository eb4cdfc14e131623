package frames

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of where frames come from.
func TestMutantsAreCaught(t *testing.T) {
	const packs = "packs.go"
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "the hash of a frame from a pack is not checked", File: packs, Old: "identity.Sum(raw) != e.FrameSHA256", New: "identity.Sum(raw).IsZero()", By: "TestPacksBeforeBlobs"},
		{Name: "the blobs of frames that a pack does not give are not read", File: packs, Old: "		if !done[i] {\n", New: "		if !done[i] && len(packs) == 0 {\n", By: "TestPacksBeforeBlobs"},
		{Name: "a pack that can't be read fails the hour", File: packs, Old: "		return nil, nil\n", New: "		return nil, err\n", By: "TestPacksBeforeBlobs"},
		{Name: "a pack that can't be read is not counted", File: packs, Old: "		p.Failed(err)\n", New: "", By: "TestPacksBeforeBlobs"},
		{Name: "a damaged frame of a pack is not counted", File: packs, Old: "if damaged > 0 {", New: "if damaged > len(raws) {", By: "TestPacksBeforeBlobs"},
		{Name: "a read that ends is a failure of its packs", File: packs, Old: "	if ctx.Err() != nil {\n		return nil, ctx.Err()\n	}\n	if err", New: "	if err", By: "TestPacksOfAReadThatEnds"},
		{Name: "a frame of a pack may be of any length", File: packs, Old: "case int64(e.FrameBytes) > r.MaxFrame:", New: "case e.FrameBytes == 0:", By: "TestPacksBeforeBlobs"},
		{Name: "packs are read one by one", File: packs, Old: "readAll(ctx, r.AtOnce, len(packs)", New: "readAll(ctx, 1, len(packs)", By: "TestPacksInMemory"},
		{Name: "packs are read without a bound in memory", File: packs, Old: "return int64(packs[k].Bytes)", New: "return min(int64(packs[k].Bytes), 1)", By: "TestPacksInMemory"},
		{Name: "what is larger than the bound is never read", File: "frames.go", Old: "min(bytes(i), readAhead)", New: "bytes(i)", By: "TestPacksInMemory"},
		{Name: "frames that arrived are kept for ever", File: "arrived.go", Old: "for a.bytes > a.most {", New: "for false {", By: "TestArrivedFrames"},
		{Name: "the store is asked for what arrived", File: "frames.go", Old: "raw := r.Arrived.get(e.FrameSHA256); raw != nil {", New: "raw := r.Arrived.get(e.FrameSHA256); raw != nil && ctx == nil {", By: "TestArrivedBeforeBlobs"},
		{Name: "packs are asked for what arrived", File: "packs.go", Old: "raw := r.Arrived.get(e.FrameSHA256); raw != nil &&", New: "raw := r.Arrived.get(e.FrameSHA256); false &&", By: "TestArrivedBeforePacks"},
		{Name: "frames are taken for others'", File: "packs.go", Old: "fn(at[i], raw)", New: "fn(i, raw)", By: "TestArrivedBeforePacks"},
	}})
}
