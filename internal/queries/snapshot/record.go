package snapshot

import (
	"fmt"
	"math"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Bounds of a snapshot.
const (
	MaxSnapshotBytes = 32 << 20
	MaxPacks         = 4096
)

var errTooLong = fmt.Errorf("over %d bytes", MaxSnapshotBytes)

// Snapshot names what a query node of one shard starts from.
type Snapshot struct {
	AuthorityID string   `json:"authority_id"`
	Shard       shard.ID `json:"shard"`
	Shards      uint32   `json:"shards"`
	// Number from 1; the greatest of a shard is the newest.
	Number uint64 `json:"number"`
	// Fence of the ownership under which it was made.
	Fence uint64 `json:"fence"`
	// CreatedAt is by the maker's clock, Unix nanoseconds.
	CreatedAt int64 `json:"created_at_unix_ns"`
	// Packs in the order of their making; no batch is in two.
	Packs []Ref `json:"packs"`
}

// Ref is a pack as a snapshot names it.
type Ref struct {
	// Number of the snapshot that it was written for.
	Number  uint64          `json:"number"`
	SHA256  identity.Digest `json:"sha256"`
	Bytes   uint64          `json:"bytes"`
	Batches uint64          `json:"batches"`
	// MaxTime of the samples, Unix nanoseconds; of a batch with samples from after its
	// acceptance at most 15 minutes after it.
	MaxTime int64 `json:"max_time_unix_ns"`
	// Inputs are the batches.
	Inputs catalog.Inputs `json:"inputs"`
}

// Key of the pack.
func (r Ref) Key(s shard.ID) string { return layout.LivePack(s, r.Number, r.SHA256) }

// Key of the snapshot.
func (s *Snapshot) Key() string { return layout.LiveSnapshot(s.Shard, s.Number) }

// Covers reports whether a pack has the batch.
func (s *Snapshot) Covers(id identity.Batch) bool { return covers(s.Packs, id) }

func covers(packs []Ref, id identity.Batch) bool {
	for i := range packs {
		if packs[i].Inputs.Covers(id) {
			return true
		}
	}
	return false
}

// Batches of all packs.
func (s *Snapshot) Batches() uint64 {
	n := uint64(0)
	for i := range s.Packs {
		n += s.Packs[i].Batches
	}
	return n
}

// refOf describes an encoded pack.
func refOf(number uint64, b []byte, p *Pack) (Ref, error) {
	ids := make([]identity.Batch, len(p.Entries))
	maxTime := int64(math.MinInt64)
	for i, e := range p.Entries {
		ids[i] = e.Identity
		maxTime = max(maxTime, lasts(e))
	}
	in, err := catalog.NewInputs(ids)
	return Ref{Number: number, SHA256: identity.Sum(b), Bytes: uint64(len(b)), Batches: uint64(len(ids)), MaxTime: maxTime, Inputs: in}, err
}

// Marshal writes the canonical JSON: equal snapshots are equal bytes.
func (s Snapshot) Marshal() ([]byte, error) {
	if s.Packs == nil {
		s.Packs = []Ref{}
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	b := Kind.Marshal(s)
	if len(b) > MaxSnapshotBytes {
		return nil, fmt.Errorf("snapshot %q: %d bytes: %w", s.Key(), len(b), errTooLong)
	}
	return b, nil
}

// Parse reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func Parse(b []byte) (*Snapshot, error) {
	var s Snapshot
	err := Kind.Unmarshal(b, &s)
	if err == nil {
		err = s.validate()
	}
	if err != nil {
		return nil, Kind.Wrap("", err)
	}
	return &s, nil
}

func (s *Snapshot) validate() error {
	switch {
	case s.AuthorityID == "" || len(s.AuthorityID) > catalog.MaxNameBytes:
		return fmt.Errorf("snapshot: authority id %q", s.AuthorityID)
	case s.Number == 0:
		return fmt.Errorf("snapshot: number 0")
	case s.CreatedAt < 0:
		return fmt.Errorf("snapshot: created before 1970")
	case s.Packs == nil || len(s.Packs) > MaxPacks:
		return fmt.Errorf("snapshot: %d packs, at most %d", len(s.Packs), MaxPacks)
	}
	if err := shard.CheckCount(s.Shards); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if uint32(s.Shard) >= s.Shards {
		return fmt.Errorf("snapshot: shard %s of %d", s.Shard, s.Shards)
	}
	keys := make(map[identity.Digest]struct{}, len(s.Packs))
	for i := range s.Packs {
		r := &s.Packs[i]
		switch _, twice := keys[r.SHA256]; {
		case twice:
			return fmt.Errorf("snapshot: pack %s is listed twice", r.SHA256)
		// A pack is never newer than the snapshot that names it.
		case r.SHA256.IsZero() || r.Number == 0 || r.Number > s.Number:
			return fmt.Errorf("snapshot: pack %s of number %d in snapshot %d", r.SHA256, r.Number, s.Number)
		case r.Bytes <= prefixBytes || r.Bytes > MaxPackBytes:
			return fmt.Errorf("snapshot: pack %s has %d bytes", r.SHA256, r.Bytes)
		case r.Batches == 0 || r.Batches > MaxPackBatches || r.Batches != r.Inputs.Batches():
			return fmt.Errorf("snapshot: pack %s has %d batches, its inputs %d", r.SHA256, r.Batches, r.Inputs.Batches())
		}
		keys[r.SHA256] = struct{}{}
	}
	return nil
}
