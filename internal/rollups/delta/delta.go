// Package delta has the format of deltas: objects with late batches of one shard, whole frames and what accepted
// them. A late batch is in a delta until the blocks of its hours have it. docs/format/deltas.md has the layout,
// docs/protocol/deltas.md why readers count each record once.
//
// A delta never changes, and its name is the hash of its header, which has the hash of every frame. So it is there
// or not, all of it, and two workers that write the same batches write the same object.
package delta

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Kind is the kind of the header.
var Kind = record.Kind{Schema: "lightmetrics.rollup_delta.v1", Title: "delta", MaxBytes: 2 << 20, Exact: true}

// Bounds of a delta. A worker stays below them; a reader refuses what is above.
const (
	MaxBatches = 4096
	// MaxFrameBytes of all frames together.
	MaxFrameBytes = 16 << 20
	// MaxBatchHours is the most hours of one batch: one of a broken clock spans years.
	MaxBatchHours = 1000

	maxAuthorityBytes = 128
	// firstRead is how much of an object is read for its header; few headers are longer.
	firstRead = 16 << 10
)

// Batch is one late batch.
type Batch struct {
	accepted.Batch
	// Hours that have samples of it, ascending.
	Hours []timegrid.Hour
}

// In reports whether the batch has samples in the hour.
func (b *Batch) In(h timegrid.Hour) bool {
	_, ok := slices.BinarySearch(b.Hours, h)
	return ok
}

// Delta is the header of a delta. It must not be changed.
type Delta struct {
	AuthorityID string
	Shard       shard.ID
	// Shards is the authority's number of shards.
	Shards uint32
	// Batches in the order of their identities, each once.
	Batches []Batch

	name   layout.DeltaName
	header []byte
}

// New makes the delta of batches, in any order; of equal identities one is kept.
func New(authority string, id shard.ID, shards uint32, batches []Batch) (*Delta, error) {
	d := &Delta{AuthorityID: authority, Shard: id, Shards: shards, Batches: slices.Clone(batches)}
	slices.SortStableFunc(d.Batches, func(a, b Batch) int { return a.Identity.Compare(b.Identity) })
	d.Batches = slices.CompactFunc(d.Batches, func(a, b Batch) bool { return a.Identity == b.Identity })
	if err := d.validate(); err != nil {
		return nil, fmt.Errorf("delta: %w", err)
	}
	d.header = d.marshalHeader()
	if len(d.header) > Kind.MaxBytes {
		return nil, fmt.Errorf("delta: its header has %d bytes, at most %d", len(d.header), Kind.MaxBytes)
	}
	d.setName()
	return d, nil
}

func (d *Delta) setName() {
	n := layout.DeltaName{Shard: d.Shard, From: math.MaxInt64, To: math.MinInt64, SHA256: identity.Sum(d.header)}
	for i := range d.Batches {
		hs := d.Batches[i].Hours
		n.From, n.To = min(n.From, hs[0]), max(n.To, hs[len(hs)-1])
	}
	d.name = n
}

// Key of the object.
func (d *Delta) Key() string { return d.name.Key() }

// Hours are the first and the last hour with samples.
func (d *Delta) Hours() (from, to timegrid.Hour) { return d.name.From, d.name.To }

// Size of the object in bytes.
func (d *Delta) Size() int64 { return int64(len(d.header)) + 1 + int64(d.FrameBytes()) }

// FrameBytes is the size of all frames.
func (d *Delta) FrameBytes() (n uint64) {
	for i := range d.Batches {
		n += d.Batches[i].FrameBytes
	}
	return n
}

// Records is the number of records of all batches.
func (d *Delta) Records() (n uint64) {
	for i := range d.Batches {
		n += d.Batches[i].Identity.Count()
	}
	return n
}

// Find gives the batch, nil when it is not in the delta.
func (d *Delta) Find(id identity.Batch) *Batch {
	i, ok := slices.BinarySearchFunc(d.Batches, id, func(b Batch, want identity.Batch) int { return b.Identity.Compare(want) })
	if !ok {
		return nil
	}
	return &d.Batches[i]
}

// Marshal gives the object. frames are in the order of Batches; their bytes must be those that were accepted.
func (d *Delta) Marshal(frames [][]byte) ([]byte, error) {
	if len(frames) != len(d.Batches) {
		return nil, fmt.Errorf("delta: %d frames of %d batches", len(frames), len(d.Batches))
	}
	b := append(make([]byte, 0, d.Size()), d.header...)
	b = append(b, '\n')
	for i, f := range frames {
		if err := d.Batches[i].check(f); err != nil {
			return nil, fmt.Errorf("delta: %w", err)
		}
		b = append(b, f...)
	}
	return b, nil
}

// check refuses a frame with other bytes than were accepted.
func (b *Batch) check(frame []byte) error {
	if uint64(len(frame)) != b.FrameBytes || identity.Sum(frame) != b.FrameSHA256 {
		return fmt.Errorf("frame of %s: %d bytes with the hash %s, accepted were %d with %s", b.Identity, len(frame), identity.Sum(frame), b.FrameBytes, b.FrameSHA256)
	}
	return nil
}

// Read reads the header of a delta. A damaged one wraps record.ErrCorrupt, one of a newer release
// record.ErrNewerVersion; other errors are the store's.
func Read(ctx context.Context, g objstore.Getter, authority, key string) (*Delta, error) {
	for _, limit := range []int64{firstRead, int64(Kind.MaxBytes) + 1} {
		b, _, err := g.Get(ctx, key, objstore.GetOptions{Length: limit})
		if objstore.Unreadable(err) {
			return nil, Kind.Corrupt(key, "%w", err)
		}
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", key, err)
		}
		if header, _, ok := bytes.Cut(b, []byte{'\n'}); ok || int64(len(b)) < limit {
			return parse(authority, key, header)
		}
	}
	return nil, Kind.Corrupt(key, "its header is longer than %d bytes", Kind.MaxBytes)
}

// ReadFrames reads the frames of a delta whose header was read, in the order of its batches. Errors are those of
// Read.
func (d *Delta) ReadFrames(ctx context.Context, g objstore.Getter) ([][]byte, error) {
	key := d.Key()
	b, _, err := g.Get(ctx, key, objstore.GetOptions{Limit: d.Size()})
	if objstore.Unreadable(err) {
		return nil, Kind.Corrupt(key, "%w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", key, err)
	}
	frames, err := d.split(b)
	if err != nil {
		return nil, Kind.Wrap(key, err)
	}
	return frames, nil
}

// split cuts the object into its frames and checks each.
func (d *Delta) split(b []byte) ([][]byte, error) {
	rest, ok := bytes.CutPrefix(b, d.header)
	if !ok || int64(len(b)) != d.Size() || rest[0] != '\n' {
		return nil, fmt.Errorf("%d bytes, want the header and frames of %d", len(b), d.Size())
	}
	rest = rest[1:]
	out := make([][]byte, len(d.Batches))
	for i := range d.Batches {
		n := d.Batches[i].FrameBytes
		out[i], rest = rest[:n], rest[n:]
		if err := d.Batches[i].check(out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d *Delta) validate() error {
	if err := shard.CheckCount(d.Shards); err != nil {
		return err
	}
	switch {
	case d.AuthorityID == "" || len(d.AuthorityID) > maxAuthorityBytes:
		return errors.New("the authority's id is empty or too long")
	case uint32(d.Shard) >= d.Shards:
		return fmt.Errorf("shard %s of %d", d.Shard, d.Shards)
	case len(d.Batches) == 0 || len(d.Batches) > MaxBatches:
		return fmt.Errorf("%d batches, 1 to %d", len(d.Batches), MaxBatches)
	}
	bytes := uint64(0)
	for i := range d.Batches {
		b := &d.Batches[i]
		if err := b.validate(d.Shard, d.Shards); err != nil {
			return err
		}
		if i > 0 && d.Batches[i-1].Identity.Compare(b.Identity) >= 0 {
			return fmt.Errorf("%s is out of order", b.Identity)
		}
		if bytes += b.FrameBytes; b.FrameBytes > MaxFrameBytes || bytes > MaxFrameBytes {
			return fmt.Errorf("frames of more than %d bytes", MaxFrameBytes)
		}
	}
	return nil
}

func (b *Batch) validate(of shard.ID, shards uint32) error {
	if err := b.Batch.Validate(); err != nil {
		return err
	}
	if got := shard.Of(b.Agent, shards); got != of {
		return fmt.Errorf("%s is of shard %s", b.Identity, got)
	}
	first, last := b.Batch.Hours()
	switch {
	case len(b.Hours) == 0 || len(b.Hours) > MaxBatchHours:
		return fmt.Errorf("%s has samples in %d hours, 1 to %d", b.Identity, len(b.Hours), MaxBatchHours)
	case b.Hours[0] < first || b.Hours[len(b.Hours)-1] > last:
		return fmt.Errorf("%s has samples from %s to %s, not in its hours", b.Identity, first, last)
	case !slices.IsSortedFunc(b.Hours, func(x, y timegrid.Hour) int { return cmp.Or(cmp.Compare(x, y), -1) }):
		return fmt.Errorf("%s: its hours are not in order", b.Identity)
	}
	return nil
}
