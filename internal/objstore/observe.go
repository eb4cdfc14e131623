package objstore

import (
	"context"
	"time"
)

// Observer is called after every operation with its name as in Error.Op, the
// key's Family, its duration and its error.
type Observer func(op, family string, took time.Duration, err error)

// Observe reports every operation of s to fn, timed by now.
func Observe(s Store, fn Observer, now func() time.Time) Store {
	return Decorate(s, func(ctx context.Context, op Op, do func(context.Context) error) error {
		start := now()
		err := do(ctx)
		fn(op.Name, Family(op.Key), now().Sub(start), err)
		return err
	})
}
