// Package failstore adds failpoints before and after every request to an object store. So a
// test can crash a core package between any two of its requests, without failpoints in it.
package failstore

import (
	"context"
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// Register registers the failpoints of a process's requests. Each kind is "<operation>
// <key family>", such as "create accepted", and becomes
// <process>.store.<operation>.<family>.before and .after.
func Register(process string, kinds ...string) []failpoint.Point {
	return RegisterDriven("", process, kinds...)
}

// RegisterDriven is Register for requests that the crash test of the package by exercises.
func RegisterDriven(by, process string, kinds ...string) []failpoint.Point {
	var points []failpoint.Point
	for _, k := range kinds {
		op, family, _ := strings.Cut(k, " ")
		base := name(process, op, family)
		points = append(points,
			failpoint.Point{Name: base + ".before", When: op + " of a key of " + family + "/ is not sent yet"},
			failpoint.Point{Name: base + ".after", When: op + " of a key of " + family + "/ was answered; nobody has seen the answer"})
	}
	return failpoint.Register(failpoint.Driven(by, points...)...)
}

func name(process, op, family string) string { return process + ".store." + op + "." + family }

// Wrap adds the failpoints to s; it returns s itself if none is armed. The action "error"
// before a request fails it without sending it; after a request, it loses the answer.
func Wrap(s objstore.Store, process string) objstore.Store {
	if !failpoint.Armed() {
		return s
	}
	return objstore.Decorate(s, func(ctx context.Context, op objstore.Op, do func(context.Context) error) error {
		base := name(process, op.Name, objstore.Family(op.Key))
		lost := objstore.ErrUnavailable
		if op.Writes() {
			lost = objstore.ErrUnknown
		}
		fail := func(err error) error {
			return &objstore.Error{Op: op.Name, Key: op.Key, Err: fmt.Errorf("%w: %w", lost, err)}
		}
		// The error is that of a lost answer also here: a caller cannot see whether its request was sent.
		if err := failpoint.Err(base + ".before"); err != nil {
			return fail(err)
		}
		err := do(ctx)
		if ferr := failpoint.Err(base + ".after"); ferr != nil {
			return fail(ferr)
		}
		return err
	})
}
