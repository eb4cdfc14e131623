package main

import (
	"errors"

	"github.com/anishathalye/porcupine"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/harness/history"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// checkHistories is I1: all answers of an identity are those of the register.
func (w *world) checkHistories() {
	if w.elsewhere {
		return // two that accept: local_spool makes no such promise
	}
	histories := map[identity.Batch][]porcupine.Operation{}
	var order []identity.Batch
	for i, c := range w.calls {
		var r history.Reply
		if c.to > 0 {
			r = history.Reply{Outcome: c.result.Outcome, Holder: c.result.Manifest.FrameSHA256}
		}
		id := c.sub.Identity
		if histories[id] == nil {
			order = append(order, id)
		}
		histories[id] = append(histories[id], history.Operation(i, c.sub.SHA256, c.from, c.to, r))
	}
	for _, id := range order {
		if !history.Linearizable(history.Register, histories[id]) {
			w.violated("I1", "the answers of %s are not those of a write-once register", id)
		}
	}
}

func asRetry(err error, into **accept.RetryError) bool { return errors.As(err, into) }
