package follow

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// meeting lets nobody read segments until so many do at once.
type meeting struct {
	*world
	mu   sync.Mutex
	want int
	all  chan struct{}
}

func (m *meeting) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if strings.HasPrefix(key, "journal/v1/run=") {
		m.mu.Lock()
		all := m.all
		if m.want--; m.want == 0 {
			close(all)
		}
		m.mu.Unlock()
		select {
		case <-all:
		case <-ctx.Done():
			return nil, objstore.Info{}, ctx.Err()
		}
	}
	return m.world.Get(ctx, key, o)
}

// TestHintsAreFollowedSideBySide: hints at the runs of many collectors, which come one after the other over one watch, are
// read at once: else a store that takes 30 ms a request would give 33 segments a second.
func TestHintsAreFollowedSideBySide(t *testing.T) {
	const runs = 8
	w := newWorld(t, 1, time.Time{})
	w.cfg.PollInterval, w.cfg.IdleInterval, w.cfg.Readers = time.Hour, time.Hour, runs
	w.restart()
	var writers []*journal.Writer
	accept := func(wr *journal.Writer) *batch {
		w.writers[0], w.writers[1] = wr, wr
		return w.accept(false)
	}
	for i := range runs {
		writers = append(writers, w.writer(fmt.Sprint("c", i)))
		accept(writers[i]) // segment 0
	}
	w.must(w.follow.CatchUp(t.Context()))
	open := make(chan struct{})
	close(open)
	m := &meeting{world: w, all: open}
	w.follow.journal = nil // opened again, over the store in which readers meet
	w.follow.d.Store = m
	w.must(w.follow.CatchUp(t.Context()))
	var last []*batch
	for _, wr := range writers {
		last = append(last, accept(wr))
	}
	for _, b := range last {
		w.follow.hint(b.token)
	}
	m.want, m.all = runs, make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.follow.hintLoop(ctx) // until cancel
	}()
	defer func() { cancel(); <-ended }()
	select {
	case <-m.all:
	case <-ctx.Done():
		t.Fatal("hints are followed one after the other")
	}
	for _, b := range last {
		for !w.follow.journal.Has(b.token) {
			if ctx.Err() != nil {
				t.Fatal("a hint was not followed")
			}
			time.Sleep(time.Millisecond)
		}
	}
}
