package spread

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/vfstest"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

// hanging is a place that says who it is, and then nothing more.
type hanging struct{ place.Place }

func (hanging) Local() bool { return false }

func (hanging) Recover(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestBucketsThatHangBoundAStart: a bucket that stops answering behind its identity keeps a start for a bounded time, however many do,
// and keeps none of the others out.
func TestBucketsThatHangBoundAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := crashfs.New()
		slots := []Slot{}
		for _, n := range []string{"main", "near", "hangs1", "hangs2", "hangs3", "far"} {
			if err := fs.Mkdir(n); err != nil {
				t.Fatal(err)
			}
			if n == "main" {
				continue
			}
			slots = append(slots, Slot{Name: n, Local: n == "near", Open: func(context.Context) (place.Place, error) {
				d, err := place.OpenDirectory(n, vfstest.Sub(fs, n), nil)
				if err != nil || n == "near" || n == "far" {
					return d, err
				}
				return hanging{d}, nil
			}})
		}
		began := time.Now()
		s, err := Open(t.Context(), Options{FS: vfstest.Sub(fs, "main"), Slots: slots, AckCopies: 1})
		if err == nil {
			err = s.Recover()
		}
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != joinTime {
			t.Errorf("the start took %s", took)
		}
		for _, p := range s.Stats(t.Context()).Places {
			hangs := p.Name != "near" && p.Name != "far"
			if hangs != errors.Is(p.Err, place.ErrOut) || !hangs && p.Err != nil {
				t.Errorf("%s: %v", p.Name, p.Err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
