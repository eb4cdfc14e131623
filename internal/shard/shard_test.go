package shard

import (
	"fmt"
	"testing"
)

// The mapping is durable: changing it would move series between shards.
func TestMappingIsFixed(t *testing.T) {
	for agent, want := range map[string]ID{"": 20, "a": 10, "host-1": 31, "agent-é": 2} {
		if got := Of(agent, 32); got != want {
			t.Errorf("Of(%q, 32) = %d, want %d", agent, got, want)
		}
	}
}

func TestShardsAreEven(t *testing.T) {
	const agents, shards = 32_000, 32
	var n [shards]int
	for i := range agents {
		n[Of(fmt.Sprintf("host-%d", i), shards)]++
	}
	for s, got := range n {
		if got < agents/shards*8/10 || got > agents/shards*12/10 {
			t.Errorf("shard %d has %d of %d agents", s, got, agents)
		}
	}
}

func TestNames(t *testing.T) {
	for _, s := range []ID{0, 7, 31, Max - 1} {
		if got, err := Parse(s.String()); err != nil || got != s {
			t.Errorf("Parse(%q) = %v, %v", s.String(), got, err)
		}
	}
	for _, bad := range []string{"", "7", "00007", "-001", "+001", "4096", "abcd"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("Parse(%q) succeeded", bad)
		}
	}
	for n, ok := range map[uint32]bool{0: false, 1: true, Max: true, Max + 1: false} {
		if err := CheckCount(n); (err == nil) != ok {
			t.Errorf("CheckCount(%d) = %v", n, err)
		}
	}
}
