// Package catalog has the records of blocks and the view of which of them count: per shard, hour and
// resolution the highest committed generation. The codec is pure; Catalog reads records from a store.
// docs/format/blocks.md has the JSON.
//
// What a manifest's key holds decides its generation for good: nothing yet, a committed Block, an
// Aborted record, or the Removed record that replaces the manifest of a superseded or expired block.
package catalog

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Kinds of the records.
var (
	BlockKind   = record.Kind{Schema: "lightmetrics.rollup_block.v1", Title: "block", MaxBytes: MaxRecordBytes}
	AbortedKind = record.Kind{Schema: "lightmetrics.rollup_block_aborted.v1", Title: "aborted block", MaxBytes: MaxRecordBytes}
	RemovedKind = record.Kind{Schema: "lightmetrics.rollup_block_removed.v1", Title: "removed block", MaxBytes: MaxRecordBytes}
	// CompactionKind is of blocks with Name.Span, CompactedKind of blocks with a Redirect.
	CompactionKind = record.Kind{Schema: "lightmetrics.rollup_compaction.v1", Title: "compaction", MaxBytes: MaxRecordBytes}
	CompactedKind  = record.Kind{Schema: "lightmetrics.rollup_block_compacted.v1", Title: "compacted block", MaxBytes: MaxRecordBytes}
	// UnrolledKind is of Unrolled blocks. It is a schema of its own, so that a reader which does not know it never takes
	// such a block for one without rows.
	UnrolledKind = record.Kind{Schema: "lightmetrics.rollup_block_unrolled.v1", Title: "unrolled block", MaxBytes: MaxRecordBytes}
)

// Bounds of records. A longer record is refused before it is read.
const (
	MaxRecordBytes = 16 << 20
	MaxObjects     = 20_000
	MaxNameBytes   = 128 // authority and worker ids, reasons
	MaxMetricBytes = 2048
	MaxTxnBytes    = 256
)

// Name names a generation of a shard's hour at a resolution.
type Name = layout.BlockName

// Object is one chunk and its index.
type Object struct {
	// Metric that the chunk is of, or layout.MixedMetrics.
	Metric       string          `json:"metric"`
	ChunkKey     string          `json:"chunk_key"`
	ChunkBytes   uint64          `json:"chunk_bytes"`
	ChunkSHA256  identity.Digest `json:"chunk_sha256"`
	FooterOffset uint64          `json:"footer_offset"`
	IndexKey     string          `json:"index_key"`
	IndexBytes   uint64          `json:"index_bytes"`
	IndexSHA256  identity.Digest `json:"index_sha256"`
	Series       uint64          `json:"series"`
	Samples      uint64          `json:"samples"`
	// MinTime and MaxTime of the rows, Unix nanoseconds.
	MinTime int64 `json:"min_time_unix_ns"`
	MaxTime int64 `json:"max_time_unix_ns"`
	// Memory has the bytes where they are in no store; nil for published objects. It is not part of the record.
	Memory *Memory `json:"-"`
}

// Memory is an object that a reader made for itself.
type Memory struct{ Chunk, Index []byte }

// Counts of a block. Records of the inputs = Published + OtherHours + Overlapped + Duplicates.
type Counts struct {
	Records    uint64 `json:"records"`
	Published  uint64 `json:"published"`
	OtherHours uint64 `json:"other_hours"`
	Overlapped uint64 `json:"overlapped"`
	Duplicates uint64 `json:"duplicates"`
	// Series and Samples (rows) of the chunks.
	Series  uint64 `json:"series"`
	Samples uint64 `json:"samples"`
}

// Conserved reports whether every record is accounted for.
func (c Counts) Conserved() bool {
	return c.Published <= c.Records && c.OtherHours <= c.Records && c.Overlapped <= c.Records && c.Duplicates <= c.Records &&
		c.Published+c.OtherHours+c.Overlapped+c.Duplicates == c.Records
}

// Block is the manifest of a committed block.
type Block struct {
	AuthorityID string
	Name        Name
	// Shards is the deployment's number of shards.
	Shards uint32
	// Fence of the shard's owner when the block was made.
	Fence         uint64
	TransactionID string
	PlanKey       string
	PlanSHA256    identity.Digest
	Counts        Counts
	Objects       []Object
	// Supersedes is the generation that this one replaces, 0 for none.
	Supersedes uint64
	// CreatedAt by the worker's clock, Unix nanoseconds.
	CreatedAt int64
	WorkerID  string
	Inputs    Inputs
	// Sources of a compaction, whose rows it has: blocks of single hours, sorted by hour and shard. A compaction
	// has no inputs, and of the counts only Series and Samples.
	Sources []Name
	// Redirect is where the rows of a block without objects went; nil otherwise.
	Redirect *Redirect
	// Unrolled says that the rows of this resolution were not made, because they would be no smaller than the samples:
	// readers take the raw block of the hour. Such a block has no objects.
	Unrolled bool
	// Journal are the positions of the block's plan, nil where it has none. A compaction has none either: its sources
	// keep theirs, as they keep their inputs.
	Journal *journal.Positions
}

// Aborted says that this generation can never be committed.
type Aborted struct {
	AuthorityID string
	Name        Name
	Reason      string
	AbortedAt   int64 // Unix nanoseconds
	WorkerID    string
}

// Removed replaces a block's manifest before its objects are deleted.
type Removed struct {
	AuthorityID   string
	Name          Name
	TransactionID string
	Fence         uint64
	// SupersededBy is the committed generation that replaced it, 0 when it expired.
	SupersededBy uint64
	RemovedAt    int64 // Unix nanoseconds
	WorkerID     string
	// Keys of the objects that the block named.
	Keys []string
}

// Record is what a manifest's key holds: exactly one of the three is not nil.
type Record struct {
	Block   *Block
	Aborted *Aborted
	Removed *Removed
}

// hourLayout is how records write the start of an hour.
const hourLayout = "2006-01-02T15"

// head has the fields that all records start with.
type head struct {
	AuthorityID string `json:"authority_id"`
	Shard       uint32 `json:"shard"`
	Hour        string `json:"hour"`
	Resolution  string `json:"window"`
	Generation  uint64 `json:"generation"`
	Span        uint16 `json:"span_hours,omitempty"`
}

func newHead(authority string, n Name) head {
	return head{authority, uint32(n.Shard), n.Hour.Start().Format(hourLayout), n.Resolution.String(), n.Generation, n.Span}
}

func (h head) name() (Name, error) {
	t, err := time.Parse(hourLayout, h.Hour)
	if err != nil {
		return Name{}, err
	}
	res, err := timegrid.ParseResolution(h.Resolution)
	if err != nil {
		return Name{}, err
	}
	if h.Shard >= shard.Max || h.Generation == 0 {
		return Name{}, fmt.Errorf("shard %d, generation %d", h.Shard, h.Generation)
	}
	return Name{Hour: timegrid.HourStarting(t), Shard: shard.ID(h.Shard), Resolution: res, Generation: h.Generation, Span: h.Span}, text("authority_id", h.AuthorityID, MaxNameBytes)
}

// is refuses a record that is of another generation than n: a record that was copied to another key must not count
// there.
func (h *head) is(n Name) error {
	name, err := h.name()
	if err == nil && name != n {
		err = fmt.Errorf("it is of %s", name.Key())
	}
	return err
}

type blockJSON struct {
	head
	Shards        uint32             `json:"shards"`
	Fence         uint64             `json:"fence"`
	TransactionID string             `json:"transaction_id"`
	PlanKey       string             `json:"plan_key"`
	PlanSHA256    identity.Digest    `json:"plan_sha256"`
	InputsSHA256  identity.Digest    `json:"inputs_sha256"`
	Counts        Counts             `json:"counts"`
	Objects       []Object           `json:"objects"`
	Supersedes    uint64             `json:"supersedes"`
	CreatedAt     int64              `json:"created_at_unix_ns"`
	WorkerID      string             `json:"worker_id"`
	Inputs        Inputs             `json:"inputs"`
	Sources       []sourceJSON       `json:"sources,omitempty"`
	Redirect      *redirectJSON      `json:"into,omitempty"`
	Journal       *journal.Positions `json:"journal,omitempty"`
}

type abortedJSON struct {
	head
	Reason    string `json:"reason"`
	AbortedAt int64  `json:"aborted_at_unix_ns"`
	WorkerID  string `json:"worker_id"`
}

type removedJSON struct {
	head
	TransactionID string   `json:"transaction_id"`
	Fence         uint64   `json:"fence"`
	SupersededBy  uint64   `json:"superseded_by"`
	RemovedAt     int64    `json:"removed_at_unix_ns"`
	WorkerID      string   `json:"worker_id"`
	Keys          []string `json:"keys"`
}

// Marshal writes the canonical JSON. It does not validate.
func (s *Block) Marshal() []byte {
	objects := s.Objects
	if objects == nil {
		objects = []Object{}
	}
	return s.kind().Marshal(blockJSON{
		newHead(s.AuthorityID, s.Name), s.Shards, s.Fence, s.TransactionID, s.PlanKey, s.PlanSHA256,
		s.Inputs.Digest(), s.Counts, objects, s.Supersedes, s.CreatedAt, s.WorkerID, s.Inputs,
		s.sourcesJSON(), s.Redirect.json(), s.Journal,
	})
}

// Marshal writes the canonical JSON.
func (a *Aborted) Marshal() []byte {
	return AbortedKind.Marshal(abortedJSON{newHead(a.AuthorityID, a.Name), a.Reason, a.AbortedAt, a.WorkerID})
}

// Marshal writes the canonical JSON.
func (r *Removed) Marshal() []byte {
	keys := r.Keys
	if keys == nil {
		keys = []string{}
	}
	return RemovedKind.Marshal(removedJSON{newHead(r.AuthorityID, r.Name), r.TransactionID, r.Fence, r.SupersededBy, r.RemovedAt, r.WorkerID, keys})
}

// ParseRecord reads what the manifest key holds: canonical JSON of one of the three
// schemas, of the generation that the key names. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseRecord(key string, b []byte) (Record, error) {
	kind, err := record.OneOf(b, BlockKind, CompactionKind, CompactedKind, UnrolledKind, AbortedKind, RemovedKind)
	if err != nil {
		return Record{}, BlockKind.Wrap(key, err)
	}
	r, err := parseRecord(key, b, kind)
	if err != nil {
		return Record{}, kind.Wrap(key, err)
	}
	return r, nil
}

func parseRecord(key string, b []byte, kind record.Kind) (Record, error) {
	want, err := layout.ParseBlockManifest(key)
	if err != nil {
		return Record{}, err
	}
	var r Record
	var form any
	switch kind {
	case AbortedKind:
		var j abortedJSON
		r.Aborted, err = parseAborted(want, b, &j)
		form = j
	case RemovedKind:
		var j removedJSON
		r.Removed, err = parseRemoved(want, b, &j)
		form = j
	default:
		var j blockJSON
		r.Block, err = parseBlock(want, b, kind, &j)
		form = j
	}
	if err != nil {
		return Record{}, err
	}
	// Marshalling again and comparing refuses every second spelling of the same record.
	return r, kind.Verify(b, r.Marshal(), form)
}

// Marshal writes the canonical JSON of the record that is set.
func (r Record) Marshal() []byte {
	switch {
	case r.Block != nil:
		return r.Block.Marshal()
	case r.Aborted != nil:
		return r.Aborted.Marshal()
	}
	return r.Removed.Marshal()
}

func parseBlock(n Name, b []byte, kind record.Kind, j *blockJSON) (*Block, error) {
	if err := errors.Join(kind.Decode(b, j), j.is(n)); err != nil {
		return nil, err
	}
	s := &Block{
		AuthorityID: j.AuthorityID, Name: n, Shards: j.Shards, Fence: j.Fence, TransactionID: j.TransactionID,
		PlanKey: j.PlanKey, PlanSHA256: j.PlanSHA256, Counts: j.Counts, Objects: j.Objects, Supersedes: j.Supersedes,
		CreatedAt: j.CreatedAt, WorkerID: j.WorkerID, Inputs: j.Inputs, Journal: j.Journal,
		Unrolled: kind == UnrolledKind,
	}
	var err error
	if s.Sources, err = parseSources(n, j.Sources); err != nil {
		return nil, err
	}
	if s.Redirect, err = parseRedirect(j.Redirect); err != nil {
		return nil, err
	}
	return s, s.Validate()
}

func parseAborted(n Name, b []byte, j *abortedJSON) (*Aborted, error) {
	if err := errors.Join(AbortedKind.Decode(b, j), j.is(n)); err != nil {
		return nil, err
	}
	a := &Aborted{j.AuthorityID, n, j.Reason, j.AbortedAt, j.WorkerID}
	return a, errors.Join(text("worker_id", a.WorkerID, MaxNameBytes), text("reason", a.Reason, MaxNameBytes), notNegative("aborted_at_unix_ns", a.AbortedAt))
}

func parseRemoved(n Name, b []byte, j *removedJSON) (*Removed, error) {
	if err := errors.Join(RemovedKind.Decode(b, j), j.is(n)); err != nil {
		return nil, err
	}
	r := &Removed{j.AuthorityID, n, j.TransactionID, j.Fence, j.SupersededBy, j.RemovedAt, j.WorkerID, j.Keys}
	// A generation can only be superseded by a higher one; else a slot could hide all of its generations.
	if len(r.Keys) > 2*MaxObjects || r.SupersededBy != 0 && r.SupersededBy <= n.Generation {
		return nil, fmt.Errorf("%d keys, superseded by generation %d", len(r.Keys), r.SupersededBy)
	}
	for _, k := range r.Keys {
		o, err := layout.ParseRollupObject(k)
		if err != nil {
			return nil, err
		}
		if o.Hour != n.Hour {
			return nil, fmt.Errorf("key %q is of another hour", k)
		}
	}
	return r, errors.Join(text("worker_id", r.WorkerID, MaxNameBytes), text("transaction_id", r.TransactionID, MaxTxnBytes), notNegative("removed_at_unix_ns", r.RemovedAt))
}

// text refuses a string that is empty, longer than limit bytes or not UTF-8.
func text(name, s string, limit int) error {
	if s == "" || len(s) > limit || !utf8.ValidString(s) {
		return fmt.Errorf("%s is not 1 to %d bytes of UTF-8", name, limit)
	}
	return nil
}

func notNegative(name string, v int64) error {
	if v < 0 {
		return fmt.Errorf("%s is negative", name)
	}
	return nil
}
