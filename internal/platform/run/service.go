package run

import (
	"context"
	"fmt"
)

// Service is what every service is to its main.
type Service interface {
	// Run serves until ctx ends, drains, and returns nil.
	Run(ctx context.Context) error
	// Ready is closed when the service listens and its addresses are known.
	Ready() <-chan struct{}
}

// Started waits until s is ready or done has its error.
func Started(ctx context.Context, name string, s Service, done <-chan error) error {
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
