package sizing

import (
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const mib = 1 << 20

func inputs(of map[string]uint64) (out []accepted.Batch) {
	for agent, bytes := range of {
		out = append(out, accepted.Batch{Identity: identity.Batch{Agent: agent, Boot: "b"}, FrameBytes: bytes})
	}
	return out
}

func held(agents ...string) func(accepted.Batch) bool {
	return func(e accepted.Batch) bool { return slices.Contains(agents, e.Agent) }
}

func TestParts(t *testing.T) {
	l := Limits{Memory: mib, MaxParts: 8}
	for _, c := range []struct {
		records   uint64
		perRecord float64
		want      uint32
	}{{0, 0, 1}, {1, 0, 1}, {mib / recordBytes, 0, 1}, {mib/recordBytes + 1, 0, 2}, {1 << 40, 0, 8}, {1000, 1000, 2}, {1000, 100, 1}} {
		if got := l.Parts(c.records, c.perRecord); got != c.want {
			t.Errorf("%d records of %v bytes: %d parts, want %d", c.records, c.perRecord, got, c.want)
		}
	}
}

func TestResize(t *testing.T) {
	l := Limits{Memory: 8 * mib, MaxParts: 4}
	for _, c := range []struct {
		name    string
		attempt Attempt
		parts   uint32
		aside   []string
		ok      bool
	}{
		{"more parts help", Attempt{Parts: 1, Sizes: []rollup.Size{{Agent: "a", Bytes: 10 * mib}}, Inputs: inputs(map[string]uint64{"a": 1}), Held: held()}, 2, nil, true},
		{"at least twice as many", Attempt{Parts: 2, Sizes: []rollup.Size{{Agent: "a", Bytes: mib}}, Inputs: inputs(map[string]uint64{"a": 1}), Held: held()}, 4, nil, true},
		{"four times as many after a death", Attempt{Parts: 1, Died: true, Sizes: []rollup.Size{{Agent: "a", Bytes: mib}}, Inputs: inputs(map[string]uint64{"a": 1}), Held: held()}, 4, nil, true},
		{"the large agent goes", Attempt{Parts: 4, Sizes: []rollup.Size{{Agent: "large", Bytes: 100 * mib}, {Agent: "small", Bytes: mib}}, Inputs: inputs(map[string]uint64{"large": 9, "small": 1}), Held: held()}, 1, []string{"large"}, true},
		{"not what a block holds", Attempt{Parts: 4, Sizes: []rollup.Size{{Agent: "large", Bytes: 100 * mib}, {Agent: "small", Bytes: mib}}, Inputs: inputs(map[string]uint64{"large": 9, "small": 1}), Held: held("large")}, 16, nil, true},
		{"not those that the survey did not distinguish", Attempt{Parts: 4, Sizes: []rollup.Size{{Bytes: 100 * mib}}, Inputs: inputs(map[string]uint64{"x": 9}), Held: held()}, 16, nil, true},
		{"many small ones have more parts", Attempt{Parts: 4, Sizes: []rollup.Size{{Agent: "a", Bytes: 3 * mib}, {Agent: "b", Bytes: 3 * mib}, {Bytes: 60 * mib}}, Inputs: inputs(map[string]uint64{"a": 1, "b": 1}), Held: held()}, 11, nil, true},
		{"a repair request keeps all", Attempt{Parts: 4, KeepAll: true, Sizes: []rollup.Size{{Agent: "large", Bytes: 100 * mib}}, Inputs: inputs(map[string]uint64{"large": 9}), Held: held()}, 16, nil, true},
		{"a death takes the largest, whatever its size", Attempt{Parts: 4, Died: true, Sizes: []rollup.Size{{Agent: "a", Bytes: 10}, {Agent: "b", Bytes: 9}}, Inputs: inputs(map[string]uint64{"a": 1, "b": 1}), Held: held()}, 1, []string{"a"}, true},
		{"a death takes none that a block holds", Attempt{Parts: 4, Died: true, Sizes: []rollup.Size{{Agent: "a", Bytes: 10}, {Bytes: 9}, {Agent: "b", Bytes: 8}}, Inputs: inputs(map[string]uint64{"a": 1, "b": 1}), Held: held("a")}, 1, []string{"b"}, true},
		{"no plan has more parts", Attempt{Parts: rollup.MaxParts, KeepAll: true, Sizes: []rollup.Size{{Agent: "a", Bytes: 1 << 50}}, Inputs: inputs(map[string]uint64{"a": 1}), Held: held()}, rollup.MaxParts, nil, false},
	} {
		d, ok := l.Resize(c.attempt)
		var aside []string
		for _, z := range d.SetAside {
			aside = append(aside, z.Agent)
		}
		if ok != c.ok || d.Parts != c.parts || !slices.Equal(aside, c.aside) {
			t.Errorf("%s: %d parts, without %v, %v; want %d, %v, %v", c.name, d.Parts, aside, ok, c.parts, c.aside, c.ok)
		}
	}
}

// What a block holds of an agent stays in the plan, also where the agent is set aside.
func TestKeep(t *testing.T) {
	old := accepted.Batch{Identity: identity.Batch{Agent: "large", Boot: "b", SeqStart: 1}}
	late := accepted.Batch{Identity: identity.Batch{Agent: "large", Boot: "b", SeqStart: 2}}
	other := accepted.Batch{Identity: identity.Batch{Agent: "small", Boot: "b"}}
	a := Attempt{Inputs: []accepted.Batch{old, late, other}, Held: func(e accepted.Batch) bool { return e == old }}
	if got := a.Keep(func(agent string) bool { return agent == "large" }); !slices.Equal(got, []accepted.Batch{old, other}) {
		t.Errorf("%+v", got)
	}
}
