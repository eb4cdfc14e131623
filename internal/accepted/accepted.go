// Package accepted has what everything behind the acceptance refers to an accepted batch
// by: which batch it is, where its frame is, when it was accepted and what times its
// samples have. Intake, plans, packs of snapshots and the live store share it, and the one
// rule that decides between batches that cover the same sequence numbers.
package accepted

import (
	"cmp"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Identity makes the embedded field of Batch read as what it is.
type Identity = identity.Batch

// Batch refers to one accepted batch. It is derived from the identity manifest, which
// alone is the acceptance. As JSON it is one flat object with the manifest's field names.
type Batch struct {
	Identity
	FrameSHA256 identity.Digest `json:"frame_sha256"`
	FrameBytes  uint64          `json:"frame_bytes"`
	// RawBlobKey is a generation of the frame: where a reader begins.
	RawBlobKey string `json:"raw_blob_key"`
	// AcceptedAt by the collector's clock, MinTime and MaxTime of the samples; Unix nanoseconds.
	AcceptedAt int64 `json:"accepted_at_unix_ns"`
	MinTime    int64 `json:"min_time_unix_ns"`
	MaxTime    int64 `json:"max_time_unix_ns"`
	// HomeRegion and ClaimEpoch are the manifest's; nothing writes them yet.
	HomeRegion string `json:"home_region,omitempty"`
	ClaimEpoch uint64 `json:"claim_epoch,omitempty"`
}

// maxKeyBytes bounds RawBlobKey.
const maxKeyBytes = 1024

// Claim is what the batch has to say about the sequence numbers that it covers.
func (b *Batch) Claim() Claim { return Claim{b.Identity, b.AcceptedAt} }

// Hours are the first and the last hour that samples of the batch may lie in. A batch
// of a broken clock can span years: read the frame before making work of each hour
// of a wide one.
func (b *Batch) Hours() (first, last timegrid.Hour) {
	return timegrid.HourOfNS(b.MinTime), timegrid.HourOfNS(b.MaxTime)
}

// Validate refuses what no accepted batch is.
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

// Claim is all that decides between accepted batches of one boot that cover the same
// sequence numbers.
type Claim struct {
	Identity identity.Batch
	// AcceptedAt by the collector's clock, Unix nanoseconds.
	AcceptedAt int64
}

// Compare is the order of precedence: the earlier acceptance comes first, and of two at one
// time the smaller identity. It is a total order, so every reader of the same batches counts
// each sequence number for the same one, in whichever order it learned of them.
func (c Claim) Compare(o Claim) int {
	if n := cmp.Compare(c.AcceptedAt, o.AcceptedAt); n != 0 {
		return n
	}
	return c.Identity.Compare(o.Identity)
}

// Wins reports whether c counts the sequence numbers that both cover, and o does not.
func (c Claim) Wins(o Claim) bool { return c.Compare(o) < 0 }
