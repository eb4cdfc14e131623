// Package qualify probes a store for the semantics that acceptance relies on. A
// collector is ready only after a run without a failure, and repeats it daily: a
// store's configuration changes under a running process.
package qualify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Mismatcher sends a body with a checksum header that is wrong. Back ends over a
// network implement it; for others a wrong PutOptions.SHA256 does the same.
type Mismatcher interface {
	CreateMismatched(ctx context.Context, key string, body []byte, claimed identity.Digest) error
}

// Options of a run.
type Options struct {
	// RunID makes the probe keys of this run unique, such as 16 random hex digits; required.
	RunID string
	// Strict adds the checks of Policy, and those of the bucket's lifecycle and versioning.
	Strict bool
	// Racers is the number of concurrent creates; 0 is 16.
	Racers int
	// Rounds is how often the race is repeated, each with a key of its own; 0 is 4.
	Rounds int
	// Timeout bounds each check; 0 is 30 s.
	Timeout time.Duration
	// Now is the clock of the durations; nil is time.Now.
	Now func() time.Time
}

// Defaults of Options.
const (
	defaultRacers  = 16
	defaultRounds  = 4
	defaultTimeout = 30 * time.Second
)

func (o Options) withDefaults() Options {
	if o.Racers == 0 {
		o.Racers = defaultRacers
	}
	if o.Rounds == 0 {
		o.Rounds = defaultRounds
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

type check struct {
	name string
	run  func(context.Context, *probe) error
}

var semantics = []check{
	{"conditional create", conditionalCreate},
	{"racing creates", racingCreates},
	{"read after write", readAfterWrite},
	{"list after write", listAfterWrite},
	{"conditional replace", conditionalReplace},
	{"checksum refusal", checksumRefusal},
	{"read after delete", readAfterDelete},
}

// Run probes the store and removes its probe objects. Each write goes once to the back end
// below the decorators of store: further attempts would hide its answers. A failed check does
// not stop the others. The error wraps accept.ErrNotQualified when a check failed or
// ctx ended first; the report is returned in both cases.
func Run(ctx context.Context, store objstore.Store, o Options) (Report, error) {
	if o.RunID == "" || objstore.CheckKey(o.RunID) != nil {
		return Report{}, fmt.Errorf("qualify: run id %q: %w", o.RunID, objstore.ErrInvalid)
	}
	o = o.withDefaults()
	p := newProbe(store, o)
	report := Report{RunID: o.RunID}
	for _, c := range semantics {
		report.Rows = append(report.Rows, p.row(ctx, c))
	}
	for _, c := range slices.Concat(policy, settings) {
		if !o.Strict {
			report.Rows = append(report.Rows, Row{Check: c.name, Status: Skipped, Detail: "asked for with strict"})
			continue
		}
		report.Rows = append(report.Rows, p.row(ctx, c))
	}
	report.Rows = append(report.Rows, p.row(ctx, check{"clean-up", cleanUp}))
	return report, report.Err()
}

// Policy probes the bucket's policy alone, of a store whose semantics Run has found in order. It
// writes nothing. Results are as those of Run.
func Policy(ctx context.Context, store objstore.Store, o Options) (Report, error) {
	o = o.withDefaults()
	p := newProbe(store, o)
	report := Report{RunID: o.RunID}
	for _, c := range policy {
		report.Rows = append(report.Rows, p.row(ctx, c))
	}
	// There is something to remove only if the store ignored a checksum.
	if len(p.keys) > 0 {
		report.Rows = append(report.Rows, p.row(ctx, check{"clean-up", cleanUp}))
	}
	return report, report.Err()
}

// Failed counts the checks that failed.
func (r Report) Failed() int {
	n := 0
	for _, row := range r.Rows {
		if row.Status == Fail {
			n++
		}
	}
	return n
}

func (p *probe) row(ctx context.Context, c check) Row {
	ctx, cancel := context.WithTimeout(ctx, p.opts.Timeout)
	defer cancel()
	start := p.opts.Now()
	p.detail = ""
	err := c.run(ctx, p)
	row := Row{Check: c.name, Status: Pass, Detail: p.detail, Took: p.opts.Now().Sub(start), Err: err}
	var skip skipped
	switch {
	case errors.As(err, &skip):
		row.Status, row.Detail, row.Err = Skipped, string(skip), nil
	case err != nil:
		row.Status, row.Detail = Fail, err.Error()
	}
	return row
}

// Err is nil when no check failed, else an error that wraps accept.ErrNotQualified
// and the causes.
func (r Report) Err() error {
	errs := []error{accept.ErrNotQualified}
	for _, row := range r.Rows {
		if row.Status == Fail {
			errs = append(errs, fmt.Errorf("%s: %w", row.Check, row.Err))
		}
	}
	if len(errs) == 1 {
		return nil
	}
	return &failure{slices.Clip(errs)}
}

// Unanswered reports whether err, of Run or of a request, only says that the store
// did not answer: no check failed for another reason. Such a store may be qualified later.
func Unanswered(err error) bool {
	var f *failure
	if !errors.As(err, &f) {
		return silent(err)
	}
	for _, e := range f.errs[1:] {
		if !silent(e) {
			return false
		}
	}
	return true
}

// silent reports whether err is a missing answer and no answer that is wrong.
func silent(err error) bool {
	return errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrUnknown) ||
		errors.Is(err, context.DeadlineExceeded)
}

// failure joins errors like errors.Join, but prints them in one line, for logs and reports.
type failure struct{ errs []error }

func (f *failure) Error() string {
	s := f.errs[0].Error()
	for i, e := range f.errs[1:] {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		s += sep + e.Error()
	}
	return s
}

func (f *failure) Unwrap() []error { return f.errs }
