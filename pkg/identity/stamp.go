package identity

import "cmp"

// Stamp orders the claims of one identity where one linearizer serves several regions: epochs first, and within one the
// revisions at which its store took the claims. A manifest carries the stamp of the claim that it was written under; the
// zero Stamp is a manifest that was written under none.
type Stamp struct {
	Epoch, Fence uint64
}

// IsZero reports whether the stamp is that of no claim.
func (s Stamp) IsZero() bool { return s == Stamp{} }

// Compare orders stamps as pairs.
func (s Stamp) Compare(o Stamp) int {
	return cmp.Or(cmp.Compare(s.Epoch, o.Epoch), cmp.Compare(s.Fence, o.Fence))
}
