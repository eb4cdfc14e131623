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

// Index answers whether a frame was removed on purpose. It reads each log once. Consecutive
// batches of equal size of one boot take the memory of one. Safe for concurrent use.
type Index struct {
	store     objstore.Reader
	authority string // "" reads the logs of every authority

	started atomic.Uint64 // scans that were started

	mu      sync.Mutex
	scanned uint64 // the number of the last scan that was finished
	read    map[string]bool
	boots   map[identity.Boot][]run
	bad     []Unread
}

// Unread is a log that can't be read. The frames that it names count as missing.
type Unread struct {
	Key string
	Err error
}

// NewIndex makes an empty index; it makes no request.
func NewIndex(r objstore.Reader, authority string) *Index {
	return &Index{store: r, authority: authority, read: map[string]bool{}, boots: map[identity.Boot][]run{}}
}

// Removed reports whether a log names the accepted batch. A log is written before its
// frames are deleted, so call it after the frame was found missing. If no log read so far
// names the batch, the logs are listed again; one scan serves all calls that wait for it. An
// error means that the store did not answer.
func (x *Index) Removed(ctx context.Context, id identity.Batch) (bool, error) {
	before := x.started.Load()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.covers(id) {
		return true, nil
	}
	if x.scanned > before { // that scan started after this call did
		return false, nil
	}
	n := x.started.Add(1)
	if err := x.scan(ctx); err != nil {
		return false, fmt.Errorf("logs of removed frames: %w", err)
	}
	x.scanned = n
	return x.covers(id), nil
}

// Scan reads the logs that were written since the last scan.
func (x *Index) Scan(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.scan(ctx); err != nil {
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

// Unread lists the logs that could not be read so far.
func (x *Index) Unread() []Unread {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.bad)
}

// scan reads the logs that are not read yet. The caller holds mu, so that calls which wait for it share one scan.
func (x *Index) scan(ctx context.Context) error {
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
			// Read again it would be no better; so it is marked as read like the others, or each
			// question about a missing frame would fetch it again.
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

// run stands for consecutive batches of equal size, from the sequence number start.
type run struct{ start, records, batches uint64 }

func (r run) end() uint64 { return r.start + r.records*r.batches - 1 }

// position returns how many batches of the run are ordered before id, by first number and then
// by last, and whether the next one is id.
func (r run) position(id identity.Batch) (n uint64, is bool) {
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

// findRun returns the index of the last run that starts at or before the batch, or -1 when there
// is none. runs are sorted by their batches and do not interleave.
func findRun(runs []run, id identity.Batch) int {
	i, _ := slices.BinarySearchFunc(runs, id, func(r run, id identity.Batch) int {
		if n, is := r.position(id); n == 0 && !is {
			return 1
		}
		return -1
	})
	return i - 1
}

func (x *Index) covers(id identity.Batch) bool {
	runs := x.boots[id.BootOf()]
	i := findRun(runs, id)
	if i < 0 {
		return false
	}
	_, is := runs[i].position(id)
	return is
}

func (x *Index) add(id identity.Batch) {
	runs := x.boots[id.BootOf()]
	i := findRun(runs, id)
	if i >= 0 {
		r := &runs[i]
		n, is := r.position(id)
		switch {
		case is:
			return
		case n < r.batches: // id lies between two batches of the run: split it there, so that runs stay sorted
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
