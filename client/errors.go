package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Errors of a Writer that callers branch on with errors.Is.
var (
	// ErrFull: the queue has reached Options.MaxBytes or a million batches, or the disk is full. Nothing
	// was queued; the same call may succeed once collectors have accepted batches.
	ErrFull = queue.ErrFull
	// ErrInUse: another Writer, perhaps of another process, has the directory open.
	ErrInUse = vfs.ErrLocked
	// ErrClosed: the Writer was closed.
	ErrClosed = queue.ErrClosed
	// ErrTooLarge: one Append has more than 100,000 samples, or 32 MiB of labels and values, or
	// more than fits into Options.MaxBytes. Nothing was queued.
	ErrTooLarge = input.ErrTooLarge
)

// Invalid is the reason why one sample cannot be queued.
type Invalid struct {
	// Index of the sample in the arguments of Append.
	Index int
	// Reason is stable, such as frame.BadLabels, or frame.BadColumn for two samples of a series
	// at one time, for a histogram in a series of numbers, and for a time that is not of the years
	// 1678 to 2261.
	Reason frame.Reason
	Detail string
}

// InvalidError lists all samples for which Append refused a call. Nothing of the call was queued.
type InvalidError struct {
	Samples []Invalid
}

func (e *InvalidError) Error() string {
	first := e.Samples[0]
	text := fmt.Sprintf("sample %d: %s: %s", first.Index, first.Reason, first.Detail)
	if n := len(e.Samples) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more)", n)
	}
	return text
}

// Is reports whether any sample was refused for a frame.Reason.
func (e *InvalidError) Is(target error) bool {
	reason, ok := target.(frame.Reason)
	for _, s := range e.Samples {
		if ok && s.Reason == reason {
			return true
		}
	}
	return false
}

func invalidOf(index int, err error) Invalid {
	v := Invalid{Index: index, Detail: err.Error()}
	var fe *frame.Error
	if errors.As(err, &fe) {
		v.Reason, v.Detail = fe.Reason, fe.Detail
	}
	return v
}

// Refusal is a batch that collectors will not accept as it is.
type Refusal struct {
	// ID names the stored bytes in the Writer's directory, for Requeue and Discard; empty when
	// nothing is stored.
	ID string
	// Batch is its identity: agent, boot and sequence numbers.
	Batch identity.Batch
	// Conflict: another frame holds the identity, or another queue the boot. It is kept until
	// an operator decides. Otherwise the batch was rejected; those are kept up to an eighth of Options.MaxBytes.
	Conflict bool
	// Reason is stable: IDENTITY_CONFLICT, BOOT_ID_CLASH, a reject's reason of
	// docs/protocol/stream.md, or DAMAGED_ON_DISK. Detail is for people.
	Reason, Detail string
	// Accepted is, of IDENTITY_CONFLICT, the batch of the accepted frame: Batch itself, or another one of the boot that shares record
	// numbers with it. Else it is zero.
	Accepted identity.Batch
	// Collector that refused it.
	Collector string
}

func refusalOf(state queue.State, a queue.HeldBatch) Refusal {
	r := Refusal{ID: a.ID, Batch: a.Identity(), Conflict: state == queue.Parked, Reason: a.Reason, Detail: a.Detail, Collector: a.Collector}
	if r.Reason == "IDENTITY_CONFLICT" {
		if r.Accepted = r.Batch; a.Met() != "" {
			r.Accepted.SeqStart, r.Accepted.SeqEnd = *a.AcceptedSeqStart, *a.AcceptedSeqEnd
		}
	}
	return r
}

// RefusedError is Flush's answer where batches were refused since the Flush before.
type RefusedError struct {
	// Batches that were refused; the first 100 of them have a Refusal.
	Batches  int
	Refusals []Refusal
}

func (e *RefusedError) Error() string {
	first := e.Refusals[0]
	return fmt.Sprintf("%d batches were refused, the first, %s, for %s %s", e.Batches, first.Batch, first.Reason, first.Detail)
}

// Error is an error answer of a service, or the failure to reach it.
type Error struct {
	// Reason is stable, such as BAD_QUERY, LIMIT_EXCEEDED or UNAUTHENTICATED; empty where no
	// service answered.
	Reason string
	// Message is for people.
	Message string
	// Temporary: the same request may succeed later, RetryAfter from now where it is not 0.
	Temporary  bool
	RetryAfter time.Duration

	err error
}

func (e *Error) Error() string {
	if e.Reason == "" {
		return e.Message
	}
	return e.Reason + ": " + e.Message
}

// Reasons of an Error about what a query has to see.
const (
	// ReasonNotVisible: it is not visible in this node yet. The same query may succeed later.
	ReasonNotVisible = "TOKEN_NOT_VISIBLE"
	// ReasonTokenUnknown: no collector of the deployment has given this token.
	ReasonTokenUnknown = "TOKEN_UNKNOWN"
	// ReasonPartial: the answer would be partial, and Wanted.Complete is set. The same query may succeed later.
	ReasonPartial = "ANSWER_PARTIAL"
)

// Unwrap gives the gRPC status, and ctx's error where ctx ended the call.
func (e *Error) Unwrap() error { return e.err }

// errorOf makes the error of a call.
func errorOf(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	e := &Error{Reason: rpc.Reason(err), Message: st.Message(), RetryAfter: rpc.RetryAfter(err), err: err}
	switch st.Code() {
	// Of the codes of a query service only these may have another outcome for the same request later:
	// RESOURCE_EXHAUSTED is a query over a limit.
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted:
		e.Temporary = true
	}
	// So that errors.Is finds context.Canceled, which a gRPC status does not wrap.
	if ctx.Err() != nil {
		e.err = errors.Join(ctx.Err(), err)
	}
	return e
}
