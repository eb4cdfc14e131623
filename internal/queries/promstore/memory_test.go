package promstore_test

import (
	"runtime"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
)

// TestTwoHoursFit: two hours of TSBS devops data, 6 rows of 101 series a batch, stay in memory within 2 GiB for each million of
// series, by the estimate and by the heap. Nothing is evicted.
func TestTwoHoursFit(t *testing.T) {
	d := tsbs.Generate(1, 25, 720)
	bound := int64(len(d.Series)) * (2 << 30) / 1_000_000
	before := heap()
	s := newStoreWith(t, live.Config{MaxBytes: bound})
	fill(t, s, d, 6, false)
	used := int64(heap() - before)
	st := s.Stats()
	t.Logf("%d series, %d samples, %d packed: heap %d, estimate %d, bound %d: %.2f bytes a sample", st.Series, st.Samples, st.Packed, used, st.Bytes, bound, float64(used)/float64(d.Samples()))
	if st.Samples != int64(d.Samples()) || st.Evicted != (live.Evicted{}) {
		t.Errorf("%+v, want all %d samples", st, d.Samples())
	}
	if used > bound+bound/10 {
		t.Errorf("%d bytes of heap, the bound is %d", used, bound)
	}
	runtime.KeepAlive(s)
}

// TestScrambledMemory: batches in a random order take the heap that the store says they take. Segments that were merged
// away are not kept by anything.
func TestScrambledMemory(t *testing.T) {
	d := tsbs.Generate(1, 10, 720)
	for _, at := range []int64{0, 1} {
		before := heap()
		s := newStoreWith(t, live.Config{PackAt: at})
		fill(t, s, d, 3, true)
		used, st := int64(heap()-before), s.Stats()
		t.Logf("heap %d, estimate %d", used, st.Bytes)
		if used > st.Bytes+st.Bytes/5 {
			t.Errorf("%d bytes of heap, estimated as %d", used, st.Bytes)
		}
		runtime.KeepAlive(s)
	}
}
