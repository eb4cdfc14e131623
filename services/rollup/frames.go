package rollup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/intake"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

// UnreadableError: the store answers, and an accepted batch's frame is not there or damaged.
type UnreadableError struct {
	Entry intake.Entry
	Err   error
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("frame of %s can't be read: %v", e.Entry.Identity(), e.Err)
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
func (f *frames) get(ctx context.Context, e intake.Entry) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	if int64(e.FrameBytes) > f.maxFrame {
		return nil, &UnreadableError{e, fmt.Errorf("%d bytes, at most %d", e.FrameBytes, f.maxFrame)}
	}
	raw, cause, err := f.generation(ctx, e.RawBlobKey, e)
	if err != nil || raw != nil {
		return raw, err
	}
	err = objstore.ListAll(ctx, f.store, layout.BlobStem(e.FrameSHA256), "", func(o objstore.Info) error {
		if _, _, perr := layout.ParseBlob(o.Key); perr != nil || o.Key == e.RawBlobKey {
			return nil
		}
		var gerr error
		if raw, _, gerr = f.generation(ctx, o.Key, e); gerr == nil && raw != nil {
			gerr = errFound
		}
		return gerr
	})
	switch {
	case errors.Is(err, errFound):
		return raw, nil
	case err != nil:
		return nil, err
	}
	return nil, &UnreadableError{e, cause}
}

// maxAhead bounds the bytes of frames that are read and not yet taken.
const maxAhead = 32 << 20

var errFound = errors.New("found")

// generation reads one generation; nil bytes and a cause when it is not there or not the frame.
func (f *frames) generation(ctx context.Context, key string, e intake.Entry) (raw []byte, cause, err error) {
	raw, _, err = f.store.Get(ctx, key, objstore.GetOptions{Limit: int64(e.FrameBytes)})
	switch {
	case errors.Is(err, objstore.ErrNotFound), objstore.Unreadable(err):
		return nil, err, nil
	case err != nil:
		return nil, nil, err
	}
	if sum := identity.Sum(raw); sum != e.FrameSHA256 {
		return nil, fmt.Errorf("%s hashes to %s", key, sum), nil
	}
	return raw, nil, nil
}

// each reads the frames of entries, some at once, and hands them to fn one at a time, in
// any order. Frames in memory have maxAhead bytes together.
func (f *frames) each(ctx context.Context, entries []intake.Entry, fn func(i int, raw []byte) error) error {
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
