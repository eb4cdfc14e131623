package run

import "context"

// Service is what every service is to its main.
type Service interface {
	// Run serves until ctx ends, drains, and returns nil.
	Run(ctx context.Context) error
	// Ready is closed when the service listens and its addresses are known.
	Ready() <-chan struct{}
}
