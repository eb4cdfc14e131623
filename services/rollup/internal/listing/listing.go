// Package listing lists keys of all shards once for all shards of a worker. Each of them asks every minute, and a LIST
// costs as much as a write: one for each shard would be most of what an idle worker costs.
package listing

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// maxKeys bounds the keys that are remembered. Where there are more, each shard lists its own.
const maxKeys = 20_000

// Listing is of one prefix, under which the keys of all shards are. It is safe for concurrent use.
type Listing struct {
	store  objstore.Lister
	prefix string

	mu    sync.Mutex
	begun time.Time // when the listing began that keys are of; zero: there is none
	whole bool
	keys  []string // ascending
}

// New lists nothing yet.
func New(s objstore.Lister, prefix string) *Listing { return &Listing{store: s, prefix: prefix} }

// Under gives the keys under a prefix of one shard, from a listing that began after a time, and when it began. Where
// none has, it lists now.
func (l *Listing) Under(ctx context.Context, prefix string, after, now time.Time) (keys []string, begun time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A listing of the future is one of before the clock went back.
	if l.begun.IsZero() || !l.begun.After(after) || l.begun.After(now) {
		if err := l.list(ctx, now); err != nil {
			return nil, time.Time{}, err
		}
	}
	if l.whole {
		i, _ := slices.BinarySearch(l.keys, prefix)
		for _, k := range l.keys[i:] {
			if !strings.HasPrefix(k, prefix) {
				break
			}
			keys = append(keys, k)
		}
		return keys, l.begun, nil
	}
	keys, _, err = l.read(ctx, prefix, maxKeys)
	return keys, now, err
}

// list lists all shards; the caller holds mu, so that shards which ask at the same time share it.
func (l *Listing) list(ctx context.Context, now time.Time) error {
	keys, whole, err := l.read(ctx, l.prefix, maxKeys)
	if err != nil {
		return err
	}
	l.keys, l.whole, l.begun = keys, whole, now
	return nil
}

// read lists the first keys under a prefix. whole: there are no others.
func (l *Listing) read(ctx context.Context, prefix string, most int) (keys []string, whole bool, err error) {
	for i, err := range objstore.List(ctx, l.store, objstore.ListOptions{Prefix: prefix}) {
		if err != nil {
			return nil, false, fmt.Errorf("list %q: %w", prefix, err)
		}
		if len(keys) == most {
			return keys, false, nil
		}
		keys = append(keys, i.Key)
	}
	return keys, true, nil
}
