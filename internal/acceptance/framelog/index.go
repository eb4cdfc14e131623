package framelog

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Index answers whether a frame was removed on purpose. It reads each log once; a boot's
// batches of equal size, one behind the other, cost the same however many they are. Safe
// for concurrent use.
type Index struct {
	store     objstore.Reader
	authority string // "" takes every authority's

	begun atomic.Uint64 // looks that were begun

	mu     sync.Mutex
	looked uint64 // the number of the last look that was finished
	read   map[string]bool
	boots  map[identity.Boot][]run
	bad    []Unread
}

// Unread is a log that can't be read. What it names counts as missing.
type Unread struct {
	Key string
	Err error
}

// NewIndex makes one that knows nothing; it makes no request.
func NewIndex(r objstore.Reader, authority string) *Index {
	return &Index{store: r, authority: authority, read: map[string]bool{}, boots: map[identity.Boot][]run{}}
}

// Removed reports whether a log names the accepted batch. A log is written before its
// frames go: so ask after the frame was found missing. Where no log that is known names
// it, the logs are listed again; one look serves all that ask meanwhile. An error is a
// store that could not be asked.
func (x *Index) Removed(ctx context.Context, id identity.Batch) (bool, error) {
	before := x.begun.Load()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.covers(id) {
		return true, nil
	}
	if x.looked > before { // it began after this question
		return false, nil
	}
	n := x.begun.Add(1)
	if err := x.look(ctx); err != nil {
		return false, fmt.Errorf("logs of removed frames: %w", err)
	}
	x.looked = n
	return x.covers(id), nil
}

// Look reads the logs that came since the last look.
func (x *Index) Scan(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.look(ctx); err != nil {
		return fmt.Errorf("logs of removed frames: %w", err)
	}
	return nil
}

// Names reports whether a log that was read names the accepted batch.
func (x *Index) Names(id identity.Batch) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.covers(id)
}

// Unread are the logs that could not be read so far.
func (x *Index) Unread() []Unread {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.bad)
}

// look reads the logs that came since.
func (x *Index) look(ctx context.Context) error {
	for i, err := range objstore.List(ctx, x.store, objstore.ListOptions{Prefix: layout.FrameLogsPrefix}) {
		if err != nil {
			return err
		}
		if x.read[i.Key] {
			continue
		}
		l, _, err := record.Read(ctx, x.store, i.Key, Kind, Parse)
		switch {
		case record.Opaque(err):
			x.bad = append(x.bad, Unread{i.Key, err})
		case err != nil:
			return err
		case x.authority == "" || l.AuthorityID == x.authority:
			for _, f := range l.Frames {
				x.add(f.Identity)
			}
		}
		x.read[i.Key] = true
	}
	return nil
}

// run is batches of equal size, one behind the other, from the sequence number start.
type run struct{ start, records, batches uint64 }

func (r run) end() uint64 { return r.start + r.records*r.batches - 1 }

// below is how many batches of the run come before the batch, in the order of their
// ranges, and whether the next one is it.
func (r run) below(id identity.Batch) (n uint64, is bool) {
	if id.SeqStart < r.start {
		return 0, false
	}
	off := id.SeqStart - r.start
	n = off / r.records
	switch {
	case n >= r.batches:
		return r.batches, false
	case off%r.records != 0: // it starts within batch n
		return n + 1, false
	case id.Count() == r.records:
		return n, true
	case id.Count() < r.records:
		return n, false
	}
	return n + 1, false
}

// at is the run that the batch is in, or behind the start of: -1 when there is none.
// Runs are in the order of their batches.
func at(runs []run, id identity.Batch) int {
	i, _ := slices.BinarySearchFunc(runs, id, func(r run, id identity.Batch) int {
		if n, is := r.below(id); n == 0 && !is {
			return 1
		}
		return -1
	})
	return i - 1
}

func (x *Index) covers(id identity.Batch) bool {
	runs := x.boots[id.BootOf()]
	i := at(runs, id)
	if i < 0 {
		return false
	}
	_, is := runs[i].below(id)
	return is
}

func (x *Index) add(id identity.Batch) {
	runs := x.boots[id.BootOf()]
	i := at(runs, id)
	if i >= 0 {
		r := &runs[i]
		n, is := r.below(id)
		switch {
		case is:
			return
		case n < r.batches: // it overlaps: the run is cut, so that the order stays
			rest := run{r.start + n*r.records, r.records, r.batches - n}
			r.batches = n
			runs = slices.Insert(runs, i+1, rest)
		case r.records == id.Count() && r.end()+1 == id.SeqStart && id.SeqStart != 0:
			r.batches++
			return
		}
	}
	x.boots[id.BootOf()] = slices.Insert(runs, i+1, run{id.SeqStart, id.Count(), 1})
}
