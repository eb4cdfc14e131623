package accept

import (
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// AffirmationKind is the kind of the affirmation.
var AffirmationKind = record.Kind{Schema: "lightmetrics.affirmation.v1", Title: "affirmation", MaxBytes: MaxRecordBytes}

// Affirmation says that the manifest of an identity, which was written under a lower stamp or none, stands for the claim of
// this one as well. A recovery of the linearizer takes the highest stamp of a manifest and its affirmations; without them it
// could prefer a manifest of another region that was written late, under a claim that had been given up.
type Affirmation struct {
	AuthorityID string
	Identity    identity.Batch
	// FrameSHA256 of the manifest.
	FrameSHA256 identity.Digest
	// Stamp of the claim; not zero.
	Stamp accepted.Stamp
	// HomeRegion of the claim: the region of this bucket.
	HomeRegion string
}

// Key of the record.
func (a Affirmation) Key() string { return layout.Affirmation(a.Identity, a.Stamp) }

// Marshal writes the canonical JSON: equal affirmations are equal bytes.
func (a Affirmation) Marshal() []byte {
	var e record.Writer
	e.Begin(AffirmationKind, 512)
	e.Text("authority_id", a.AuthorityID)
	e.Batch(a.Identity)
	e.Digest("frame_sha256", a.FrameSHA256)
	e.Uint("claim_epoch", a.Stamp.Epoch)
	e.Uint("claim_fence", a.Stamp.Fence)
	e.Text("home_region", a.HomeRegion)
	return e.End()
}

// ParseAffirmation reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseAffirmation(b []byte) (Affirmation, error) {
	d := record.NewReader(AffirmationKind, b)
	var a Affirmation
	a.AuthorityID = d.NonEmpty("authority_id", MaxNameBytes)
	a.Identity = d.Batch()
	a.FrameSHA256 = d.Digest("frame_sha256")
	a.Stamp.Epoch = d.Uint("claim_epoch")
	a.Stamp.Fence = d.Uint("claim_fence")
	a.HomeRegion = d.NonEmpty("home_region", MaxNameBytes)
	if d.Err() == nil && (a.Stamp.Epoch == 0 || a.Stamp.Fence == 0) {
		d.Fail("the stamp %d, %d is that of no claim", a.Stamp.Epoch, a.Stamp.Fence)
	}
	if err := d.End(); err != nil {
		return Affirmation{}, err
	}
	return a, nil
}
