package claims

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Settled claims move out of the store into heads of folds: of each boot one object in the bucket of every region (package folds has
// them). The store keeps which heads have everything; and of boots that were idle for long not even that. A claim is made by
// somebody who has looked at such heads, and its transaction compares that they are still the ones that count.

// HeadAt names the head of folds of a boot in one region, from a generation on. A generation of 0 is met by no head too.
type HeadAt struct {
	Region     Region
	Generation uint64
}

// Heads of a boot, in the order of their regions, each once.
type Heads []HeadAt

// Of is the generation of a region's head.
func (h Heads) Of(r Region) (generation uint64, there bool) {
	for _, a := range h {
		if a.Region == r {
			return a.Generation, true
		}
	}
	return 0, false
}

// covers reports whether one of these heads is one of the others, or follows it: it then has everything that those have, of which
// each has the same.
func (h Heads) covers(others Heads) bool {
	return slices.ContainsFunc(others, func(o HeadAt) bool {
		g, there := h.Of(o.Region)
		return there && g >= o.Generation
	})
}

// Covers reports whether who has seen these heads has seen everything that others have.
func (h Heads) Covers(others Heads) bool { return h.covers(others) }

func (h Heads) validate() error {
	if len(h) > MaxHomes {
		return fmt.Errorf("%w: heads of %d regions", ErrInvalid, len(h))
	}
	for i, a := range h {
		if err := a.Region.Validate(); err != nil {
			return err
		}
		if i > 0 && strings.Compare(string(h[i-1].Region), string(a.Region)) >= 0 {
			return fmt.Errorf("%w: the head of %s does not follow that of %s", ErrInvalid, a.Region, h[i-1].Region)
		}
	}
	return nil
}

// MaxHomes bounds the home regions, and the heads, of one boot.
const MaxHomes = 16

// Folds is what the store knows of a boot's folds.
type Folds struct {
	// Heads that have everything that is folded, each of them. None: the boot is new, or nothing was heard of it for long. Then
	// the buckets tell, read after revision Forgotten.
	Heads Heads
	// Above: nothing is folded from this sequence number on. Most claims are for such numbers, and need not look at anything.
	Above uint64
	// Modified is the revision of Heads; 0 is none.
	Modified int64
	// Forgotten is the revision at which something was forgotten that may have been this boot; 0 is never.
	Forgotten int64
	// At is the revision at which all this was so, and Epoch the epoch: revisions of a store that was restored come a second time.
	At    int64
	Epoch uint64
}

// Looked says what of a boot's folds somebody has read.
type Looked struct {
	// Heads that were read. What is in any of them was looked at.
	Heads Heads
	// Above: none of them has anything from this sequence number on.
	Above uint64
	// Since: they have everything that was folded up to this revision of the store in this Epoch, whatever the store knows. 0: they
	// may not.
	Since int64
	Epoch uint64
	// Bound: they have the identity for the claim's hash, and its home was retired. It can be claimed for no other hash.
	Bound bool
}

// Suffices reports whether who has looked has seen everything that may be folded.
func (l Looked) Suffices(f Folds) bool {
	if f.Modified > 0 {
		return l.Heads.covers(f.Heads)
	}
	return l.Since > 0 && l.Since >= f.Forgotten && l.Epoch == f.Epoch
}

func (l Looked) validate() error {
	if l.Since < 0 || l.Since > 0 && (len(l.Heads) == 0 || l.Epoch == 0) {
		return fmt.Errorf("%w: folds of %d regions were looked at since revision %d", ErrInvalid, len(l.Heads), l.Since)
	}
	if l.Bound && len(l.Heads) == 0 {
		return fmt.Errorf("%w: an identity is folded in no region", ErrInvalid)
	}
	return l.Heads.validate()
}

// Bounds of folds.
const (
	// MaxFold bounds the claims of one DoFold: each is a request of the transaction.
	MaxFold = 64
	// MaxFoldable bounds the claims of one DoFoldable.
	MaxFoldable = 4 * MaxFold
)

func (o Op) validateFold() error {
	if err := o.Heads.validate(); err != nil {
		return err
	}
	if len(o.Heads) == 0 || len(o.Claims) > MaxFold || o.Base < 0 {
		return fmt.Errorf("%w: a fold of %d claims into %d heads", ErrInvalid, len(o.Claims), len(o.Heads))
	}
	for i, c := range o.Claims {
		if c.State != Settled || c.Identity.BootOf() != o.Identity.BootOf() || i > 0 && o.Claims[i-1].Identity.SeqEnd >= c.Identity.SeqStart {
			return fmt.Errorf("%w: a fold of %s, which is %s", ErrInvalid, c.Identity, c.State)
		}
	}
	return nil
}

// foldable are the settled claims that became durable before a time.
func (v *view) foldable(before int64) []Claim {
	var out []Claim
	for _, s := range v.claims {
		if s.State == Settled && s.DurableAt < before && len(out) < MaxFoldable {
			out = append(out, s.Claim)
		}
	}
	return out
}

// Marshal is the value of a boot's heads, which have nothing from a sequence number on.
func (h Heads) Marshal(above uint64) []byte {
	b := append(make([]byte, 0, 12+16*len(h)), version)
	b = append(binary.AppendUvarint(b, above), byte(len(h)))
	for _, a := range h {
		b = append(append(b, byte(len(a.Region))), a.Region...)
		b = binary.AppendUvarint(b, a.Generation)
	}
	return b
}

// ParseHeads reads what Marshal writes. Errors wrap ErrCorrupt or ErrNewer.
func ParseHeads(boot identity.Boot, value []byte) (h Heads, above uint64, _ error) {
	d := decoder{b: value}
	d.version()
	above = d.uvarint()
	n := int(d.byte())
	for i := 0; i < n && d.err == nil; i++ {
		h = append(h, HeadAt{Region: d.region(), Generation: d.uvarint()})
	}
	if d.err == nil && n == 0 {
		d.fail("no head")
	}
	if err := h.validate(); d.err == nil && err != nil {
		d.fail("%v", err)
	}
	if err := d.end(); err != nil {
		return nil, 0, fmt.Errorf("heads of boot %s: %w", boot, err)
	}
	return h, above, nil
}

// Span is a run of sequence numbers of folded identities with the same home.
type Span struct {
	Start, End uint64
	Home       Region
}
