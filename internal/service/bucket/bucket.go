// Package bucket has the settings of a service over the bucket of an acceptance authority;
// internal/objstore/storage opens it.
package bucket

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// Bucket are the settings of a service over a bucket; they are embedded beside service.Base.
type Bucket struct {
	AuthorityID string    `koanf:"authority_id" help:"acceptance authority that the bucket must be; empty takes the bucket's own"`
	Store       s3.Config `koanf:"store"`
}

// Default has everything but the bucket's name.
func Default() Bucket { return Bucket{Store: s3.DefaultConfig()} }

// Check refuses what no start can open. It is not part of a service's Validate: tests give
// services a store of their own.
func (b Bucket) Check() error { return b.Store.Validate() }

// Probe is the probe of the store for a service's readiness: the store answers, and the
// bucket is the configured authority and no copy of it, or is none yet.
func (b Bucket) Probe(st objstore.Reader) func(context.Context) error {
	return func(ctx context.Context) error {
		err := accept.CheckAuthority(ctx, st, b.AuthorityID)
		var other *accept.AuthorityError
		if err != nil && !errors.As(err, &other) && !record.Opaque(err) {
			return fmt.Errorf("the store does not answer: %w", err)
		}
		return err
	}
}

// Banner is the bucket's line in a service's start-up banner.
func Banner(c s3.Config) [2]string { return [2]string{"bucket", c.Bucket + "/" + c.Prefix} }
