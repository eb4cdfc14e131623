// Package history checks the answers that senders got: all answers for one identity must be those of
// an atomic register that is written once (invariant I1). The simulation and the tests with real
// processes share it.
package history

import (
	"math"

	"github.com/anishathalye/porcupine"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Reply is the answer that a sender got; the zero value is no answer.
type Reply struct {
	Outcome accept.Outcome
	// Holder is the hash of the frame that has the identity.
	Holder identity.Digest
	// Unnamed replies do not say the holder.
	Unnamed bool
}

// Register is the specification of one identity. A submission without an answer may
// take effect at any later time, or never.
var Register = register(false)

// RegisterWithLosses is the specification where the only copy of an accepted frame may be lost for good, with the region
// that had it: the same frame is then accepted again, and no other one ever.
var RegisterWithLosses = register(true)

func register(losses bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return identity.Digest{} },
		Step: func(state, input, output any) (bool, any) {
			held, mine, out := state.(identity.Digest), input.(identity.Digest), output.(Reply)
			if held.IsZero() {
				return out.Outcome == 0 || out.Outcome == accept.Accepted && out.says(mine), mine
			}
			switch out.Outcome {
			case 0:
				return true, held
			case accept.Accepted:
				return losses && held == mine && out.says(held), held
			case accept.Duplicate:
				return held == mine && out.says(held), held
			case accept.Conflict:
				return held != mine && (out.says(held) || losses && out.saysHalf(held)), held
			}
			return false, held
		},
	}
}

func (r Reply) says(holder identity.Digest) bool { return r.Unnamed || r.Holder == holder }

// saysHalf reports whether the reply has the first half of the holder, and zeros: of a frame that was lost nobody knows more.
func (r Reply) saysHalf(holder identity.Digest) bool {
	const half = len(holder) / 2
	clear(holder[half:])
	return r.Holder == holder
}

// Operation is one submission of these bytes between two moments; with the zero Reply it
// has no end.
func Operation(client int, mine identity.Digest, from, to int64, r Reply) porcupine.Operation {
	if r.Outcome == 0 {
		to = math.MaxInt64
	}
	return porcupine.Operation{ClientId: client, Input: mine, Call: from, Return: to, Output: r}
}

// Linearizable reports whether the register can have given these answers, of one identity.
func Linearizable(register porcupine.Model, ops []porcupine.Operation) bool {
	return porcupine.CheckOperations(register, ops)
}
