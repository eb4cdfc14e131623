package rollup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// UnreadableError: the store answers, and an accepted batch's frame is not there or damaged.
type UnreadableError struct {
	Entry accepted.Batch
	Err   error
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("frame of %s can't be read: %v", e.Entry.Identity, e.Err)
}

// Unwrap gives the cause.
func (e *UnreadableError) Unwrap() error { return e.Err }

// fetchTimeout bounds one frame, all generations of its blob included.
const fetchTimeout = 30 * time.Second

// frames reads frames of accepted batches.
type frames struct {
	store    objstore.Reader
	maxFrame int64
	readers  int
}

// get reads the generation that the entry names, then any whose bytes hash to its digest.
func (f *frames) get(ctx context.Context, e accepted.Batch) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	if int64(e.FrameBytes) > f.maxFrame {
		return nil, &UnreadableError{e, fmt.Errorf("%d bytes, at most %d", e.FrameBytes, f.maxFrame)}
	}
	raw, err := accept.ReadFrame(ctx, f.store, e.RawBlobKey, e.FrameSHA256, e.FrameBytes)
	var unreadable *accept.FrameError
	if errors.As(err, &unreadable) {
		return nil, &UnreadableError{e, unreadable.Cause}
	}
	return raw, err
}

// maxAhead bounds the bytes of frames that are read and not yet taken.
const maxAhead = 32 << 20

// each reads the frames of entries, some at once, and hands them to fn one at a time, in
// any order. Frames in memory have maxAhead bytes together.
func (f *frames) each(ctx context.Context, entries []accepted.Batch, fn func(i int, raw []byte) error) error {
	g, gctx := errgroup.WithContext(ctx)
	room := semaphore.NewWeighted(maxAhead)
	size := func(i int) int64 { return min(int64(entries[i].FrameBytes), maxAhead) }
	type got struct {
		i   int
		raw []byte
	}
	next, ready := make(chan int), make(chan got)
	g.Go(func() error {
		defer close(next)
		for i := range entries {
			select {
			case next <- i:
			case <-gctx.Done():
				return nil
			}
		}
		return nil
	})
	var readers sync.WaitGroup
	for range f.readers {
		readers.Add(1)
		g.Go(func() error {
			defer readers.Done()
			for i := range next {
				if err := room.Acquire(gctx, size(i)); err != nil {
					return err
				}
				raw, err := f.get(gctx, entries[i])
				if err != nil {
					return err
				}
				select {
				case ready <- got{i, raw}:
				case <-gctx.Done():
					return gctx.Err()
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		readers.Wait()
		close(ready)
		return nil
	})
	g.Go(func() error {
		for r := range ready {
			if err := fn(r.i, r.raw); err != nil {
				return err
			}
			room.Release(size(r.i))
		}
		return nil
	})
	return g.Wait()
}
