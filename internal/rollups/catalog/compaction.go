package catalog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Bounds of compactions.
const (
	MaxSpan    = 31 * 24 // hours
	MaxSources = 50_000
)

// Redirect says that the rows of a block are in a compaction. The block still counts for the batches that it
// covers, but has no objects of its own any more.
type Redirect struct {
	Name        Name
	CompactedAt int64 // Unix nanoseconds
	WorkerID    string
	// Keys of the objects that the block had.
	Keys []string
	// Block is the compaction, when a Catalog has read it; it is not part of the record.
	Block *Block
}

type redirectJSON struct {
	Key         string   `json:"key"`
	CompactedAt int64    `json:"compacted_at_unix_ns"`
	WorkerID    string   `json:"worker_id"`
	Keys        []string `json:"keys"`
}

func (i *Redirect) json() *redirectJSON {
	if i == nil {
		return nil
		// The canonical form has an empty array, never null.
	}
	keys := i.Keys
	if keys == nil {
		keys = []string{}
	}
	return &redirectJSON{i.Name.Key(), i.CompactedAt, i.WorkerID, keys}
}

func parseRedirect(j *redirectJSON) (*Redirect, error) {
	if j == nil {
		return nil, nil
	}
	n, err := layout.ParseBlockManifest(j.Key)
	if err != nil {
		return nil, err
	}
	return &Redirect{Name: n, CompactedAt: j.CompactedAt, WorkerID: j.WorkerID, Keys: j.Keys}, nil
}

// sourceJSON is written as [hours after the start, shard, generation].
type sourceJSON struct {
	after, shard, generation uint64
}

func (s sourceJSON) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d,%d]", s.after, s.shard, s.generation), nil
}

func (s *sourceJSON) UnmarshalJSON(b []byte) error {
	var v []uint64
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	if len(v) != 3 {
		return fmt.Errorf("source of %d numbers", len(v))
	}
	*s = sourceJSON{v[0], v[1], v[2]}
	return nil
}

// sourcesJSON writes sources relative to the compaction's first hour.
func (s *Block) sourcesJSON() []sourceJSON {
	var out []sourceJSON
	for _, n := range s.Sources {
		out = append(out, sourceJSON{uint64(n.Hour - s.Name.Hour), uint64(n.Shard), n.Generation})
	}
	return out
}

func parseSources(of Name, in []sourceJSON) ([]Name, error) {
	if len(in) > MaxSources {
		return nil, fmt.Errorf("%d sources, at most %d", len(in), MaxSources)
	}
	var out []Name
	for _, s := range in {
		if s.after >= MaxSpan || s.shard >= shard.Max {
			return nil, fmt.Errorf("source of shard %d, %d hours after the start", s.shard, s.after)
		}
		out = append(out, Name{Hour: of.Hour + timegrid.Hour(s.after), Shard: shard.ID(s.shard), Resolution: of.Resolution, Generation: s.generation})
	}
	return out, nil
}

func (s *Block) kind() record.Kind {
	switch {
	case s.Name.Span > 0:
		return CompactionKind
	case s.Redirect != nil:
		return CompactedKind
	case s.Unrolled:
		return UnrolledKind
	}
	return BlockKind
}

// CompareSources is the order of sources: hours, then shards.
func CompareSources(a, b Name) int {
	return cmp.Or(cmp.Compare(a.Hour, b.Hour), cmp.Compare(a.Shard, b.Shard))
}

func (s *Block) validateCompaction() error {
	n := s.Name
	if s.Redirect != nil {
		i := s.Redirect
		switch {
		case n.Span > 0 || len(s.Objects) > 0 || len(s.Sources) > 0:
			return errors.New("a compaction, or a block with objects or sources, can not be compacted into another")
		case i.Name.Span == 0 || i.Name.Resolution != n.Resolution || n.Hour < i.Name.Hour || n.Hour >= i.Name.Hour+timegrid.Hour(i.Name.Span) || i.Name.Generation == 0:
			return fmt.Errorf("%s can not be compacted into %s", n.Key(), i.Name.Key())
		case len(i.Keys) > 2*MaxObjects:
			return fmt.Errorf("%d keys", len(i.Keys))
		}
		for _, k := range i.Keys {
			if o, err := layout.ParseRollupObject(k); err != nil || o.Hour != n.Hour {
				return fmt.Errorf("key %q is not of the block's hour", k)
			}
		}
		return errors.Join(text("worker_id", i.WorkerID, MaxNameBytes), notNegative("compacted_at_unix_ns", i.CompactedAt))
	}
	if n.Span == 0 {
		if len(s.Sources) > 0 {
			return errors.New("only a compaction has sources")
		}
		return nil
	}
	// A compaction covers no batches by itself: coverage stays with its sources, which late batches may supersede
	// one by one.
	if s.Journal != nil {
		return errors.New("a compaction has no positions of the journal")
	}
	if n.Span < 2 || n.Span > MaxSpan || len(s.Sources) == 0 || len(s.Sources) > MaxSources || s.Inputs.Batches() > 0 {
		return fmt.Errorf("compaction of %d hours, %d sources, %d batches", n.Span, len(s.Sources), s.Inputs.Batches())
	}
	for i, src := range s.Sources {
		switch {
		case src.Resolution != n.Resolution || src.Span != 0 || src.Generation == 0:
			return fmt.Errorf("source %s", src.Key())
		// Sources are of this compaction's hours, and its own shard is the lowest: that makes its place in the
		// order of keys unique.
		case src.Hour < n.Hour || src.Hour >= n.Hour+timegrid.Hour(n.Span) || src.Shard < n.Shard || uint32(src.Shard) >= s.Shards:
			return fmt.Errorf("source %s is outside of %s", src.Key(), n.Key())
		case i > 0 && CompareSources(s.Sources[i-1], src) >= 0:
			return fmt.Errorf("source %s is out of order", src.Key())
		}
	}
	return nil
}

// Compacted returns the block with its rows in c, a committed compaction that has it as a source.
func (s *Block) Compacted(c Name, at int64, worker string) *Block {
	next := *s
	next.Objects = nil
	next.Redirect = &Redirect{Name: c, CompactedAt: max(at, 0), WorkerID: worker}
	// A block that already redirects keeps the keys that it once had, so that their removal can still be checked.
	if s.Redirect == nil {
		next.Redirect.Keys = s.Keys()
	}
	return &next
}

// YieldsTo reports whether a redirect may be replaced by one to the compaction n. Rows move to longer spans, or to
// a higher generation of the same compaction, so no record ever points back. Of two compactions of one span that
// begin with different shards neither yields: the worker that made the other one may be gone, and waiting for it
// would never end. It is true of nil.
func (i *Redirect) YieldsTo(n Name) bool {
	if i == nil || i.Name.Span != n.Span {
		return i == nil || i.Name.Span < n.Span
	}
	return i.Name.Hour == n.Hour && i.Name.Shard == n.Shard && i.Name.Generation < n.Generation
}
