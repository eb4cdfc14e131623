package reconcile

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
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

// What a newer release wrote is not replaced.
func TestRecordsOfANewerRelease(t *testing.T) {
	newer := func(b []byte) []byte { return bytes.Replace(b, []byte(`.v1"`), []byte(`.v2"`), 1) }
	s := newStore()
	put := func(t *testing.T, s objstore.Store, key string, b []byte) {
		t.Helper()
		must(t, s.Delete(ctx, key))
		put(t, s, key, b)
	}
	body := newer(MarshalCheckpoint(5))
	put(t, s, layout.CheckpointKey, body)
	if _, err := newCore(s).ReadCheckpoint(ctx); !errors.Is(err, record.ErrNewerVersion) {
		t.Error(err)
	}
	if _, err := newCore(s).AdvanceCheckpoint(ctx, 9); !errors.Is(err, record.ErrNewerVersion) {
		t.Error(err)
	}
	if got, _, err := s.Get(ctx, layout.CheckpointKey, objstore.GetOptions{}); err != nil || !bytes.Equal(got, body) {
		t.Errorf("%s, %v", got, err)
	}

	m := acceptBatch(t, s, batch(0, 9))
	key := layout.Accepted(m.Identity)
	put(t, s, key, newer(m.Marshal()))
	res, err := newCore(s).Reconcile(ctx, key, Options{})
	if err != nil || res.Cause != CauseNewer || !res.Opened || len(res.Created) > 0 {
		t.Errorf("%+v, %v", res, err)
	}
	repair, _, err := s.Get(ctx, layout.Repair(m.Identity), objstore.GetOptions{})
	must(t, err)
	put(t, s, layout.Repair(m.Identity), newer(repair))
	if _, err := newCore(s).Reconcile(ctx, key, Options{}); err != nil {
		t.Error(err)
	}
	if got, _, err := s.Get(ctx, layout.Repair(m.Identity), objstore.GetOptions{}); err != nil || !bytes.Equal(got, newer(repair)) {
		t.Errorf("a newer repair record became %s, %v", got, err)
	}
	put(t, s, key, m.Marshal()) // as a newer reconciler reads it
	if res, err := newCore(s).Reconcile(ctx, key, Options{Recheck: true}); err != nil || res.Cause != "" || !res.Healed || len(res.Created) != 3 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestCorruptCheckpoint(t *testing.T) {
	for _, body := range []string{"", "{}", `{"schema":"lightmetrics.reconcile_checkpoint.v1","scanned_through_unix_ns":-4}`} {
		s := newStore()
		put(t, s, layout.CheckpointKey, []byte(body))
		r := newCore(s)
		if _, err := r.ReadCheckpoint(ctx); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%q: %v", body, err)
		}
		if got, err := r.AdvanceCheckpoint(ctx, 3); err != nil || got != 3 {
			t.Errorf("%q: %d %v", body, got, err)
		}
	}
}
