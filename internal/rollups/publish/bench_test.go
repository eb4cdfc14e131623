package publish_test

import (
	"strconv"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// BenchmarkPublish is a generation of 8 chunks and indexes over stores in memory: the
// CPU time of the protocol itself.
func BenchmarkPublish(b *testing.B) {
	w := newWorld(b)
	p := w.publisher()
	gen := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		gen++
		var texts []string
		for i := range 8 {
			texts = append(texts, strconv.FormatUint(gen, 10)+" "+strconv.Itoa(i))
		}
		if _, err := w.store.Put(b.Context(), layout.RollupPlan(hour0, 1, gen), planBody(gen), objstore.PutOptions{}); err != nil {
			b.Fatal(err)
		}
		if _, err := p.Publish(b.Context(), publication(gen, gen-1, texts...)); err != nil {
			b.Fatal(err)
		}
	}
}
