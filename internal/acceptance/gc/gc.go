// Package gc collects orphan blobs: plan, condemn, prove, delete. The argument why
// this is safe without any clock is in docs/protocol/gc.md.
//
// The core is a deterministic state machine over a store, like package accept: no
// goroutines, no clock of its own. A crash at any step leaves at most a marker on
// a blob that is not deleted, which is harmless: acceptances use the next generation.
package gc

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/epochs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
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
	// AuthorityID of the bucket and prefix behind Store. A manifest of another
	// authority does not belong there: its blob is kept, and an operator must check it.
	AuthorityID string
	// Clock stamps markers and log entries. No decision depends on it.
	Clock accept.Clock
	// By names the process in epochs of condemned names; empty is "gc".
	By string
}

// Collector plans and executes. It remembers the log of epochs, and is safe for concurrent use.
type Collector struct {
	cfg    Config
	epochs *epochs.Log

	mu      sync.Mutex
	barrier *journal.Barrier // that was not passed when it was last asked
	passed  uint64           // the last epoch whose barrier was passed
}

// New checks the settings; it makes no request.
func New(c Config) (*Collector, error) {
	if c.Store == nil || c.Clock == nil {
		return nil, errors.New("gc: store and clock are needed")
	}
	if err := validName("authority id", c.AuthorityID); err != nil {
		return nil, err
	}
	if c.By = cmp.Or(c.By, "gc"); len(c.By) > accept.MaxNameBytes {
		return nil, validName("name", c.By)
	}
	return &Collector{cfg: c, epochs: epochs.NewLog(c.Store, c.AuthorityID)}, nil
}

func validName(what, s string) error {
	if s == "" || len(s) > accept.MaxNameBytes || !utf8.ValidString(s) {
		return fmt.Errorf("gc: %s %q is not 1 to %d bytes of UTF-8", what, s, accept.MaxNameBytes)
	}
	return nil
}
