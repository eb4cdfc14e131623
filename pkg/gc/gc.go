// Package gc collects orphan blobs: plan, condemn, prove, delete. The argument why
// this is safe without any clock is in docs/protocol/gc.md.
//
// The core is a deterministic state machine over a store, like package accept: no
// goroutines, no clock of its own. A crash at any step leaves at most a marker
// that condemns a blob for nothing, which is harmless.
package gc

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

// Store is what garbage collection needs of an object store: strongly consistent
// reads, conditional creates for markers, and deletes of blobs.
type Store interface {
	Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error)
	Head(ctx context.Context, key string) (objstore.Info, error)
	List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error)
	objstore.Creator
	Delete(ctx context.Context, key string) error
}

// Config of a Collector. Store, AuthorityID and Clock are required.
type Config struct {
	Store Store
	// AuthorityID of the bucket and prefix behind Store: a record of another
	// authority is doubtful, and its blob is kept.
	AuthorityID string
	// Clock stamps markers and log entries and waits between attempts. Nothing that it says decides.
	Clock accept.Clock
	// Attempts at one request before its blob is kept; 0 means 4.
	Attempts int
	// Backoff before the second attempt, doubled per attempt; 0 means 50 ms.
	Backoff time.Duration
	// RequestTimeout of one request; 0 means 10 s.
	RequestTimeout time.Duration
}

// Collector plans and executes. It has no state of its own and is safe for concurrent use.
type Collector struct{ cfg Config }

// New checks the settings; it makes no request.
func New(c Config) (*Collector, error) {
	if c.Store == nil || c.Clock == nil {
		return nil, errors.New("gc: store and clock are needed")
	}
	if err := validName("authority id", c.AuthorityID); err != nil {
		return nil, err
	}
	if c.Attempts < 0 || c.Backoff < 0 || c.RequestTimeout < 0 {
		return nil, errors.New("gc: attempts, backoff and request timeout must not be negative")
	}
	if c.Attempts == 0 {
		c.Attempts = 4
	}
	if c.Backoff == 0 {
		c.Backoff = 50 * time.Millisecond
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = 10 * time.Second
	}
	return &Collector{cfg: c}, nil
}

func validName(what, s string) error {
	if s == "" || len(s) > accept.MaxNameBytes || !utf8.ValidString(s) {
		return fmt.Errorf("gc: %s %q is not 1 to %d bytes of UTF-8", what, s, accept.MaxNameBytes)
	}
	return nil
}

// attempt calls f until it is final: no error, or one that final accepts. The last
// error comes back after the bound, or when a try can't help (credentials, bucket, request).
func (c *Collector) attempt(ctx context.Context, f func(context.Context) error, final func(error) bool) error {
	wait := c.cfg.Backoff
	for try := 1; ; try++ {
		err := c.once(ctx, f)
		if err == nil || final(err) {
			return err
		}
		if ctx.Err() != nil || try >= c.cfg.Attempts || errors.Is(err, objstore.ErrDenied) ||
			errors.Is(err, objstore.ErrNoBucket) || errors.Is(err, objstore.ErrInvalid) {
			return err
		}
		if e := c.cfg.Clock.Sleep(ctx, wait); e != nil {
			return fmt.Errorf("%w (%w)", e, err)
		}
		wait *= 2
	}
}

func (c *Collector) once(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	return f(ctx)
}

func notFound(err error) bool { return errors.Is(err, objstore.ErrNotFound) }

func exists(err error) bool { return errors.Is(err, objstore.ErrExists) }

func never(error) bool { return false }
