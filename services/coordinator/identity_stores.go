package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/coordination/trace"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

const (
	// foldPatience is how long one request of a fold, or of a look-up, waits for a region. Others have what it has; senders wait
	// behind it.
	foldPatience = 3 * time.Second
	// foldPause is how long a region that did not answer is not asked.
	foldPause = 2 * time.Second
)

// foldStore is the bucket of a region as folds use it: one that is cut off holds nobody up for long. It is safe for concurrent use.
type foldStore struct {
	regions.Store
	now func() time.Time

	mu    sync.Mutex
	until time.Time // it is not asked before
}

func (s *foldStore) Get(ctx context.Context, key string, o objstore.GetOptions) (body []byte, info objstore.Info, err error) {
	err = s.do(ctx, func(ctx context.Context) error { body, info, err = s.Store.Get(ctx, key, o); return err })
	return body, info, err
}

func (s *foldStore) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (info objstore.Info, err error) {
	err = s.do(ctx, func(ctx context.Context) error { info, err = s.Store.Create(ctx, key, body, o); return err })
	return info, err
}

func (s *foldStore) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (info objstore.Info, err error) {
	err = s.do(ctx, func(ctx context.Context) error { info, err = s.Store.Replace(ctx, key, body, etag, o); return err })
	return info, err
}

func (s *foldStore) do(ctx context.Context, request func(context.Context) error) error {
	s.mu.Lock()
	wait := s.until.Sub(s.now())
	s.mu.Unlock()
	if wait > 0 {
		return fmt.Errorf("%w: it did not answer before, and is asked again in %s", objstore.ErrUnavailable, wait.Round(time.Millisecond))
	}
	bounded, cancel := context.WithTimeout(ctx, foldPatience)
	defer cancel()
	err := request(bounded)
	if ctx.Err() == nil && (bounded.Err() != nil || errors.Is(err, objstore.ErrUnavailable)) {
		s.mu.Lock()
		s.until = s.now().Add(foldPause)
		s.mu.Unlock()
	}
	return err
}

// tracePatience is how long one request of a trace waits for a region, with all attempts of the store's policy: those alone would take
// longer than the caller of a trace waits.
const tracePatience = 20 * time.Second

// tracedStore is the bucket of a region as one trace reads it: a region that is cut off is not asked again. It is safe for concurrent
// use.
type tracedStore struct {
	trace.Store
	patience time.Duration // of one request
	lost     atomic.Bool
}

func (s *tracedStore) Get(ctx context.Context, key string, o objstore.GetOptions) (body []byte, info objstore.Info, err error) {
	err = s.do(ctx, func(ctx context.Context) error { body, info, err = s.Store.Get(ctx, key, o); return err })
	return body, info, err
}

func (s *tracedStore) List(ctx context.Context, o objstore.ListOptions) (page objstore.Page, err error) {
	err = s.do(ctx, func(ctx context.Context) error { page, err = s.Store.List(ctx, o); return err })
	return page, err
}

func (s *tracedStore) do(ctx context.Context, request func(context.Context) error) error {
	if s.lost.Load() {
		return fmt.Errorf("%w: it did not answer before", objstore.ErrUnavailable)
	}
	bounded, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	err := request(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		s.lost.Store(true)
		return fmt.Errorf("%w: no answer within %s", objstore.ErrUnavailable, s.patience)
	}
	return err
}

// statusPatience is how long one request of a status waits for a region: people who ask wait for half a minute, and ask because a region is
// cut off.
const statusPatience = 5 * time.Second

// statusStore is the bucket of a region as one status reads it.
type statusStore struct {
	regions.Store
	reads *tracedStore
}

func (s statusStore) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	return s.reads.Get(ctx, key, o)
}

func (s statusStore) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	return s.reads.List(ctx, o)
}
