// Package identity has the typed names of the acceptance protocol: the identity
// of a batch and the digest of a frame. It imports no other package of this module.
package identity

import (
	"cmp"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Limits of the identity's text parts, in bytes.
const (
	MaxAgentIDBytes = 128
	MaxBootIDBytes  = 64
)

// ErrInvalid is wrapped by every error of this package.
var ErrInvalid = errors.New("invalid identity")

// Boot is one run of sequence numbers of one agent: a number is used once within it.
type Boot struct {
	Agent string // 1 to 128 bytes of UTF-8
	Boot  string // 1 to 64 bytes of UTF-8
}

// Batch is the identity of a batch: a closed range of sequence numbers of a boot.
// Record k of the batch, from 0, has the sequence number SeqStart + k. JSON records that name a batch
// embed it, so that these four fields have one JSON form.
type Batch struct {
	Agent    string `json:"agent_id"`
	Boot     string `json:"boot_id"`
	SeqStart uint64 `json:"seq_start"`
	SeqEnd   uint64 `json:"seq_end"`
}

// Validate checks the text parts.
func (b Boot) Validate() error {
	if err := validateText("agent_id", b.Agent, MaxAgentIDBytes); err != nil {
		return err
	}
	return validateText("boot_id", b.Boot, MaxBootIDBytes)
}

// Compare orders boots by agent, then boot, bytewise.
func (b Boot) Compare(o Boot) int {
	return cmp.Or(cmp.Compare(b.Agent, o.Agent), cmp.Compare(b.Boot, o.Boot))
}

func (b Boot) String() string { return fmt.Sprintf("%q/%q", b.Agent, b.Boot) }

// Validate checks the text parts and the range. A range that covers all of
// uint64 is refused, because its count does not fit.
func (b Batch) Validate() error {
	if err := b.BootOf().Validate(); err != nil {
		return err
	}
	if b.SeqEnd < b.SeqStart {
		return fmt.Errorf("%w: seq_end %d is less than seq_start %d", ErrInvalid, b.SeqEnd, b.SeqStart)
	}
	if b.SeqStart == 0 && b.SeqEnd == ^uint64(0) {
		return fmt.Errorf("%w: range covers every sequence number", ErrInvalid)
	}
	return nil
}

// BootOf returns the boot that the batch belongs to.
func (b Batch) BootOf() Boot { return Boot{Agent: b.Agent, Boot: b.Boot} }

// Count is the number of records.
func (b Batch) Count() uint64 { return b.SeqEnd - b.SeqStart + 1 }

// Intersects reports whether both are of one boot and share a sequence number.
func (b Batch) Intersects(o Batch) bool {
	return b.Agent == o.Agent && b.Boot == o.Boot && b.SeqStart <= o.SeqEnd && o.SeqStart <= b.SeqEnd
}

// Compare orders identities by agent, boot, start, end.
func (b Batch) Compare(o Batch) int {
	return cmp.Or(cmp.Compare(b.Agent, o.Agent), cmp.Compare(b.Boot, o.Boot),
		cmp.Compare(b.SeqStart, o.SeqStart), cmp.Compare(b.SeqEnd, o.SeqEnd))
}

func (b Batch) String() string {
	return fmt.Sprintf("%q/%q/%d-%d", b.Agent, b.Boot, b.SeqStart, b.SeqEnd)
}

func validateText(name, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: %s is empty", ErrInvalid, name)
	case len(s) > limit:
		return fmt.Errorf("%w: %s has %d bytes, at most %d", ErrInvalid, name, len(s), limit)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: %s is not UTF-8", ErrInvalid, name)
	}
	return nil
}
