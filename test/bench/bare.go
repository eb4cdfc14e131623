package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// bare is the floor: the requests of acceptance by the collector's own store client,
// and nothing else. Manifests are made beforehand.
type bare struct {
	store     *s3.Store
	batches   []batch
	manifests [][]byte
}

func newBare(store *s3.Store, fs []feed) *bare {
	b := &bare{store: store}
	for i := range fs[0].batches { // as the agents' streams would mix them
		for _, f := range fs {
			next := f.batches[i]
			b.batches = append(b.batches, next)
			b.manifests = append(b.manifests, manifest(next))
		}
	}
	return b
}

// manifest is one that a collector could have written.
func manifest(b batch) []byte {
	var attempt [16]byte
	_, _ = rand.Read(attempt[:]) // never fails
	return accept.Manifest{
		AuthorityID: authority, Identity: b.id, FrameSHA256: b.sum, FrameBytes: uint64(len(b.frame)), RawBlobKey: layout.Blob(b.sum, 0),
		AcceptedAt: time.Now().UnixNano(), CollectorID: "bench-1", WireVersion: 1, FrameVersion: 1, AttemptID: hex.EncodeToString(attempt[:]),
		RecordCount: b.id.Count(), MinTime: time.Now().UnixNano(), MaxTime: time.Now().UnixNano(),
	}.Marshal()
}

// one makes the three requests of batch i, one after the other.
func (b *bare) one(ctx context.Context, i int) error {
	next := &b.batches[i]
	sum := identity.Sum(next.frame)
	if _, err := b.store.Create(ctx, layout.Blob(sum, 0), next.frame, objstore.PutOptions{SHA256: sum, ContentType: "application/vnd.lightmetrics.batch"}); err != nil {
		return err
	}
	if _, err := b.store.Create(ctx, layout.Accepted(next.id), b.manifests[i], objstore.PutOptions{ContentType: "application/json"}); err != nil {
		return err
	}
	if _, _, err := b.store.Get(ctx, layout.Condemned(sum, 0), objstore.GetOptions{}); !errors.Is(err, objstore.ErrNotFound) {
		return fmt.Errorf("marker: %w", err)
	}
	return nil
}

// run does all batches with so many at a time.
func (b *bare) run(ctx context.Context, inFlight int) (times []time.Duration, took time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	next := make(chan int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for range inFlight {
		wg.Go(func() {
			for i := range next {
				began := time.Now()
				oneErr := b.one(ctx, i)
				mu.Lock()
				if oneErr != nil && err == nil { // what follows is the cancellation
					err = oneErr
					cancel()
				}
				times = append(times, time.Since(began))
				mu.Unlock()
			}
		})
	}
	for i := range b.batches {
		next <- i
	}
	close(next)
	wg.Wait()
	return times, time.Since(start), err
}
