package main

import (
	"errors"
	"math"

	"github.com/anishathalye/porcupine"

	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The specification of one identity: an atomic register that is written once. A
// submission without an answer may take effect at any later time, or never.
var register = porcupine.Model{
	Init: func() any { return identity.Digest{} },
	Step: func(state, input, output any) (bool, any) {
		held, mine, out := state.(identity.Digest), input.(identity.Digest), output.(reply)
		if held.IsZero() {
			return out.outcome == 0 || out.outcome == accept.Accepted && out.holder == mine, mine
		}
		switch out.outcome {
		case 0:
			return true, held
		case accept.Duplicate:
			return held == mine && out.holder == held, held
		case accept.Conflict:
			return held != mine && out.holder == held, held
		}
		return false, held
	},
}

// reply is what a sender saw; outcome 0 is nothing.
type reply struct {
	outcome accept.Outcome
	holder  identity.Digest
}

// checkHistories is I1: all answers of an identity are those of the register.
func (w *world) checkHistories() {
	histories := map[identity.Batch][]porcupine.Operation{}
	var order []identity.Batch
	for i, c := range w.calls {
		op := porcupine.Operation{ClientId: i, Input: c.sub.SHA256, Call: c.from, Return: math.MaxInt64, Output: reply{}}
		if c.to > 0 {
			op.Return, op.Output = c.to, reply{c.result.Outcome, c.result.Manifest.FrameSHA256}
		}
		id := c.sub.Identity
		if histories[id] == nil {
			order = append(order, id)
		}
		histories[id] = append(histories[id], op)
	}
	for _, id := range order {
		if !porcupine.CheckOperations(register, histories[id]) {
			w.violated("I1", "the answers of %s are not those of a write-once register", id)
		}
	}
}

func asRetry(err error, into **accept.RetryError) bool { return errors.As(err, into) }
