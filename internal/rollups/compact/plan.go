// Package compact merges blocks of single hours and shards into larger objects, removes blocks that have
// expired, and removes raw frames that blocks have replaced. docs/protocol/compaction.md has the order of
// requests and the argument for it.
//
// The core is deterministic: no goroutines, and no clock of its own.
package compact

import (
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// PlanKind is the kind of plans.
var PlanKind = record.Kind{Schema: "lightmetrics.compaction_plan.v1", Title: "compaction plan", MaxBytes: 4 << 20, Exact: true}

// Plan is the fixed set of sources of one generation of a compaction, with everything else that its bytes depend
// on: whichever worker makes the generation makes the same objects.
type Plan struct {
	AuthorityID string
	Name        catalog.Name // with a span
	Shards      uint32       // of the authority
	// Sources sorted by hour and shard.
	Sources []catalog.Name
	// ObjectBytes is the size from which on a chunk is finished.
	ObjectBytes uint64
	// Rows of a series in one block, and the series and values of a block.
	Rows, BlockSeries, BlockValues uint32
}

type planJSON struct {
	AuthorityID string      `json:"authority_id"`
	Shard       uint32      `json:"shard"`
	Shards      uint32      `json:"shards"`
	Hour        string      `json:"hour"`
	Resolution  string      `json:"window"`
	Span        uint16      `json:"span_hours"`
	Generation  uint64      `json:"generation"`
	ObjectBytes uint64      `json:"object_bytes"`
	Rows        uint32      `json:"block_rows"`
	BlockSeries uint32      `json:"block_series"`
	BlockValues uint32      `json:"block_values"`
	Sources     [][3]uint64 `json:"sources"` // hours after the start, shard, generation
}

const hourLayout = "2006-01-02T15"

// Marshal writes the canonical JSON of a valid plan: equal plans have equal bytes.
func (p *Plan) Marshal() ([]byte, error) {
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("compaction plan: %w", err)
	}
	j := planJSON{
		AuthorityID: p.AuthorityID, Shard: uint32(p.Name.Shard), Shards: p.Shards, Hour: p.Name.Hour.String(),
		Resolution: p.Name.Resolution.String(), Span: p.Name.Span, Generation: p.Name.Generation, ObjectBytes: p.ObjectBytes, Rows: p.Rows, BlockSeries: p.BlockSeries, BlockValues: p.BlockValues,
	}
	for _, s := range p.Sources {
		j.Sources = append(j.Sources, [3]uint64{uint64(s.Hour - p.Name.Hour), uint64(s.Shard), s.Generation})
	}
	return PlanKind.Marshal(j), nil
}

// ParsePlan reads what Marshal writes, of the compaction that the key names. Errors wrap
// record.ErrCorrupt or record.ErrNewerVersion.
func ParsePlan(key string, b []byte) (*Plan, error) {
	p, err := parsePlan(b)
	if err == nil && layout.BlockPlan(p.Name) != key {
		err = fmt.Errorf("it is of %s", p.Name.Key())
	}
	if err != nil {
		return nil, PlanKind.Wrap(key, err)
	}
	return p, nil
}

func parsePlan(b []byte) (*Plan, error) {
	var j planJSON
	if err := PlanKind.Decode(b, &j); err != nil {
		return nil, err
	}
	t, err := time.Parse(hourLayout, j.Hour)
	if err != nil {
		return nil, err
	}
	res, err := timegrid.ParseResolution(j.Resolution)
	if err != nil {
		return nil, err
	}
	if j.Shard >= shard.Max || len(j.Sources) > catalog.MaxSources {
		return nil, fmt.Errorf("shard %d, %d sources", j.Shard, len(j.Sources))
	}
	n := catalog.Name{Hour: timegrid.HourStarting(t), Shard: shard.ID(j.Shard), Resolution: res, Generation: j.Generation, Span: j.Span}
	p := &Plan{AuthorityID: j.AuthorityID, Name: n, Shards: j.Shards, ObjectBytes: j.ObjectBytes, Rows: j.Rows, BlockSeries: j.BlockSeries, BlockValues: j.BlockValues}
	for _, s := range j.Sources {
		if s[0] >= catalog.MaxSpan || s[1] >= shard.Max {
			return nil, fmt.Errorf("source %v", s)
		}
		p.Sources = append(p.Sources, catalog.Name{Hour: n.Hour + timegrid.Hour(s[0]), Shard: shard.ID(s[1]), Resolution: res, Generation: s[2]})
	}
	own, err := p.Marshal()
	if err != nil {
		return nil, err
	}
	return p, PlanKind.Verify(b, own, j)
}

func (p *Plan) validate() error {
	n := p.Name
	if err := shard.CheckCount(p.Shards); err != nil {
		return err
	}
	if p.AuthorityID == "" || n.Generation == 0 || n.Span < 2 || n.Span > catalog.MaxSpan || len(p.Sources) < 1 || len(p.Sources) > catalog.MaxSources ||
		p.ObjectBytes == 0 || p.Rows == 0 || p.Rows > 1<<16 || p.BlockSeries == 0 || p.BlockSeries > 1<<16 || p.BlockValues == 0 || p.BlockValues > 1<<22 {
		return fmt.Errorf("%s of %q: %d sources, %d bytes, %d rows", n.Key(), p.AuthorityID, len(p.Sources), p.ObjectBytes, p.Rows)
	}
	for i, s := range p.Sources {
		if s.Resolution != n.Resolution || s.Span != 0 || s.Generation == 0 || s.Hour < n.Hour || s.Hour >= n.Hour+timegrid.Hour(n.Span) ||
			s.Shard < n.Shard || uint32(s.Shard) >= p.Shards || i > 0 && catalog.CompareSources(p.Sources[i-1], s) >= 0 {
			return fmt.Errorf("source %s of %s", s.Key(), n.Key())
		}
	}
	return nil
}
