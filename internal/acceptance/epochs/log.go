package epochs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Log holds the set of an epoch, and reads what follows. For concurrent use.
type Log struct {
	store     objstore.Getter
	authority string

	reading sync.Mutex // held over requests
	mu      sync.Mutex
	set     *Set   // nil: the log is not there, or was not read
	began   uint64 // readings that have begun
	asOf    uint64 // the last one that found the end
	begun   bool   // number 0 is there
}

// NewLog makes a log that has read nothing.
func NewLog(s objstore.Getter, authority string) *Log { return &Log{store: s, authority: authority} }

// Readings is how many readings have begun.
func (l *Log) Readings() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.began
}

// Held is the set that is held, and the number of the last reading that found no further epoch; nil where there is none.
func (l *Log) Held() (*Set, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.set, l.asOf
}

// Read reads all epochs that follow the one that is held. A log that has not begun is no error. One GET finds that there is nothing new.
func (l *Log) Read(ctx context.Context) error {
	l.reading.Lock()
	defer l.reading.Unlock()
	return l.read(ctx)
}

func (l *Log) read(ctx context.Context) error {
	l.mu.Lock()
	// The number is taken before the first request, so that who sees it later knows that all requests came after.
	l.began++
	reading, set := l.began, l.set
	l.mu.Unlock()
	for {
		next := uint64(1)
		if set != nil {
			next = set.epoch + 1
		} else if last, err := l.lastWhole(ctx); err != nil {
			return err
		} else if last > 0 {
			next = last
		}
		e, names, err := l.get(ctx, next)
		if errors.Is(err, objstore.ErrNotFound) {
			break
		}
		if err != nil {
			return err
		}
		if set == nil {
			set = &Set{}
		}
		set = set.add(&e, names)
		l.mu.Lock()
		l.set = set
		l.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if set != nil {
		l.asOf = reading
	}
	return nil
}

// lastWhole finds the last multiple of WholeEvery that is there, with as many requests as its number has digits, about; 0 for none.
// Numbers have no gaps, and nothing is ever deleted.
func (l *Log) lastWhole(ctx context.Context) (uint64, error) {
	there := func(n uint64) (bool, error) {
		_, _, err := l.store.Get(ctx, layout.CondemnedEpoch(n*WholeEvery), objstore.GetOptions{Length: 1})
		if errors.Is(err, objstore.ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	}
	low, high := uint64(0), uint64(1)
	for {
		ok, err := there(high)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		low, high = high, 2*high
	}
	for low+1 < high {
		mid := (low + high) / 2
		ok, err := there(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			low = mid
		} else {
			high = mid
		}
	}
	return low * WholeEvery, nil
}

func (l *Log) get(ctx context.Context, n uint64) (Epoch, []uint64, error) {
	key := layout.CondemnedEpoch(n)
	b, _, err := l.store.Get(ctx, key, objstore.GetOptions{Limit: int64(Kind.MaxBytes)})
	if errors.Is(err, objstore.ErrNotFound) {
		return Epoch{}, nil, err
	}
	if err != nil {
		return Epoch{}, nil, fmt.Errorf("read epoch %q: %w", key, err)
	}
	e, names, err := Parse(key, b)
	if err == nil && e.AuthorityID != l.authority {
		err = Kind.Corrupt(key, "it is of the authority %q, ours is %q", e.AuthorityID, l.authority)
	}
	return e, names, err
}

// Begun reports whether the log has begun. A collection asks after its markers are there, and before it proves anything: if it has
// not begun then, its first epoch, which is written later, has those markers.
func (l *Log) Begun(ctx context.Context) (bool, error) {
	l.mu.Lock()
	begun := l.begun
	l.mu.Unlock()
	if begun {
		return true, nil
	}
	_, _, err := l.get(ctx, 0)
	if errors.Is(err, objstore.ErrNotFound) {
		return false, nil
	}
	// Whatever is there, the log has begun.
	if err != nil && !record.Opaque(err) {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = true
	return true, nil
}

// Store is what appending needs.
type Store interface {
	objstore.Getter
	objstore.Lister
	objstore.Creator
}

// Writer says who appends.
type Writer struct {
	Store Store
	By    string
	// At in Unix nanoseconds, for people.
	At int64
}

// Begin creates the record that the log has begun.
func (l *Log) Begin(ctx context.Context, w Writer) error {
	err := l.create(ctx, w, Epoch{}, nil)
	if errors.Is(err, objstore.ErrExists) {
		return nil
	}
	return err
}

// appends bounds the attempts to append against others that append too.
const appends = 16

// Name appends an epoch that names the frames, unless they are named already, and returns the last epoch: whoever holds that
// one, or a later one, knows that they are condemned. Where the log has begun and has no epoch yet, it first writes the one that has
// every marker that is there. After an error the frames may or may not be named.
func (l *Log) Name(ctx context.Context, w Writer, frames []identity.Digest) (uint64, error) {
	l.reading.Lock()
	defer l.reading.Unlock()
	names := make([]uint64, 0, len(frames))
	for _, d := range frames {
		names = append(names, nameOf(d))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var last error
	for range appends {
		// Also after a create that failed: it may have been applied.
		if err := l.read(ctx); err != nil {
			return 0, err
		}
		set, _ := l.Held()
		next := Epoch{Number: 1}
		add := names
		if set == nil {
			var err error
			if add, err = condemned(ctx, w.Store, names); err != nil {
				return 0, err
			}
		} else {
			add = slices.DeleteFunc(slices.Clone(names), func(n uint64) bool {
				_, found := slices.BinarySearch(set.names, n)
				return found
			})
			if set.everything || len(add) == 0 {
				return set.epoch, nil
			}
			next.Number = set.epoch + 1
			all := union(set.names, add)
			if next.Everything = len(all) > MaxNames; isWhole(next.Number) {
				add = all
			}
		}
		next.Everything = next.Everything || len(add) > MaxNames
		if next.Everything {
			add = nil
		}
		last = l.create(ctx, w, next, add)
		open := last == nil || errors.Is(last, objstore.ErrExists) || errors.Is(last, objstore.ErrUnknown) || errors.Is(last, objstore.ErrConflict)
		if !open || ctx.Err() != nil {
			break
		}
	}
	return 0, fmt.Errorf("name what is condemned: %w", last)
}

// condemned are the names of all markers, and those given.
func condemned(ctx context.Context, s objstore.Lister, names []uint64) ([]uint64, error) {
	out := slices.Clone(names)
	for i, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.CondemnedPrefix}) {
		if err != nil {
			return nil, fmt.Errorf("list the markers: %w", err)
		}
		// What is no marker's key condemns nothing here: hours of retention, epochs.
		d, _, err := layout.ParseCondemned(i.Key)
		if err != nil {
			continue
		}
		// The markers of a frame's generations come one after the other.
		if n := nameOf(d); len(out) == 0 || n != out[len(out)-1] {
			out = append(out, n)
		}
		if len(out) > len(names)+MaxNames {
			break // everything is named
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (l *Log) create(ctx context.Context, w Writer, e Epoch, names []uint64) error {
	e.AuthorityID, e.By, e.At, e.Whole = l.authority, w.By, w.At, isWhole(e.Number)
	e.set(names)
	body := e.Marshal()
	if _, _, err := Parse(e.Key(), body); err != nil {
		return err
	}
	_, err := w.Store.Create(ctx, e.Key(), body, objstore.PutOptions{ContentType: "application/json"})
	return err
}
