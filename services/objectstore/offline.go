package objectstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/mirror"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// Verified is the result of a check.
type Verified = engine.Verified

// Repaired is the result of a repair.
type Repaired = engine.Repaired

// ErrLocked: a process has the directory open.
var ErrLocked = vfs.ErrLocked

// Check reads everything in the directory of a store that is not running, and on its places. It
// changes nothing. Of the settings it needs Dir and Places.
func Check(ctx context.Context, c Config, log *slog.Logger) (v Verified, err error) {
	opt, end, err := c.offline(ctx, log, true)
	if err != nil {
		return v, fmt.Errorf("check: %w", err)
	}
	defer func() { err = errors.Join(err, end()) }()
	v, err = engine.Check(ctx, opt)
	if err != nil {
		return v, fmt.Errorf("check: %w", err)
	}
	return v, nil
}

// Repair moves what is damaged out of the directory and the places of a store that is not running.
// No byte is deleted: damaged files go to quarantine/ in the directory, and on the places. Of the
// settings it needs Dir, Mirrors (a store on several drives needs all their directories) and Places.
func Repair(ctx context.Context, c Config, log *slog.Logger) (r Repaired, err error) {
	opt, end, err := c.offline(ctx, log, false)
	if err != nil {
		return r, fmt.Errorf("repair: %w", err)
	}
	defer func() { err = errors.Join(err, end()) }()
	eng, err := engine.Open(opt)
	if err != nil {
		return r, fmt.Errorf("repair: %w", err)
	}
	// The committer must run until Repair has returned, also when ctx ends in between.
	rctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- eng.Run(rctx) }()
	r, err = eng.Repair(ctx)
	stop()
	if err = errors.Join(err, <-ended, eng.Close()); err != nil {
		return r, fmt.Errorf("repair: %w", err)
	}
	return r, nil
}

// offline opens the drives and the places of a store that is not running. All places must be there: what is on one that
// is out would be taken for lost. A check reads one drive, as it is.
func (c Config) offline(ctx context.Context, log *slog.Logger, readOnly bool) (opt engine.Options, end func() error, err error) {
	opt, end = engine.Options{Dir: c.Dir, Log: log}, func() error { return nil }
	several := len(c.Mirrors) > 0
	for _, dir := range append([]string{c.Dir}, c.Mirrors...) {
		if err := isStore(dir); err != nil {
			return opt, end, err
		}
		member, err := isMember(dir)
		if err != nil {
			return opt, end, err
		}
		several = several || member
	}
	if several && !readOnly {
		m, err := openMirror(append([]string{c.Dir}, c.Mirrors...), &opt, func(*mirror.Options) {})
		if err != nil {
			return opt, end, err
		}
		end = m.Close
	}
	if c.AckCopies < 1 {
		c.AckCopies = 1
	}
	s, err := c.openPlaces(ctx, opt.FS, log, nil, readOnly, nil, nil)
	if err != nil || s == nil {
		return opt, end, closeAfter(err, end)
	}
	drives := end
	opt.Bodies, end = s, func() error { return errors.Join(s.Close(), drives()) }
	s.Retry(ctx)
	if err := s.AllThere(); err != nil {
		return opt, end, closeAfter(err, end)
	}
	return opt, end, nil
}

// closeAfter closes what was opened before a failure.
func closeAfter(err error, end func() error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, end())
}

// ReplacePlace says that the drive of a place was replaced by a blank one; the store must not be
// running. The next start uses the new drive, and what the old one had is made again. A store on several drives needs the
// directories of as many of them as its start does: on one alone the next start might not read it.
func ReplacePlace(name string, dirs ...string) (err error) {
	members := 0
	for _, dir := range dirs {
		member, err := isMember(dir)
		if err != nil {
			return err
		}
		if member {
			members++
		}
	}
	if members > 0 {
		opt := engine.Options{}
		m, err := openMirror(dirs, &opt, func(*mirror.Options) {})
		if err != nil {
			return fmt.Errorf("replace place %s: %w", name, err)
		}
		return errors.Join(spread.Replace(m, name), m.Close())
	}
	if len(dirs) != 1 {
		return fmt.Errorf("replace place %s: none of the %d directories is of a store on several drives", name, len(dirs))
	}
	dir := dirs[0]
	if err := isStore(dir); err != nil {
		return err
	}
	lock, err := vfs.Dir(dir).Lock("LOCK")
	if err != nil {
		return fmt.Errorf("replace place %s: %w", name, err)
	}
	return errors.Join(spread.Replace(vfs.Dir(dir), name), lock.Close())
}

// isStore refuses a directory that holds no store: opening it would create one.
func isStore(dir string) error {
	if st, err := os.Stat(filepath.Join(dir, "log")); err != nil || !st.IsDir() {
		return fmt.Errorf("%s is not the directory of an object store: it has no log/", dir)
	}
	return nil
}

// Member is what a drive of a store on several ones says about itself.
type Member = mirror.Inspected

// Members reads what the drives in the directories of a store that is not running know of each other. Nothing is changed.
func Members(dirs ...string) ([]Member, error) {
	list, err := mirror.Inspect(asDrives(dirs))
	if err != nil {
		return list, fmt.Errorf("drives: %w", err)
	}
	return list, nil
}

// GoOn makes the drives in the directories the whole store, although too few of those are there that were in sync: what
// only the missing ones have is given up. The others count as out of sync when they return.
func GoOn(log *slog.Logger, dirs ...string) error {
	m, err := openMirror(dirs, &engine.Options{Log: log}, func(o *mirror.Options) { o.Force = true })
	if err != nil {
		return fmt.Errorf("go on with fewer drives: %w", err)
	}
	return m.Close()
}

func asDrives(dirs []string) (list []mirror.Drive) {
	for _, d := range dirs {
		list = append(list, mirror.Drive{Name: d, FS: vfs.Dir(d)})
	}
	return list
}
