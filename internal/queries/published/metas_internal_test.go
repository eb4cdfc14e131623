package published

import (
	"runtime"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// TestMetasAreShared: equal labels of equal types are one meta, which is forgotten with the last one that has it.
func TestMetasAreShared(t *testing.T) {
	s := new(metas)
	a := s.of(labels.FromStrings("a", "b"), series.Gauge)
	if b := s.of(labels.FromStrings("a", "b"), series.Gauge); a != b {
		t.Error("a second copy of the same")
	}
	if b := s.of(labels.FromStrings("a", "b"), series.Counter); a == b || b.typ != series.Counter {
		t.Error("one of another type")
	}
	if b := s.of(labels.FromStrings("a", "c"), series.Gauge); a == b || b.labels.Get("a") != "c" || b.hash == a.hash {
		t.Error("one of other labels")
	}
	if n := s.Bytes(); n < 3*(3+32) || n > 3*300 {
		t.Errorf("%d bytes of three metas", n)
	}
	runtime.KeepAlive(a)
	held := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.at) + int(s.bytes)
	}
	// Cleanups run some time after the collection.
	for range 1000 {
		runtime.GC()
		if held() == 0 {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("%d metas of %d bytes are not forgotten", len(s.at), s.bytes)
}
