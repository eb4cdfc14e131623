// Package frames reads and decodes the frames of accepted batches for rollup jobs and
// snapshots, several at once.
package frames

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// UnreadableError says that the store answers, and an accepted batch's frame is not there or
// damaged: no later try mends it, only somebody who brings the frame back.
type UnreadableError struct {
	Entry accepted.Batch
	Err   error
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("frame of %s can't be read: %v", e.Entry.Identity, e.Err)
}

// Unwrap gives the cause.
func (e *UnreadableError) Unwrap() error { return e.Err }

// ErrRemoved is wrapped by the UnreadableError of a frame that retention removed: it is no loss,
// and no repair record is about it.
var ErrRemoved = errors.New("retention removed it")

const (
	// fetchTimeout bounds one frame, all generations of its blob included.
	fetchTimeout = 30 * time.Second
	// readAhead bounds the bytes of frames that are read and not yet taken.
	readAhead = 32 << 20
)

// Reader reads frames: those of several batches from packs, a single one with Get, from wherever it
// is. Whatever the source, a frame counts only if it has the hash of its entry. A Reader has no state
// and is safe for concurrent use.
type Reader struct {
	Store objstore.Reader
	// MaxFrame is the longest frame in bytes that is read.
	MaxFrame int64
	// AtOnce bounds the frames, or packs, of one call that are read at once.
	AtOnce int
	// Removed reports whether a log says that retention removed the batch's frame; nil: none did.
	Removed func(ctx context.Context, id identity.Batch) (bool, error)
	// Packs gives the objects that have frames of several of the entries, no frame in two of them; nil
	// stands for none. Each and FindUnreadable read these first.
	Packs func(ctx context.Context, entries []accepted.Batch) []Pack
	// Arrived has frames that collectors sent; Get looks there before it asks the store. Nil has none.
	Arrived *Arrived
}

// Get gives a batch's frame, which the caller must not change: one that a collector sent, or that of the blob generation
// that the batch names, or of any other whose bytes have the right hash.
func (r *Reader) Get(ctx context.Context, e accepted.Batch) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	if int64(e.FrameBytes) > r.MaxFrame {
		return nil, &UnreadableError{e, fmt.Errorf("%d bytes, at most %d", e.FrameBytes, r.MaxFrame)}
	}
	if raw := r.Arrived.get(e.FrameSHA256); raw != nil {
		return raw, nil
	}
	raw, err := accept.ReadFrame(ctx, r.Store, e.RawBlobKey, e.FrameSHA256, e.FrameBytes)
	var unreadable *accept.FrameError
	if !errors.As(err, &unreadable) {
		return raw, err
	}
	cause := unreadable.Cause
	// A log is written before its frames are deleted, so it is asked after the frame was missed.
	if errors.Is(cause, objstore.ErrNotFound) && r.Removed != nil {
		removed, err := r.Removed(ctx, e.Identity)
		if err != nil {
			return nil, err
		}
		if removed {
			cause = fmt.Errorf("%w: %w", ErrRemoved, cause)
		}
	}
	return nil, &UnreadableError{e, cause}
}

// Each reads the frames of entries, several at once, and hands them to fn one at a time, in
// any order. fn may keep nothing of raw.
func (r *Reader) Each(ctx context.Context, entries []accepted.Batch, fn func(i int, raw []byte) error) error {
	rest, err := eachPacked(ctx, r, entries, fn)
	if err != nil {
		return err
	}
	size := func(k int) int64 { return int64(entries[rest[k]].FrameBytes) }
	get := func(ctx context.Context, k int) ([]byte, error) { return r.Get(ctx, entries[rest[k]]) }
	return readAll(ctx, r.AtOnce, len(rest), size, get, func(k int, raw []byte) error { return fn(rest[k], raw) })
}

// readAll reads n objects, atOnce of them at once, and hands what was read to fn one at a time, in any order.
func readAll[T any](ctx context.Context, atOnce, n int, bytes func(i int) int64, read func(ctx context.Context, i int) (T, error), fn func(i int, got T) error) error {
	g, gctx := errgroup.WithContext(ctx)
	// Readers take their share of the memory before they read, and fn's return gives it back: so
	// what is read waits in memory for a slow fn, but never more than readAhead bytes of it.
	memory := semaphore.NewWeighted(readAhead)
	size := func(i int) int64 { return min(bytes(i), readAhead) }
	type object struct {
		i   int
		got T
	}
	next, ready := make(chan int), make(chan object)
	g.Go(func() error {
		defer close(next)
		for i := range n {
			select {
			case next <- i:
			case <-gctx.Done():
				return nil
			}
		}
		return nil
	})
	var readers sync.WaitGroup
	for range min(atOnce, n) {
		readers.Add(1)
		g.Go(func() error {
			defer readers.Done()
			for i := range next {
				if err := memory.Acquire(gctx, size(i)); err != nil {
					return err
				}
				got, err := read(gctx, i)
				if err != nil {
					return err
				}
				select {
				case ready <- object{i, got}:
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
		for o := range ready {
			if err := fn(o.i, o.got); err != nil {
				return err
			}
			memory.Release(size(o.i))
		}
		return nil
	})
	return g.Wait()
}

// All reads the frames of entries, several at once; nil for one that can't be read.
func (r *Reader) All(ctx context.Context, entries []accepted.Batch) ([][]byte, error) {
	out := make([][]byte, len(entries))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(r.AtOnce, 1))
	for i, e := range entries {
		g.Go(func() error {
			raw, err := r.Get(ctx, e)
			var bad *UnreadableError
			if errors.As(err, &bad) {
				return nil
			}
			out[i] = raw
			return err
		})
	}
	return out, g.Wait()
}

// Check reads and decodes a frame: *UnreadableError when that can't be.
func (r *Reader) Check(ctx context.Context, e accepted.Batch) error {
	raw, err := r.Get(ctx, e)
	if err != nil {
		return err
	}
	if _, err := r.Decoder().Decode(raw); err != nil {
		return &UnreadableError{e, err}
	}
	return nil
}

// FindUnreadable checks the frames of entries and gives those that can't be read.
func (r *Reader) FindUnreadable(ctx context.Context, entries []accepted.Batch) (bad []*UnreadableError, err error) {
	dec := r.Decoder()
	rest, err := eachPacked(ctx, r, entries, func(i int, raw []byte) error {
		if _, err := dec.Decode(raw); err != nil {
			bad = append(bad, &UnreadableError{entries[i], err})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.AtOnce)
	for _, i := range rest {
		g.Go(func() error {
			err := r.Check(ctx, entries[i])
			var one *UnreadableError
			if !errors.As(err, &one) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			bad = append(bad, one)
			return nil
		})
	}
	return bad, g.Wait()
}

// Hours gives the hours that the batch has records in. all is false where its frame can't be read and may be again:
// there may be others between its first and its last.
func (r *Reader) Hours(ctx context.Context, e accepted.Batch) (hs []timegrid.Hour, all bool, err error) {
	first, last := e.Hours()
	if last <= first+1 {
		return slices.Compact([]timegrid.Hour{first, last}), true, nil
	}
	// Between the first and the last hour of a batch that spans three or more there may be none,
	// and a batch of a broken clock spans years. Only its frame tells.
	raw, err := r.Get(ctx, e)
	var bad *UnreadableError
	if errors.As(err, &bad) {
		// The job of one of them will say that it can't be read. What retention removed was in the blocks of its hours.
		return []timegrid.Hour{first, last}, errors.Is(err, ErrRemoved), nil
	}
	if err != nil {
		return nil, false, err
	}
	f, err := r.Decoder().Decode(raw)
	if err != nil {
		return []timegrid.Hour{first, last}, true, nil // these are the bytes that were accepted
	}
	for i := range f.Groups {
		for _, t := range f.Groups[i].Timestamps {
			if h := timegrid.HourOfNS(t); len(hs) == 0 || hs[len(hs)-1] != h {
				hs = append(hs, h)
			}
		}
	}
	slices.Sort(hs)
	return slices.Compact(hs), true, nil
}

// Decoder decodes one frame after the other into the same memory.
type Decoder struct {
	d      *frame.Decoder
	limits frame.Limits
	b      frame.Batch
}

// Decoder gives a decoder with the reader's limit.
func (r *Reader) Decoder() *Decoder {
	return &Decoder{d: frame.NewDecoder(), limits: frame.Limits{EncodedBytes: int(r.MaxFrame)}}
}

// Decode gives a batch that is valid until the next call.
func (d *Decoder) Decode(raw []byte) (*frame.Batch, error) {
	if err := d.d.Decode(raw, &d.b, d.limits); err != nil {
		return nil, err
	}
	return &d.b, nil
}
