package catalog

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func batch(agent string, start, end uint64) identity.Batch {
	return identity.Batch{Agent: agent, Boot: "b", SeqStart: start, SeqEnd: end}
}

func inputs(t testing.TB, ids ...identity.Batch) Inputs {
	t.Helper()
	in, err := NewInputs(ids)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// A batch that lies within others, or that they touch, is not an input.
func TestInputsAreExact(t *testing.T) {
	in := inputs(t, batch("a", 10, 19), batch("a", 20, 29), batch("a", 40, 49), batch("b", 0, 0), batch("b", math.MaxUint64, math.MaxUint64))
	for _, id := range []identity.Batch{batch("a", 10, 19), batch("a", 20, 29), batch("a", 40, 49), batch("b", 0, 0), batch("b", math.MaxUint64, math.MaxUint64)} {
		if !in.Covers(id) {
			t.Errorf("%v is not covered", id)
		}
	}
	for _, id := range []identity.Batch{
		batch("a", 10, 29), batch("a", 11, 19), batch("a", 15, 24), batch("a", 30, 39), batch("a", 0, 9), batch("a", 50, 59), batch("b", 1, 1), batch("c", 10, 19),
		{Agent: "a", Boot: "c", SeqStart: 10, SeqEnd: 19}, batch("a", 19, 10),
	} {
		if in.Covers(id) {
			t.Errorf("%v is covered", id)
		}
	}
	if in.Batches() != 5 || in.Records() != 32 {
		t.Errorf("%d batches, %d records", in.Batches(), in.Records())
	}
	if b, _ := json.Marshal(in); string(b) != `[{"agent_id":"a","boot_id":"b","runs":[[10,10,2],[40,10,1]]},{"agent_id":"b","boot_id":"b","runs":[[0,1,1],[18446744073709551615,1,1]]}]` {
		t.Errorf("%s", b)
	}
}

func TestInputsAgreeWithASet(t *testing.T) {
	gen := rapid.Custom(func(t *rapid.T) identity.Batch {
		start := rapid.Uint64Range(0, 12).Draw(t, "start")
		return batch(rapid.SampledFrom([]string{"a", "aa", "b"}).Draw(t, "agent"), start, start+rapid.Uint64Range(0, 3).Draw(t, "more"))
	})
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(gen, 0, 20).Draw(t, "ids")
		in, err := NewInputs(ids)
		if err != nil {
			t.Fatal(err)
		}
		set := map[identity.Batch]bool{}
		var records uint64
		for _, id := range ids {
			if !set[id] {
				records += id.Count()
			}
			set[id] = true
		}
		if in.Records() != records || in.Batches() != uint64(len(set)) {
			t.Fatalf("%d records of %d batches, want %d of %d", in.Records(), in.Batches(), records, len(set))
		}
		if id := gen.Draw(t, "asked"); in.Covers(id) != set[id] {
			t.Fatalf("Covers(%v) = %v", id, in.Covers(id))
		}
		all := slices.Collect(in.All())
		if !slices.IsSortedFunc(all, identity.Batch.Compare) || len(all) != len(set) {
			t.Fatalf("%v", all)
		}
		for _, id := range all {
			if !set[id] {
				t.Fatalf("%v is too much", id)
			}
		}
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		again, err := NewInputs(append(ids, ids...))
		if err != nil || again.Digest() != in.Digest() {
			t.Fatal("the digest depends on order or repetitions", err)
		}
		var back Inputs
		b, _ := json.Marshal(in)
		if err := json.Unmarshal(b, &back); err != nil || back.Digest() != in.Digest() || !back.Contains(in) || !in.Contains(back) {
			t.Fatalf("%s: %v", b, err)
		}
		more, err := NewInputs(append(ids, batch("z", 0, 0)))
		if err != nil || !more.Contains(in) || in.Contains(more) {
			t.Fatal("Contains", err)
		}
	})
}

func TestInputsRefuse(t *testing.T) {
	if _, err := NewInputs([]identity.Batch{{}}); err == nil {
		t.Error("an invalid identity is taken")
	}
	for _, bad := range []string{
		`[{"agent_id":"","boot_id":"b","runs":[[0,1,1]]}]`, `[{"agent_id":"a","boot_id":"b","runs":[]}]`, `[{"agent_id":"a","boot_id":"b","runs":[[0,0,1]]}]`,
		`[{"agent_id":"a","boot_id":"b","runs":[[0,1,0]]}]`, `[{"agent_id":"a","boot_id":"b","runs":[[0,1]]}]`, `[{"agent_id":"a","boot_id":"b","runs":[[0,1,1],[1,1,1]]}]`,
		`[{"agent_id":"a","boot_id":"b","runs":[[5,1,1],[1,1,1]]}]`, `[{"agent_id":"a","boot_id":"b","runs":[[0,18446744073709551615,2]]}]`,
		`[{"agent_id":"a","boot_id":"b","runs":[[2,18446744073709551615,1]]}]`, `[{"agent_id":"a","boot_id":"b","runs":[[0,1,10000001]]}]`,
		`[{"agent_id":"a","boot_id":"b","runs":[[0,1,18446744073709551615]]}]`,
		`[{"agent_id":"b","boot_id":"b","runs":[[0,1,1]]},{"agent_id":"a","boot_id":"b","runs":[[0,1,1]]}]`,
		`[{"agent_id":"a","boot_id":"b","runs":[[0,1,1]]},{"agent_id":"a","boot_id":"b","runs":[[5,1,1]]}]`,
		`[{"agent_id":"a","boot_id":"b","runs":[[0,2,3],[3,2,1]]}]`, // it starts within the run before
	} {
		var in Inputs
		if err := json.Unmarshal([]byte(bad), &in); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
