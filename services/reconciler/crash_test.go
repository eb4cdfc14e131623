package reconciler

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// killed is a store that is gone, for one process, from its n-th call on. The n-th
// itself takes effect when after is set, and nobody hears of it.
type killed struct {
	objstore.Store
	at    int64
	after bool
	calls atomic.Int64
}

func (k *killed) call() (do, answer bool) {
	n := k.calls.Add(1)
	return n < k.at || n == k.at && k.after, n < k.at
}

func gone(op, key string, err error) error { return &objstore.Error{Op: op, Key: key, Err: err} }

func (k *killed) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if _, ok := k.call(); !ok {
		return nil, objstore.Info{}, gone("get", key, objstore.ErrUnavailable)
	}
	return k.Store.Get(ctx, key, o)
}

func (k *killed) Head(ctx context.Context, key string) (objstore.Info, error) {
	if _, ok := k.call(); !ok {
		return objstore.Info{}, gone("head", key, objstore.ErrUnavailable)
	}
	return k.Store.Head(ctx, key)
}

func (k *killed) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if _, ok := k.call(); !ok {
		return objstore.Page{}, gone("list", o.Prefix, objstore.ErrUnavailable)
	}
	return k.Store.List(ctx, o)
}

func (k *killed) write(op, key string, fn func() (objstore.Info, error)) (objstore.Info, error) {
	do, ok := k.call()
	var i objstore.Info
	var err error
	if do {
		i, err = fn()
	}
	if !ok {
		return objstore.Info{}, gone(op, key, objstore.ErrUnknown)
	}
	return i, err
}

func (k *killed) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	return k.write("create", key, func() (objstore.Info, error) { return k.Store.Create(ctx, key, b, o) })
}

func (k *killed) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return k.write("replace", key, func() (objstore.Info, error) { return k.Store.Replace(ctx, key, b, etag, o) })
}

func (k *killed) Put(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	return k.write("put", key, func() (objstore.Info, error) { return k.Store.Put(ctx, key, b, o) })
}

func (k *killed) Delete(ctx context.Context, key string) error {
	_, err := k.write("delete", key, func() (objstore.Info, error) { return objstore.Info{}, k.Store.Delete(ctx, key) })
	return err
}

// A process that dies before or after a store call, every second one of the first 80 (internal/derived/reconcile has
// each of one pass), and its successor: the derived
// state and the ledgers are those of a process that never died.
func TestKilledAtEveryStoreCall(t *testing.T) {
	last := int64(80)
	for at := int64(1); at <= last; at += 2 {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, after %v", at, after), func(t *testing.T) {
				s := newStore()
				var ms []accept.Manifest
				for i := range uint64(6) {
					ms = append(ms, acceptBatch(t, s, batch(fmt.Sprint("agent", i%2), i/2*10, i/2*10+9)))
				}
				missing := ms[0]
				_, frame := manifest(missing.Identity)
				must(t, s.Delete(bg, missing.RawBlobKey))
				k := &killed{Store: s, at: at, after: after}
				cfg := busy()
				cfg.DrainTimeout = cfg.Ledgers.SaveInterval
				first := start(t, cfg, k)
				eventually(t, "killed", func() bool { return k.calls.Load() >= at })
				must(t, first.stop())

				create(t, s, missing.RawBlobKey, frame)
				r := start(t, busy(), s)
				eventually(t, "indexed", func() bool { return indexed(t, s, ms...) })
				eventually(t, "healed", func() bool { _, err := s.Head(bg, layout.Repair(missing.Identity)); return err != nil })
				c := r.client()
				for i := range 2 {
					eventually(t, "ledger", func() bool {
						l := r.ledgerOf(c, fmt.Sprint("agent", i))
						return l.BatchCount == 3 && l.AcceptedThrough == 29 && len(l.Overlaps) == 0
					})
				}
				// Before the stop: one that interrupts a batch's derived keys leaves the checkpoint as it is.
				for i := range 2 {
					eventually(t, "saved", func() bool { return saved(t, s, fmt.Sprint("agent", i)) == 30 })
				}
				must(t, r.stop())
				if diff := cmp.Diff(wanted(ms...), derived(t, s)); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}
