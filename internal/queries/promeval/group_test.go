package promeval

import "testing"

// TestSlabsAreReserved: memory is reserved for all that groups take, also for what is left of slabs that are too short for
// another group.
func TestSlabsAreReserved(t *testing.T) {
	for _, steps := range []int{1, 1000, 2048, 2049, 3000, 4096, 4097, 10_000} {
		g := &groups{}
		reserved, own := 0, 0
		for range 20 {
			reserved += g.needs(steps)
			if cells := g.take(steps); len(cells) != steps {
				t.Fatalf("%d cells of %d", len(cells), steps)
			}
			if steps > len(slab{}) {
				own += steps
			}
		}
		if taken := own + len(g.slabs)*len(slab{}); reserved != taken {
			t.Errorf("%d steps: %d cells are reserved, %d taken", steps, reserved, taken)
		}
		g.release()
	}
}
