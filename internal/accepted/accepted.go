// Package accepted has the reference to an accepted batch: its identity, where its frame
// is, when it was accepted and the time range of its samples. Records of progress, plans, packs of
// snapshots and the live store share it. It also has the one rule that decides which of
// several batches counts that cover the same sequence numbers.
package accepted

import (
	"cmp"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Identity is identity.Batch under a name that suits the embedded field of Batch.
type Identity = identity.Batch

// Batch refers to one accepted batch. It is derived from the identity manifest, whose
// creation is the acceptance. As JSON it is one flat object with the manifest's field names.
type Batch struct {
	Identity
	FrameSHA256 identity.Digest `json:"frame_sha256"`
	FrameBytes  uint64          `json:"frame_bytes"`
	// RawBlobKey is the object that a reader takes the frame from first: a generation of its blob, or the identity
	// manifest, where that carries it.
	RawBlobKey string `json:"raw_blob_key"`
	// AcceptedAt by the collector's clock, MinTime and MaxTime of the samples; Unix nanoseconds.
	AcceptedAt int64 `json:"accepted_at_unix_ns"`
	MinTime    int64 `json:"min_time_unix_ns"`
	MaxTime    int64 `json:"max_time_unix_ns"`
	// HomeRegion and ClaimEpoch are the manifest's; empty and 0 where there are no regions.
	HomeRegion string `json:"home_region,omitempty"`
	ClaimEpoch uint64 `json:"claim_epoch,omitempty"`
}

// maxKeyBytes bounds RawBlobKey.
const maxKeyBytes = 1024

// Claim is the claim of the batch on the sequence numbers that it covers.
func (b *Batch) Claim() Claim { return Claim{b.Identity, b.AcceptedAt} }

// Hours are the first and the last hour that samples of the batch may lie in. With a wrong
// clock a batch can span years, so callers must not create work for each hour of a wide
// range before they have read the frame.
func (b *Batch) Hours() (first, last timegrid.Hour) {
	return timegrid.HourOfNS(b.MinTime), timegrid.HourOfNS(b.MaxTime)
}

// In reports whether samples of the batch may lie in the hour.
func (b *Batch) In(h timegrid.Hour) bool {
	first, last := b.Hours()
	return first <= h && h <= last
}

// Validate refuses values that no accepted batch has.
func (b *Batch) Validate() error {
	if err := b.Identity.Validate(); err != nil {
		return err
	}
	switch {
	case b.FrameSHA256.IsZero():
		return fmt.Errorf("%s: frame_sha256 is zero", b.Identity)
	case b.FrameBytes == 0:
		return fmt.Errorf("%s: frame_bytes is 0", b.Identity)
	case len(b.RawBlobKey) > maxKeyBytes:
		return fmt.Errorf("%s: raw_blob_key has %d bytes", b.Identity, len(b.RawBlobKey))
	case b.MaxTime < b.MinTime:
		return fmt.Errorf("%s: max_time_unix_ns is before min_time_unix_ns", b.Identity)
	}
	return nil
}

// Claim is everything that decides which of several accepted batches of one boot counts that
// cover the same sequence numbers.
type Claim struct {
	Identity identity.Batch
	// AcceptedAt by the collector's clock, Unix nanoseconds.
	AcceptedAt int64
}

// Compare is the order of precedence: the earlier acceptance first, and of two at the same
// time the smaller identity. It is a total order, so all readers of the same batches count
// each sequence number for the same batch, in whichever order they learn of them.
func (c Claim) Compare(o Claim) int {
	if n := cmp.Compare(c.AcceptedAt, o.AcceptedAt); n != 0 {
		return n
	}
	return c.Identity.Compare(o.Identity)
}

// Wins reports whether the sequence numbers that both cover count for c.
func (c Claim) Wins(o Claim) bool { return c.Compare(o) < 0 }
