package mirror

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// Options of an FS.
type Options struct {
	Drives []Drive // 1 to MaxDrives; the order is that of the settings
	Log    *slog.Logger
	// Reconcile makes equal what a crash may have left different on drives that are in sync, before anything is
	// read. It gives an error for each drive that lacks what was acknowledged. It is given as many file systems as errors
	// are expected; nil: nothing is ever different.
	Reconcile func(drives []vfs.FS) (behind []error, err error)
	// DropIndex removes the index on a drive, which is to get a new one. slot counts in Drives; nil: there is none.
	DropIndex func(slot int) error
	// Force opens from fewer drives than a start needs: what only the missing ones have is given up.
	Force bool
	// Failed are the names of drives that are not to be used, with the reason: they failed earlier in this process.
	Failed map[string]error
	// Rate bounds the copying to a drive that comes back, bytes a second; 0: no bound.
	Rate int64
	// Retry is the time between two looks for drives that are missing, or that could not be brought in; default a minute.
	Retry time.Duration
}

// Errors of Open.
var (
	// ErrMixed means that the drives are of different stores, or one of them is there twice.
	ErrMixed = errors.New("the drives do not belong together")
	// ErrFound means that a new store cannot be made of these drives.
	ErrFound = errors.New("no store is on these drives, and none can be made")
)

// Open opens the drives of a store, or founds one on drives that are empty. It takes a lock on each, decides from their
// records which of them have everything, makes those equal, and makes durable that the store goes on with them.
// Drives that are out get what they lack by Run.
func Open(opt Options) (_ *FS, err error) {
	if n := len(opt.Drives); n < 1 || n > MaxDrives {
		return nil, fmt.Errorf("open the drives: %d of them, want 1 to %d", n, MaxDrives)
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Retry <= 0 {
		opt.Retry = time.Minute
	}
	f := &FS{opt: opt, log: opt.Log, lost: make(chan struct{}), open: map[*File]bool{}}
	for i, d := range opt.Drives {
		f.drives = append(f.drives, &drive{Drive: d, slot: i, jobs: make(chan *order), state: Missing})
	}
	defer func() {
		if err != nil {
			_ = f.unlock()
			err = fmt.Errorf("open the drives: %w", err)
		}
	}()
	read, err := f.inspect()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(read, func(r Record) bool { return len(r.InSync) > 0 }) {
		return f, f.found()
	}
	return f, f.resume(read)
}

// inspect locks every drive that can be reached and gives the records that are there.
func (f *FS) inspect() (read []Record, err error) {
	for _, d := range f.drives {
		if why, ok := f.opt.Failed[d.Name]; ok {
			d.state, d.cause = Failed, why
			continue
		}
		r, there, err := d.inspect()
		switch {
		case errors.Is(err, vfs.ErrLocked):
			return nil, err
		case err != nil:
			d.cause = err
			f.log.Warn("a drive cannot be used", "drive", d.Name, "state", d.state, "error", err)
		case there:
			read = append(read, r)
		}
	}
	return read, f.belong(read)
}

// inspect locks a drive and reads its record. Without one the drive must be empty.
func (d *drive) inspect() (r Record, there bool, err error) {
	d.state = Missing
	if d.lock == nil {
		if d.lock, err = d.FS.Lock(lockName); err != nil {
			return r, false, fmt.Errorf("lock %s: %w", d.Name, err)
		}
	}
	r, err = readRecord(d.FS)
	switch {
	case err == nil:
		d.id, d.state, d.cause = r.Drive, Waiting, nil
		return r, true, nil
	case errors.Is(err, errRecord):
		d.state = Refused
		return r, false, fmt.Errorf("%s: %w", d.Name, err)
	case !errors.Is(err, fs.ErrNotExist):
		return r, false, fmt.Errorf("read the record of %s: %w", d.Name, err)
	}
	d.id, d.state, d.cause = "", Waiting, errEmpty
	return r, false, nil
}

// errEmpty is why a drive without a record is not in sync.
var errEmpty = errors.New("it is new")

// belong checks that the records are of one store, and of different drives.
func (f *FS) belong(read []Record) error {
	var store ID
	seen := map[ID]bool{}
	for _, r := range read {
		if seen[r.Drive] {
			return fmt.Errorf("%w: drive %s is there twice: one is a copy of the other", ErrMixed, r.Drive)
		}
		seen[r.Drive] = true
		if len(r.InSync) == 0 {
			continue // of a store that was not made whole
		}
		if store != "" && r.Store != store {
			return fmt.Errorf("%w: drive %s is of store %s, others are of %s", ErrMixed, r.Drive, r.Store, store)
		}
		store = r.Store
	}
	f.store = store
	return nil
}

// found makes a store: on empty drives, or of the data that the first one has.
func (f *FS) found() error {
	f.store = newID()
	full := false
	for _, d := range f.drives {
		if d.state != Waiting {
			return fmt.Errorf("%w: all of them must be there, and %s is not: %w", ErrFound, d.Name, d.cause)
		}
		empty, err := blank(d.FS)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrFound, d.Name, err)
		}
		if !empty && d.slot > 0 {
			return fmt.Errorf("%w: %s is not empty", ErrFound, d.Name)
		}
		full = full || !empty
	}
	var ids []ID
	for _, d := range f.drives {
		if d.id == "" {
			d.id = newID()
		}
		// Every drive has its identity before one has the set: an interrupted founding can be resumed from any of them.
		if err := d.keep(Record{Store: f.store}); err != nil {
			return fmt.Errorf("%w: %w", ErrFound, err)
		}
		if d.slot == 0 || !full {
			ids = append(ids, d.id)
		}
	}
	f.m = Found(f.store, ids...)
	index := ids[0]
	for _, d := range f.drives[:len(ids)] {
		d.state = Synced
	}
	f.log.Info("the store keeps its log on several drives", "store", f.store, "drives", len(f.drives))
	return f.take(index)
}

// resume opens a store from the drives that have everything.
func (f *FS) resume(read []Record) error {
	begin := Begin
	if f.opt.Force {
		begin = Force
	}
	// An identity of a store that was not made whole counts only where the set names it.
	newest := slices.MaxFunc(read, func(a, b Record) int {
		switch {
		case a.At.less(b.At):
			return -1
		case b.At.less(a.At):
			return 1
		}
		return 0
	})
	read = slices.DeleteFunc(read, func(r Record) bool {
		return len(r.InSync) == 0 && !(r.Store == newest.Store && slices.Contains(newest.InSync, r.Drive))
	})
	m, opinions, err := begin(read)
	if err != nil {
		return f.named(err)
	}
	f.m = m
	for _, d := range f.drives {
		o, ok := opinions[d.id]
		if !ok || d.state != Waiting {
			continue
		}
		if o == InSync {
			d.state = Synced
			continue
		}
		d.cause = fmt.Errorf("it is %s", o)
		f.log.Warn("a drive lacks writes, and gets them", "drive", d.Name, "reason", d.cause)
	}
	if err := f.m.Promised(f.spread(f.m.Promise())); err != nil {
		return f.named(err)
	}
	if err := f.reconcile(); err != nil {
		return err
	}
	return f.take(f.m.Now().Index)
}

// named puts the names of drives into an error that has their ids.
func (f *FS) named(err error) error {
	text := err.Error()
	for _, d := range f.drives {
		if d.id != "" {
			text = strings.ReplaceAll(text, string(d.id), string(d.id)+" ("+d.Name+")")
		}
	}
	var away []string
	for _, d := range f.drives {
		if d.state == Missing || d.state == Refused {
			away = append(away, fmt.Sprintf("%s: %v", d.Name, d.cause))
		}
	}
	if len(away) > 0 {
		text += "; " + strings.Join(away, "; ")
	}
	return &namedError{text, err}
}

type namedError struct {
	text string
	err  error
}

func (e *namedError) Error() string { return e.text }
func (e *namedError) Unwrap() error { return e.err }

// synced gives the drives that have everything.
func (f *FS) synced() (list []*drive) {
	for _, d := range f.drives {
		if d.state == Synced {
			list = append(list, d)
		}
	}
	return list
}

// reconcile makes the drives in sync equal, and takes those out that lack what was acknowledged.
func (f *FS) reconcile() error {
	list := f.synced()
	if f.opt.Reconcile == nil || len(list) < 2 {
		return nil
	}
	members := make([]vfs.FS, len(list))
	for i, d := range list {
		members[i] = d.FS
	}
	behind, err := f.opt.Reconcile(members)
	if err != nil {
		return fmt.Errorf("make the drives equal: %w", err)
	}
	for i, err := range behind {
		if err != nil {
			list[i].state, list[i].cause = Waiting, err
			f.log.Error("a drive lacks what was acknowledged, and gets it", "drive", list[i].Name, "reason", err)
		}
	}
	return nil
}

// take makes durable that this process goes on with the drives that are in sync, and begins.
func (f *FS) take(index ID) error {
	members := f.synced()
	if len(members) == 0 {
		return f.named(fmt.Errorf("%w: none is left", ErrMajority))
	}
	if !slices.ContainsFunc(members, func(d *drive) bool { return d.id == index }) {
		index = members[0].id
	}
	// An index that was left on a drive is of an earlier state of the log. It must be gone before the record names it.
	// The index of a directory that becomes the first drive of a store is of this log.
	if now := f.m.Now(); f.opt.DropIndex != nil && index != now.Index && now.At != (Number{}) {
		at := slices.IndexFunc(members, func(d *drive) bool { return d.id == index })
		if err := f.opt.DropIndex(members[at].slot); err != nil {
			return fmt.Errorf("remove the old index on %s: %w", members[at].Name, err)
		}
	}
	r := f.m.Renew(index)
	if err := f.m.Settle(r, f.spread(r)); err != nil {
		return f.named(err)
	}
	if err := f.shed(); err != nil {
		return f.named(err)
	}
	f.view.Store(&view{f.synced()})
	return nil
}

// spread writes a record to all drives in sync; those that do not take it have failed.
func (f *FS) spread(r Record) (written []ID) {
	for _, d := range f.synced() {
		if err := d.keep(r); err != nil {
			d.state, d.cause = Failed, err
			f.log.Error("a drive has failed, and is put out", "drive", d.Name, "error", err)
			continue
		}
		written = append(written, d.id)
	}
	return written
}

// shed takes out, one by one, the drives that the membership counts and that are not in sync any more. With the drive of the index
// the index is lost, whatever showed that the drive has failed.
func (f *FS) shed() error {
	was := f.m.Now().Index
	defer func() {
		if was != "" && f.m.Now().Index == "" {
			close(f.lost)
		}
	}()
	for {
		set := f.m.InSync()
		at := slices.IndexFunc(set, func(id ID) bool {
			return !slices.ContainsFunc(f.drives, func(d *drive) bool { return d.id == id && d.state == Synced })
		})
		if at < 0 {
			return nil
		}
		r := f.m.Drop(set[at])
		if err := f.m.Settle(r, f.spread(r)); err != nil {
			return err
		}
	}
}

// failure of a drive.
type failure struct {
	drive *drive
	cause error
}

// expel puts drives out, and returns when that is durable. From then on nothing is written to them. With an error
// nothing may be acknowledged any more.
func (f *FS) expel(list []failure) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := false
	for _, x := range list {
		if x.drive.state == Synced {
			x.drive.state, x.drive.cause = Failed, x.cause
			changed = true
			f.log.Error("a drive has failed, and is put out", "drive", x.drive.Name, "error", x.cause)
		}
	}
	if err := f.Err(); err != nil || !changed {
		return err
	}
	if err := f.shed(); err != nil {
		err = f.named(err)
		f.halted.CompareAndSwap(nil, &err)
		f.log.Error("nothing is written any more until the next start", "error", err)
		return err
	}
	f.view.Store(&view{f.synced()})
	return nil
}

// IndexLost is closed when the drive with the index was put out. The store must be opened again to get another.
func (f *FS) IndexLost() <-chan struct{} { return f.lost }

// IndexSlot gives which of Options.Drives has the index.
func (f *FS) IndexSlot() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.drives {
		if d.id == f.m.Now().Index {
			return d.slot
		}
	}
	return 0
}

func (f *FS) unlock() error {
	var errs []error
	for _, d := range f.drives {
		if d.lock != nil {
			errs = append(errs, d.lock.Close())
			d.lock = nil
		}
	}
	return errors.Join(errs...)
}

// Close lets go of the drives. No call may be under way, and Run must have returned.
func (f *FS) Close() error {
	for _, d := range f.drives {
		close(d.jobs)
	}
	return f.unlock()
}
