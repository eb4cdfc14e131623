package robustness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
)

// scratch overwrites and deletes objects of its own beside the collectors, so that the
// store has bodies in files, dead records and segments to reclaim. One writer: what each
// key must hold is known.
type scratch struct {
	store objstore.Store
	quit  chan struct{}
	wg    sync.WaitGroup
	want  map[string][]byte // nil: deleted
	ops   int
}

const (
	scratchKeys  = 24
	scratchPause = 3 * time.Millisecond
	scratchTry   = 2 * time.Second
)

func startScratch(ctx context.Context, c *cluster.Cluster, seed uint64) (*scratch, error) {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return nil, err
	}
	s := &scratch{store: store, quit: make(chan struct{}), want: map[string][]byte{}}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.run(ctx, rand.New(rand.NewPCG(seed, 7)))
	}()
	return s, nil
}

func (s *scratch) run(ctx context.Context, rnd *rand.Rand) {
	for {
		select {
		case <-s.quit:
			return
		case <-ctx.Done():
			return
		case <-time.After(scratchPause):
		}
		key := fmt.Sprintf("scratch/%d", rnd.IntN(scratchKeys))
		var body []byte
		if rnd.IntN(4) > 0 {
			body = make([]byte, []int{1 << 10, 3 << 10, 4000, 12 << 10}[rnd.IntN(4)])
			for i := range body {
				body[i] = byte(rnd.IntN(256))
			}
		}
		// Put and Delete are idempotent: again, until there is an answer.
		for !s.apply(ctx, key, body) {
			if ctx.Err() != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		s.want[key] = body
		s.ops++
	}
}

func (s *scratch) apply(ctx context.Context, key string, body []byte) bool {
	ctx, cancel := context.WithTimeout(ctx, scratchTry)
	defer cancel()
	if body == nil {
		return s.store.Delete(ctx, key) == nil
	}
	_, err := s.store.Put(ctx, key, body, objstore.PutOptions{})
	return err == nil
}

// stop ends the writer and compares every key with what was answered last.
func (s *scratch) stop(ctx context.Context) error {
	close(s.quit)
	s.wg.Wait()
	var errs []error
	listed := map[string]bool{}
	if err := storetest.Each(ctx, s.store, "scratch/", func(o objstore.Info) error { listed[o.Key] = true; return nil }); err != nil {
		return err
	}
	for key, want := range s.want {
		got, _, err := s.store.Get(ctx, key, objstore.GetOptions{})
		switch {
		case want == nil && !errors.Is(err, objstore.ErrNotFound):
			errs = append(errs, fmt.Errorf("%s was deleted and is there (%v)", key, err))
		case want != nil && (err != nil || !bytes.Equal(got, want)):
			errs = append(errs, fmt.Errorf("%s has %d bytes, want the %d that were answered (%v)", key, len(got), len(want), err))
		}
		if listed[key] != (want != nil) {
			errs = append(errs, fmt.Errorf("%s is listed: %v, want %v", key, listed[key], want != nil))
		}
	}
	return errors.Join(errs...)
}
