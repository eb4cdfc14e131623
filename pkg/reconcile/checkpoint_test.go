package reconcile

import (
	"context"
	"errors"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

func TestCheckpointOnlyForward(t *testing.T) {
	s := newStore()
	r := newCore(s)
	for _, c := range []struct{ to, want int64 }{{10, 10}, {5, 10}, {11, 11}, {11, 11}, {0, 11}} {
		got, err := r.AdvanceCheckpoint(ctx, c.to)
		must(t, err)
		if read, err := r.ReadCheckpoint(ctx); err != nil || got != c.want || read != c.want {
			t.Errorf("advance to %d: %d, reads %d, want %d (%v)", c.to, got, read, c.want, err)
		}
	}
}

func TestCheckpointRace(t *testing.T) {
	s := newStore()
	var wg sync.WaitGroup
	const racers, steps = 4, 50
	for i := range int64(racers) {
		wg.Go(func() {
			r := newCore(s)
			seen := int64(0)
			for n := range int64(steps) {
				got, err := r.AdvanceCheckpoint(context.Background(), n*racers+i)
				switch {
				case errors.Is(err, objstore.ErrConflict): // lost too often: somebody else moved it
				case err != nil:
					t.Error(err)
				case got < seen || got < n*racers+i:
					t.Errorf("went back from %d to %d", seen, got)
				}
				seen = max(seen, got)
			}
		})
	}
	wg.Wait()
	got, err := newCore(s).AdvanceCheckpoint(ctx, racers*steps)
	if err != nil || got != racers*steps {
		t.Errorf("%d %v", got, err)
	}
}

// A slower reconciler that read an older checkpoint can't move it back.
func TestCheckpointLostRace(t *testing.T) {
	s := newStore()
	_, err := newCore(s).AdvanceCheckpoint(ctx, 10)
	must(t, err)
	slow := newCore(&overtaken{Store: s, by: func() {
		_, err := newCore(s).AdvanceCheckpoint(ctx, 100)
		must(t, err)
	}})
	got, err := slow.AdvanceCheckpoint(ctx, 20)
	if err != nil || got != 100 {
		t.Errorf("%d %v, want 100", got, err)
	}
}

// overtaken runs by once, between the read and the write.
type overtaken struct {
	objstore.Store
	by func()
}

func (o *overtaken) Replace(ctx context.Context, key string, b []byte, etag string, p objstore.PutOptions) (objstore.Info, error) {
	if o.by != nil {
		o.by()
		o.by = nil
	}
	return o.Store.Replace(ctx, key, b, etag, p)
}

func TestCorruptCheckpoint(t *testing.T) {
	for _, body := range []string{"", "{}", `{"schema":"lightmetrics.reconcile_checkpoint.v1","scanned_through_unix_ns":-4}`} {
		s := newStore()
		put(t, s, layout.CheckpointKey, []byte(body))
		r := newCore(s)
		if _, err := r.ReadCheckpoint(ctx); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%q: %v", body, err)
		}
		if got, err := r.AdvanceCheckpoint(ctx, 3); err != nil || got != 3 {
			t.Errorf("%q: %d %v", body, got, err)
		}
	}
}
