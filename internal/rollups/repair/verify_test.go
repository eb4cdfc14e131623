package repair_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

var hour = timegrid.HourStarting(time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC))

// TestVerifyReadsRows: objects whose hashes are right and whose rows are not. Only the raw
// resolution is published here, without plans: only findings about objects are checked.
func TestVerifyReadsRows(t *testing.T) {
	put := func(t *testing.T, store objstore.Store, key string, body []byte) {
		t.Helper()
		if _, err := store.Create(t.Context(), key, body, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, store objstore.Store, o []catalog.Object)
		want   repair.Problem
		err    error
	}{
		"whole": {func(*testing.T, objstore.Store, []catalog.Object) {}, "", nil},
		"index of another chunk": {func(_ *testing.T, _ objstore.Store, o []catalog.Object) {
			o[0].IndexKey, o[0].IndexBytes, o[0].IndexSHA256 = o[1].IndexKey, o[1].IndexBytes, o[1].IndexSHA256
		}, repair.ObjectDamaged, nil},
		"other samples than the record's": {func(_ *testing.T, _ objstore.Store, o []catalog.Object) {
			o[0].Samples--
			o[1].Samples++
		}, repair.ObjectDamaged, nil},
		"chunk of a newer release": {func(t *testing.T, store objstore.Store, o []catalog.Object) {
			b, _, err := store.Get(t.Context(), o[0].ChunkKey, objstore.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			b = slices.Clone(b)
			b[4]++ // the version in its header
			o[0].ChunkSHA256 = identity.Sum(b)
			o[0].ChunkKey = layout.RollupChunk(timegrid.Raw, hour, o[0].Metric, o[0].ChunkSHA256, 0)
			put(t, store, o[0].ChunkKey, b)
		}, "", chunk.UnsupportedVersion},
	} {
		t.Run(name, func(t *testing.T) {
			store := mem.New(time.Now)
			p := publishedtest.Publisher{Store: store, Authority: "test", Shards: 1, PerChunk: 1}
			blocks, err := p.Publish(t.Context(), hour, 1, []publishedtest.Batch{{Frame: batch(t)}}, timegrid.Raw)
			if err != nil || len(blocks) != 1 || len(blocks[0].Objects) != 2 {
				t.Fatalf("%d blocks, %v", len(blocks), err)
			}
			block := blocks[0]
			c.change(t, store, block.Objects)
			key := block.Name.Key()
			if err := store.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			put(t, store, key, block.Marshal())
			r, err := repair.New(repair.Config{Store: store, AuthorityID: "test", Shards: 1, By: "test", Now: func() time.Time { return time.Unix(1, 0) }})
			if err != nil {
				t.Fatal(err)
			}
			rep, err := r.Verify(t.Context(), repair.Options{From: hour - 1, To: hour + 1})
			if !errors.Is(err, c.err) {
				t.Fatalf("%v, want %v", err, c.err)
			}
			got := slices.DeleteFunc(rep.Findings, func(f repair.Finding) bool { return f.Problem == repair.PlanMissing })
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) == 0 || got[0].Problem != c.want) {
				t.Errorf("found %v, want %q", got, c.want)
			}
		})
	}
}

// batch has two series of the hour.
func batch(t *testing.T) *frame.Batch {
	t.Helper()
	b := frame.NewBuilder()
	for k, name := range []string{"a", "b"} { // with other values: chunks have no labels
		id, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: name}}, series.Gauge, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(5) {
			if err := b.Append(id, hour.StartMS()*1e6+i*1e9+1, float64(i*int64(k+1))); err != nil {
				t.Fatal(err)
			}
		}
	}
	out, err := b.Build(identity.Boot{Agent: "host", Boot: "b"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
