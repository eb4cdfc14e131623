package compact_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

const planText = `{"schema":"lightmetrics.compaction_plan.v1","authority_id":"a","shard":2,"shards":4,"hour":"2024-10-04T00","window":"raw",` +
	`"span_hours":24,"generation":3,"object_bytes":134217728,"block_rows":16384,"block_series":2048,"block_values":1048576,"sources":[[0,2,1],[0,3,7],[23,2,1]]}`

func TestPlan(t *testing.T) {
	name := catalog.Name{Hour: hour0, Shard: 2, Resolution: timegrid.Raw, Generation: 3, Span: 24}
	key := layout.BlockPlan(name)
	if key != "rollup/v1/plans/shard=0002/date=2024-10-04/hour=00/raw.24h-0000000003.json" {
		t.Error(key)
	}
	p, err := compact.ParsePlan(key, []byte(planText))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := p.Marshal(); err != nil || string(b) != planText || len(p.Sources) != 3 || p.Sources[2].Hour != hour0+23 {
		t.Errorf("%s, %v", b, err)
	}
	for _, bad := range [][2]string{
		{`"schema":"l`, `"schema":"x`}, {`[0,2,1],[0,3,7]`, `[0,3,7],[0,2,1]`}, {`[23,2,1]`, `[24,2,1]`}, {`[23,2,1]`, `[23,4,1]`}, {`[23,2,1]`, `[23,1,1]`},
		{`[23,2,1]`, `[23,2,0]`}, {`"span_hours":24`, `"span_hours":25`}, {`"shard":2`, `"shard": 2`}, {`16384`, `0`}, {`"a"`, `""`}, {`"generation":3`, `"generation":4`},
		{`[0,2,1],[0,3,7],[23,2,1]`, ``}, {`}`, ``},
	} {
		if _, err := compact.ParsePlan(key, []byte(strings.Replace(planText, bad[0], bad[1], 1))); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s is taken as %s: %v", bad[1], bad[0], err)
		}
	}
}

// What is chosen: whole spans that ended long enough ago, of shards that fit, longest first.
func TestChoose(t *testing.T) {
	st := settings()
	st.Group, st.MaxBytes = 4, 100
	set := func(h timegrid.Hour, id shard.ID, size uint64) *catalog.Block {
		return &catalog.Block{Name: catalog.Name{Hour: h, Shard: id, Resolution: timegrid.Raw, Generation: 1}, Shards: shards,
			Objects: []catalog.Object{{ChunkBytes: size - 1, IndexBytes: 1}}}
	}
	of := func(hours, size int, at time.Duration, first shard.ID) string {
		var blocks []*catalog.Block
		for h := range timegrid.Hour(hours) {
			for id := range shard.ID(shards) {
				blocks = append(blocks, set(hour0+h, id, uint64(size)))
			}
		}
		var out []string
		for _, c := range st.Choose(timegrid.Raw, blocks, first, hour0.Start().Add(at)) {
			out = append(out, strings.TrimPrefix(c.Name.SlotPrefix(), "manifests/v1/date=2024-10-04/")+string(rune('0'+len(c.Sources))))
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		hours, size int
		at          time.Duration
		first       shard.ID
		want        string
	}{
		{6, 1, 3*time.Hour - 1, 0, ""},
		{6, 1, 3 * time.Hour, 0, "hour=00/0000-raw.2h-8"},
		{6, 1, 3 * time.Hour, 1, ""}, // of no group
		{6, 1, 5 * time.Hour, 0, "hour=00/0000-raw.2h-8 hour=02/0000-raw.2h-8"},
		{2, 1, 7 * time.Hour, 0, "hour=00/0000-raw.6h-8"},
		{2, 25, 7 * time.Hour, 0, "hour=00/0000-raw.6h-4 hour=00/0002-raw.6h-4"},
		{2, 51, 7 * time.Hour, 0, ""}, // a shard has too much
		{6, 20, 7 * time.Hour, 0, "hour=00/0000-raw.2h-4 hour=00/0002-raw.2h-4 hour=02/0000-raw.2h-4 hour=02/0002-raw.2h-4 hour=04/0000-raw.2h-4 hour=04/0002-raw.2h-4"},
	} {
		if got := of(c.hours, c.size, c.at, c.first); got != c.want {
			t.Errorf("%d hours of %d bytes at %s: %q, want %q", c.hours, c.size, c.at, got, c.want)
		}
	}
	for _, bad := range []func(*compact.Settings){
		func(s *compact.Settings) { s.Spans = map[timegrid.Resolution][]uint16{timegrid.Raw: {1}} },
		func(s *compact.Settings) { s.Spans = map[timegrid.Resolution][]uint16{timegrid.Raw: {4, 2}} },
		func(s *compact.Settings) { s.Spans = map[timegrid.Resolution][]uint16{timegrid.Raw: {2, 3}} },
		func(s *compact.Settings) { s.Group = 0 }, func(s *compact.Settings) { s.Rows = 1 << 17 }, func(s *compact.Settings) { s.MaxBytes = 0 },
	} {
		s := compact.DefaultSettings()
		if bad(&s); s.Validate() == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}

// What is read is what would be written.
func FuzzParsePlan(f *testing.F) {
	f.Add([]byte(planText))
	f.Add([]byte(strings.Replace(planText, `"sources":[`, `"sources":[[1,2,3],`, 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		name := catalog.Name{Hour: hour0, Shard: 2, Resolution: timegrid.Raw, Generation: 3, Span: 24}
		p, err := compact.ParsePlan(layout.BlockPlan(name), b)
		if err != nil {
			if !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrNewerVersion) {
				t.Fatal(err)
			}
			return
		}
		if again, err := p.Marshal(); err != nil || string(again) != string(b) || p.Name != name {
			t.Fatalf("%s, %v", again, err)
		}
	})
}
