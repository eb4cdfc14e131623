// Package inputtest is for tests of inputs.
package inputtest

import (
	"context"

	"lightmetrics.dev/lightmetrics/agent/input"
)

// Sink calls a function with every batch that a source hands over, in either way.
type Sink func(input.Batch) bool

// Offer implements input.Sink.
func (s Sink) Offer(b input.Batch) bool { return s(b) }

// Append implements input.Sink; false is an error.
func (s Sink) Append(_ context.Context, b input.Batch) error {
	if !s(b) {
		return &input.RejectedError{Samples: []input.Rejection{{Err: context.Canceled}}}
	}
	return nil
}
