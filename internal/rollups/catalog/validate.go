package catalog

import (
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Validate refuses a block that contradicts itself: keys of another block, counts that don't add up, generations
// out of order.
func (s *Block) Validate() error {
	err := errors.Join(
		text("authority_id", s.AuthorityID, MaxNameBytes), text("worker_id", s.WorkerID, MaxNameBytes),
		text("transaction_id", s.TransactionID, MaxTxnBytes), notNegative("created_at_unix_ns", s.CreatedAt), shard.CheckCount(s.Shards), ValidateReadThrough(s.Journal))
	if err != nil {
		return err
	}
	switch {
	case s.PlanKey != layout.BlockPlan(s.Name):
		return fmt.Errorf("plan %q is not of %s", s.PlanKey, s.Name.Key())
	case uint32(s.Name.Shard) >= s.Shards:
		return fmt.Errorf("shard %d of %d", s.Name.Shard, s.Shards)
	case s.Name.Generation == 0 || s.Supersedes >= s.Name.Generation:
		return fmt.Errorf("generation %d supersedes %d", s.Name.Generation, s.Supersedes)
	case !s.Counts.Conserved():
		return fmt.Errorf("counts %+v do not add up", s.Counts)
	case s.Counts.Records != s.Inputs.Records():
		return fmt.Errorf("%d records counted, the inputs have %d", s.Counts.Records, s.Inputs.Records())
	case len(s.Objects) > MaxObjects:
		return fmt.Errorf("%d objects, at most %d", len(s.Objects), MaxObjects)
	}
	if s.Unrolled && (s.Name.Resolution == timegrid.Raw || s.Name.Span > 0 || s.Redirect != nil || len(s.Objects) > 0) {
		return errors.New("only a rolled block of one hour can be without rows, and then it has no objects")
	}
	if err := s.validateCompaction(); err != nil {
		return err
	}
	if s.Redirect != nil { // its rows are counted in the compaction
		return nil
	}
	return s.validateObjects()
}

func (s *Block) validateObjects() error {
	var samples uint64
	for i := range s.Objects {
		o := &s.Objects[i]
		chunk, err := layout.ParseRollupObject(o.ChunkKey)
		if err != nil {
			return err
		}
		index, err := layout.ParseRollupObject(o.IndexKey)
		if err != nil {
			return err
		}
		n := s.Name
		switch {
		// Keys contain the hash of their object, so a manifest can't point at an object with other bytes than it
		// says.
		case o.ChunkKey != layout.RollupChunk(n.Resolution, n.Hour, o.Metric, o.ChunkSHA256, chunk.Generation):
			return fmt.Errorf("chunk key %q does not fit the block", o.ChunkKey)
		case o.IndexKey != layout.RollupIndex(n.Hour, o.IndexSHA256, index.Generation):
			return fmt.Errorf("index key %q does not fit the block", o.IndexKey)
		case o.ChunkBytes == 0 || o.FooterOffset >= o.ChunkBytes || o.IndexBytes == 0:
			return fmt.Errorf("chunk %q: %d bytes, footer at %d, index of %d", o.ChunkKey, o.ChunkBytes, o.FooterOffset, o.IndexBytes)
		case o.MaxTime < o.MinTime || o.Series > s.Counts.Series || o.Samples > s.Counts.Samples:
			return fmt.Errorf("chunk %q: times or counts out of range", o.ChunkKey)
		}
		if err := text("metric", o.Metric, MaxMetricBytes); err != nil {
			return err
		}
		samples += o.Samples // no overflow: each is at most Counts.Samples, and MaxObjects is small
		if samples > s.Counts.Samples {
			break
		}
	}
	if samples != s.Counts.Samples {
		return fmt.Errorf("the chunks have not the %d samples that are counted", s.Counts.Samples)
	}
	return nil
}

// Keys returns the keys of all objects that the block names, chunk and index in turn.
func (s *Block) Keys() []string {
	keys := make([]string, 0, 2*len(s.Objects))
	for i := range s.Objects {
		keys = append(keys, s.Objects[i].ChunkKey, s.Objects[i].IndexKey)
	}
	return keys
}

// Names reports whether the block names the object.
func (s *Block) Names(key string) bool {
	for i := range s.Objects {
		if s.Objects[i].ChunkKey == key || s.Objects[i].IndexKey == key {
			return true
		}
	}
	return false
}

// Remove returns the record that replaces the manifest. by is the committed generation that supersedes the block,
// 0 when it expired.
func (s *Block) Remove(by uint64, at int64, worker string) *Removed {
	keys := s.Keys()
	// What the block had before its compaction may not be deleted yet.
	if s.Redirect != nil {
		keys = append(keys, s.Redirect.Keys...)
	}
	return &Removed{s.AuthorityID, s.Name, s.TransactionID, s.Fence, by, max(at, 0), worker, keys}
}
