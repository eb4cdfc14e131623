// Package input is the interface between what the agent reads and its queue. An input is a package
// with a settings type (Settings), which gives the sources to run (Spec). A source runs until its
// context ends and hands batches of samples to a Sink. docs/contributing.md has the steps for a
// new input.
package input

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Series is one label set with its type. Sources keep it and use it from batch to batch, so that a
// known series costs no allocation. It must not change once it was handed over.
type Series struct {
	// Labels, __name__ among them; in any order.
	Labels []series.Label
	Type   series.Type
	Unit   string
	// Help is what the metric means, a text that frames take (frame.HelpText); "" when unknown.
	Help string
	// Start is when a counter or cumulative histogram began to count, Unix nanoseconds; 0 when
	// unknown.
	Start int64
}

// Sample is a value of a series at a time.
type Sample struct {
	Series *Series
	Time   int64 // Unix nanoseconds
	Value  float64
	// Histogram is the value where it is not nil; the series' type must allow it. Its slices
	// are kept until the batch is queued and must not change.
	Histogram *series.Histogram
}

// Batch has the samples that a source read at one time, or that a peer sent to it.
type Batch struct {
	// Source for logs and counters, such as "host" or a job.
	Source  string
	Samples []Sample
}

// Sink takes what sources read. Its methods may be called concurrently.
type Sink interface {
	// Offer is for what a source reads on a schedule: it never blocks, because a source that
	// waits would read late. Samples that find no room are dropped, counted, and leave a gap
	// of sequence numbers; then Offer reports false. What was taken is durable once its batch
	// is closed, by age or size; a crash before that loses it.
	Offer(Batch) bool
	// Append is for what others send and want acknowledged: nil means that every sample is
	// on disk, fsynced. It waits while the disk is busy, which is the back-pressure.
	//   - *RejectedError: no collector would take some of the samples; nothing was queued.
	//   - ErrTooLarge: more than one call may have; nothing was queued.
	//   - queue.ErrFull, or another error: nothing was queued, and the same call may succeed later.
	//   - an error that wraps ctx's: the batch may have been queued or not.
	Append(ctx context.Context, b Batch) error
}

// ErrTooLarge is Append's answer to more samples than one call may have.
var ErrTooLarge = errors.New("too many samples in one call")

// Rejection is why one sample can't be queued.
type Rejection struct {
	// Index of the sample in the batch.
	Index int
	// Err is a *frame.Error, whose reason is stable.
	Err error
}

// RejectedError lists the samples for which Append refused a batch, in order of their
// index. Without them the batch would be taken.
type RejectedError struct {
	Samples []Rejection
}

func (e *RejectedError) Error() string {
	first := e.Samples[0]
	if n := len(e.Samples) - 1; n > 0 {
		return fmt.Sprintf("sample %d: %v (and %d more)", first.Index, first.Err, n)
	}
	return fmt.Sprintf("sample %d: %v", first.Index, first.Err)
}

// Unwrap gives the first sample's error, so that errors.Is finds its reason.
func (e *RejectedError) Unwrap() error { return e.Samples[0].Err }

// Source is one running input, such as a scrape target or a listener.
type Source interface {
	// Run hands batches to the sink until ctx ends; then it returns nil. An error ends the
	// agent, so what may pass by itself belongs into Status. Where Removed(ctx) holds after
	// the end, the source was removed and marks its series as stale before it returns.
	Run(ctx context.Context, sink Sink) error
	// Status may be called at any time.
	Status() Status
}

// Status is the state of a source, for people.
type Status struct {
	// Address that is read or listened at, without secrets; empty where there is none.
	Address string `json:"address,omitempty"`
	// Up: the last read succeeded, or the listener listens.
	Up bool `json:"up"`
	// At is when that was; zero before the first.
	At time.Time `json:"at"`
	// Samples of the last read, and the series that are known.
	Samples   int           `json:"samples"`
	Series    int           `json:"series"`
	Duration  time.Duration `json:"duration_ns"`
	LastError string        `json:"last_error,omitempty"`
}

// Settings are the part of the agent's settings that belongs to one kind of input.
type Settings interface {
	// Validate checks them; errors name the kind and the setting. interval is the agent's,
	// for sources that have none of their own.
	Validate(interval time.Duration) error
	// Specs gives the sources that they ask for. They are valid.
	Specs(interval time.Duration) []Spec
}

// Spec is a source that settings ask for.
type Spec struct {
	// Kind of input, and Name of the source within it, as the status shows them.
	Kind, Name string
	// Settings that the source is made of: a reload leaves a source alone where there is one
	// of the kind whose settings are deeply equal.
	Settings any
	// CertFiles are the client certificates that the source shows; their end is an alert.
	CertFiles []string
	// New makes the source; it must not begin anything before Run.
	New func(Env) (Source, error)
}

// Env is what the agent gives to its sources.
type Env struct {
	Hostname string
	Log      *slog.Logger
	Now      func() time.Time
}

// ErrRemoved ends the context of a source that settings no longer ask for.
var ErrRemoved = errors.New("the source was removed from the settings")

// Removed reports whether ctx ended because the source was removed, and not because the
// agent stops: a restart continues the series, so only a removal ends them.
func Removed(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrRemoved) }
