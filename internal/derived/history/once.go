package history

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
)

const defaultRemember = 1_000_000

// once remembers which batches, and which frames in quarantine, were given: the last ones, by half of a hash of what
// they are. Of 10^9 batches no two have the same half but with a probability of 10^-21.
type once struct {
	limit     int
	new, last map[fingerprint]struct{}
}

type fingerprint [16]byte

func newOnce(limit int) *once {
	return &once{limit: cmp.Or(limit, defaultRemember), new: map[fingerprint]struct{}{}}
}

// first reports whether nothing was given yet of what the entry is about, as far as that is remembered.
func (o *once) first(e *journal.Entry) bool {
	f := fingerprintOf(e)
	if _, ok := o.new[f]; ok {
		return false
	}
	if _, ok := o.last[f]; ok {
		return false
	}
	// The older half is dropped as a whole: no entry needs a place in an order.
	if len(o.new) >= o.limit {
		o.last, o.new = o.new, map[fingerprint]struct{}{}
	}
	o.new[f] = struct{}{}
	return true
}

func fingerprintOf(e *journal.Entry) fingerprint {
	b := make([]byte, 0, 160)
	b = binary.LittleEndian.AppendUint64(b, e.ID.SeqStart)
	b = binary.LittleEndian.AppendUint64(b, e.ID.SeqEnd)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(e.ID.Agent)))
	b = append(append(b, e.ID.Agent...), e.ID.Boot...)
	// A frame in quarantine is another one than the batch that was accepted, and there may be several.
	if e.Outcome.Conflict() {
		b = append(append(b, 0), e.SHA256[:]...)
	}
	sum := sha256.Sum256(b)
	return fingerprint(sum[:16])
}
