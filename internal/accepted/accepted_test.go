package accepted

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The one rule of who counts a sequence number: a total order, acceptance before identity.
func TestPrecedenceIsATotalOrder(t *testing.T) {
	gen := rapid.Custom(func(t *rapid.T) Claim {
		return Claim{identity.Batch{
			Agent: rapid.SampledFrom([]string{"a", "b", "aa"}).Draw(t, "agent"), Boot: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "boot"),
			SeqStart: rapid.Uint64Range(0, 3).Draw(t, "start"), SeqEnd: rapid.Uint64Range(0, 3).Draw(t, "end"),
		}, rapid.Int64Range(-2, 2).Draw(t, "at")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := gen.Draw(t, "a"), gen.Draw(t, "b"), gen.Draw(t, "c")
		if (a.Compare(b) == 0) != (a == b) || a.Compare(b) != -b.Compare(a) {
			t.Fatalf("%v and %v: %d, %d", a, b, a.Compare(b), b.Compare(a))
		}
		if a.Compare(b) < 0 && b.Compare(c) < 0 && a.Compare(c) >= 0 {
			t.Fatalf("%v < %v < %v", a, b, c)
		}
		if a.AcceptedAt < b.AcceptedAt && !a.Wins(b) || a.AcceptedAt == b.AcceptedAt && a.Wins(b) != (a.Identity.Compare(b.Identity) < 0) {
			t.Fatalf("%v wins over %v: %v", a, b, a.Wins(b))
		}
	})
	// By hand: a later acceptance never wins, whatever its identity; equal times go by agent, boot, start, end.
	id := func(agent, boot string, start, end uint64) identity.Batch {
		return identity.Batch{Agent: agent, Boot: boot, SeqStart: start, SeqEnd: end}
	}
	want := []Claim{
		{id("z", "z", 9, 9), -1}, {id("a", "a", 5, 6), 7}, {id("a", "a", 5, 7), 7}, {id("a", "a", 6, 6), 7}, {id("a", "b", 0, 0), 7}, {id("b", "a", 0, 0), 7}, {id("a", "a", 0, 0), 8},
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, Claim.Compare)
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The JSON is flat, has the manifest's names, and is without what is empty.
func TestJSON(t *testing.T) {
	b := Batch{Identity: identity.Batch{Agent: "a<", Boot: "b", SeqStart: 1, SeqEnd: 2}, FrameSHA256: identity.Sum(nil), FrameBytes: 3, RawBlobKey: "k", AcceptedAt: 4, MinTime: -5, MaxTime: 6}
	const want = `{"agent_id":"a<","boot_id":"b","seq_start":1,"seq_end":2,"frame_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","frame_bytes":3,"raw_blob_key":"k","accepted_at_unix_ns":4,"min_time_unix_ns":-5,"max_time_unix_ns":6}`
	if got := string(record.JSON(b)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	b.HomeRegion, b.ClaimEpoch = "eu", 7
	if got := string(record.JSON(b)); got != want[:len(want)-1]+`,"home_region":"eu","claim_epoch":7}` {
		t.Error(got)
	}
	if err := b.Validate(); err != nil {
		t.Error(err)
	}
	b.MaxTime = -6
	if b.Validate() == nil {
		t.Error("times out of order are taken")
	}
}
