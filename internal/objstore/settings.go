package objstore

import "context"

// LifecycleRule is a rule by which a store changes objects on its own.
type LifecycleRule struct {
	ID      string
	Enabled bool
	// Prefix of the keys, whole; empty is every key.
	Prefix string
	// Expires: it deletes current objects. Moves: it changes their storage class.
	Expires, Moves bool
}

// Configured are stores that tell how their bucket is set up. Errors are those of reads.
type Configured interface {
	// Versioning is "", Enabled or Suspended.
	Versioning(ctx context.Context) (string, error)
	Lifecycle(ctx context.Context) ([]LifecycleRule, error)
}
