// Package gc collects orphan blobs: plan, condemn, prove, delete. The argument why
// this is safe without any clock is in docs/protocol/gc.md.
//
// The core is a deterministic state machine over a store, like package accept: no
// goroutines, no clock of its own. A crash at any step leaves at most a marker
// that condemns a blob for nothing, which is harmless.
package gc

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Store is what garbage collection needs of an object store: strongly consistent
// reads, conditional creates for markers, and deletes of blobs. The collector asks once:
// deadlines and further attempts are objstore.WithPolicy's.
type Store interface {
	objstore.Reader
	objstore.Creator
	objstore.Deleter
}

// Config of a Collector. Store, AuthorityID and Clock are required.
type Config struct {
	Store Store
	// AuthorityID of the bucket and prefix behind Store: a record of another
	// authority is doubtful, and its blob is kept.
	AuthorityID string
	// Clock stamps markers and log entries. Nothing that it says decides.
	Clock accept.Clock
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
	return &Collector{cfg: c}, nil
}

func validName(what, s string) error {
	if s == "" || len(s) > accept.MaxNameBytes || !utf8.ValidString(s) {
		return fmt.Errorf("gc: %s %q is not 1 to %d bytes of UTF-8", what, s, accept.MaxNameBytes)
	}
	return nil
}
