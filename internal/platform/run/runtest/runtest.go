// Package runtest has what tests need that run services inside their own process.
package runtest

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Started waits until s is ready or done has its error.
func Started(ctx context.Context, name string, s run.Service, done <-chan error) error {
	select {
	case <-s.Ready():
		return nil
	case err := <-done:
		if err == nil {
			err = context.Canceled
		}
		return fmt.Errorf("%s ended before it was ready: %w", name, err)
	case <-ctx.Done():
		return fmt.Errorf("%s: waiting to be ready: %w", name, context.Cause(ctx))
	}
}
