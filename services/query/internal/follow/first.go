package follow

import (
	"context"
	"errors"
	"math"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// firsts knows when the samples of each boot begin, by the manifest of its first batch. What lies before all of
// them was never written, so no answer lacks it.
type firsts struct {
	mu       sync.Mutex
	earliest int64                    // Unix nanoseconds
	at       map[identity.Boot]uint64 // first sequence number whose manifest was read
}

func newFirsts() *firsts {
	return &firsts{earliest: math.MaxInt64, at: map[identity.Boot]uint64{}}
}

// note records the time of a batch's oldest sample.
func (f *firsts) note(id identity.Batch, minNS int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.earliest = min(f.earliest, minNS)
	if seq, ok := f.at[id.BootOf()]; !ok || id.SeqStart < seq {
		f.at[id.BootOf()] = id.SeqStart
	}
}

// knows reports that no batch before this one has to be read for its boot.
func (f *firsts) knows(id identity.Batch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	seq, ok := f.at[id.BootOf()]
	return ok && seq <= id.SeqStart
}

func (f *firsts) time() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.earliest
}

// readFirst reads the manifest of a boot's first batch, once. If it can't be read, its samples may have had any
// time.
func (f *Follower) readFirst(ctx context.Context, id identity.Batch) error {
	if f.firsts.knows(id) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.FetchTimeout)
	defer cancel()
	m, err := f.manifest(ctx, layout.Accepted(id), id, nil)
	var bad *unreadable
	if errors.As(err, &bad) {
		// The earliest possible time, so that no answer takes the missing samples for never written.
		m.MinTime, err = minInt64, nil
	}
	if err == nil {
		f.firsts.note(id, m.MinTime)
	}
	return err
}
