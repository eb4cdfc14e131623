package claims

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Epoch is one life of the store of claims: one that forgot, since it was restored from a copy, goes on in another. Every
// transaction compares it by its value: revisions of a restored store come a second time, the value does not.
type Epoch struct {
	Number uint64
	// ID is random, so that of two who move on to the same number only one is right.
	ID ID
	// Regions that may claim. One that is not among them was retired, and is gone for good.
	Regions []Region
}

// Retired reports that a region may not claim: it is gone for good.
func (e Epoch) Retired(r Region) bool { return !slices.Contains(e.Regions, r) }

// MaxRegions bounds the regions of an epoch.
const MaxRegions = 16

// Validate refuses an epoch that can't be one.
func (e Epoch) Validate() error {
	if e.Number == 0 || e.ID.IsZero() || len(e.Regions) == 0 || len(e.Regions) > MaxRegions {
		return fmt.Errorf("%w: epoch %d with id %s and %d regions", ErrInvalid, e.Number, e.ID, len(e.Regions))
	}
	for i, r := range e.Regions {
		if err := r.Validate(); err != nil {
			return err
		}
		if slices.Contains(e.Regions[:i], r) {
			return fmt.Errorf("%w: region %s twice", ErrInvalid, r)
		}
	}
	return nil
}

// Marshal is the value of the epoch's key.
func (e Epoch) Marshal() []byte {
	b := binary.AppendUvarint([]byte{version}, e.Number)
	b = append(append(b, e.ID[:]...), byte(len(e.Regions)))
	for _, r := range e.Regions {
		b = append(append(b, byte(len(r))), r...)
	}
	return b
}

// ParseEpoch reads the value of the epoch's key. Errors wrap ErrCorrupt or ErrNewer.
func ParseEpoch(value []byte) (Epoch, error) {
	d := decoder{b: value}
	d.version()
	e := Epoch{Number: d.uvarint()}
	copy(e.ID[:], d.bytes(len(e.ID)))
	e.Regions = d.regions(MaxRegions)
	if d.err == nil && (e.Number == 0 || e.ID.IsZero()) {
		d.fail("no number or id")
	}
	if err := d.end(); err != nil {
		return Epoch{}, fmt.Errorf("epoch: %w", err)
	}
	return e, nil
}
