package coordinator

import "testing"

func TestGarbageIsBounded(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 10 << 20: 400, 64 << 20: 400, 128 << 20: 200, 256 << 20: 100, 4 << 30: 100} {
		if got := percentOf(live); got != want {
			t.Errorf("%d MiB alive: %d percent, want %d", live>>20, got, want)
		}
	}
}
