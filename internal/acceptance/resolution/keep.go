package resolution

import (
	"fmt"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Renumber makes the frame of a parked frame's records under their numbers of KeepBoth: those of the
// boot Kept, from 1 on. One version of the encoder makes the same bytes each time. Another one makes
// a frame that loses the identity to the first, so that records never count twice.
func Renumber(parked []byte) (identity.Batch, []byte, error) {
	var b frame.Batch
	if err := frame.Decode(parked, &b, frame.Limits{}); err != nil {
		return identity.Batch{}, nil, fmt.Errorf("parked frame: %w", err)
	}
	boot := Kept(b.Identity.Agent, identity.Sum(parked))
	b.Identity = identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 1, SeqEnd: b.Records()}
	out, err := frame.Encode(nil, &b)
	if err != nil {
		return identity.Batch{}, nil, fmt.Errorf("parked frame under new numbers: %w", err)
	}
	return b.Identity, out, nil
}
