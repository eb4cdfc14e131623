package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/trace"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// unreachable is a bucket behind a network that is cut off: each request ends by its caller's deadline, or after the attempts
// of a store's policy.
type unreachable struct{}

func (unreachable) wait(ctx context.Context) error {
	timer := time.NewTimer(100 * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
		return fmt.Errorf("%w: no answer", objstore.ErrUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", objstore.ErrUnavailable, ctx.Err())
	}
}

func (u unreachable) Get(ctx context.Context, _ string, _ objstore.GetOptions) ([]byte, objstore.Info, error) {
	return nil, objstore.Info{}, u.wait(ctx)
}

func (u unreachable) List(ctx context.Context, _ objstore.ListOptions) (objstore.Page, error) {
	return objstore.Page{}, u.wait(ctx)
}

// A region that is cut off holds a trace up for a while, and not until its caller has left with nothing.
func TestTraceWithoutARegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := mem.New(time.Now)
		_, err := eu.Create(t.Context(), layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "authority"}.Marshal(), objstore.PutOptions{})
		must(t, err)
		id := identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 10}
		_, err = eu.Create(t.Context(), layout.Accepted(id), []byte("damaged"), objstore.PutOptions{})
		must(t, err)
		v := &identities{tracing: make(chan struct{}, maxTraces), traced: []trace.Region{{Name: "eu", Store: eu}, {Name: "us", Store: unreachable{}}}}
		for range 2 { // what was found out in one call says nothing of the next
			began := time.Now()
			got := v.Trace(t.Context(), trace.Query{Identity: id, After: time.Minute})
			if took := time.Since(began); took < tracePatience || took > tracePatience+time.Second {
				t.Errorf("it took %s", took)
			}
			if len(got.Records) != 1 || got.Records[0].Region != claims.Region("eu") {
				t.Errorf("%+v", got.Records)
			}
			if len(got.Unread) != 1 || got.Unread[0].Region != "us" || !errors.Is(got.Unread[0].Err, objstore.ErrUnavailable) {
				t.Errorf("%+v", got.Unread)
			}
			if j := got.Journals; len(j) != 2 || j[0].Err != nil || !errors.Is(j[1].Err, objstore.ErrUnavailable) {
				t.Errorf("%+v", j)
			}
		}
		// A caller that leaves says nothing of the region.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s := &tracedStore{Store: unreachable{}, patience: tracePatience}
		if _, _, err := s.Get(ctx, "k", objstore.GetOptions{}); err == nil || s.lost.Load() {
			t.Errorf("%v, lost: %t", err, s.lost.Load())
		}
	})
}

// endless is a bucket that answers slowly, with one page of keys that say nothing after another.
type endless struct {
	pages, most *atomic.Int64 // under way, and most of them at once
}

func (e endless) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if ctx.Err() != nil {
		return objstore.Page{}, fmt.Errorf("%w: %w", objstore.ErrUnavailable, ctx.Err())
	}
	if n := e.pages.Add(1); n > e.most.Load() {
		e.most.Store(n)
	}
	defer e.pages.Add(-1)
	timer := time.NewTimer(tracePatience - time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return objstore.Page{}, fmt.Errorf("%w: %w", objstore.ErrUnavailable, ctx.Err())
	}
	key := o.Prefix + "~"
	if o.StartAfter > key {
		key = o.StartAfter
	}
	return objstore.Page{Objects: []objstore.Info{{Key: key + "~"}}, Next: key + "~"}, nil
}

func (endless) Get(context.Context, string, objstore.GetOptions) ([]byte, objstore.Info, error) {
	return nil, objstore.Info{}, objstore.ErrNotFound
}

// A region that is slow takes nothing from what others have; and few traces are read at once.
func TestTraceOfASlowRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := mem.New(time.Now)
		id := identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 10}
		_, err := eu.Create(t.Context(), layout.Accepted(id), []byte("damaged"), objstore.PutOptions{})
		must(t, err)
		slow := endless{pages: new(atomic.Int64), most: new(atomic.Int64)}
		v := &identities{tracing: make(chan struct{}, maxTraces), traced: []trace.Region{{Name: "eu", Store: eu}, {Name: "us", Store: slow}}}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		var read atomic.Int64
		for i := range 2 * maxTraces {
			all.Go(func() {
				got := v.Trace(ctx, trace.Query{Identity: id, After: time.Minute})
				if ctx.Err() != nil || len(got.Unread) == 0 || got.Unread[len(got.Unread)-1].Region != "us" {
					t.Errorf("trace %d: %v, %+v", i, ctx.Err(), got.Unread)
				}
				if slices.ContainsFunc(got.Records, func(r trace.Record) bool { return r.Region == "eu" }) {
					read.Add(1)
				}
			})
		}
		all.Wait()
		// One that gets its turn as its time is over may still find what a store in memory has.
		if n := slow.most.Load(); n < 2 || n > maxTraces*3 || read.Load() < maxTraces {
			t.Errorf("%d lists at once; %d traces have what the other region has", n, read.Load())
		}
	})
}
