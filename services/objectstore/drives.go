package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/mirror"
)

// drives are the directories that keep the store, where there are several.
type drives struct {
	mirror atomic.Pointer[mirror.FS]
	// failed are those that failed in this process, with the reason. They are not tried again before the next one.
	failed map[string]error

	mended, otherReads          atomic.Int64 // of file systems that were closed
	scrubbed, different, beyond atomic.Int64
	scrubs                      atomic.Int64
}

func checkMirrors(c Config) (errs []error) {
	if len(c.Mirrors) >= mirror.MaxDrives {
		errs = append(errs, fmt.Errorf("mirrors: %d of them, want at most %d", len(c.Mirrors), mirror.MaxDrives-1))
	}
	seen := []string{c.Dir}
	for _, d := range c.Mirrors {
		if d == "" || slices.ContainsFunc(seen, func(other string) bool { return below(d, other) || below(other, d) }) {
			errs = append(errs, fmt.Errorf("mirrors: %q is empty, there twice, or one is below another", d))
		}
		seen = append(seen, d)
	}
	// What is in one of these directories and not in the others is removed when they are compared.
	for _, p := range c.Places {
		for _, d := range seen {
			if p.local() && d != "" && below(p.Dir, d) {
				errs = append(errs, fmt.Errorf("places: the directory of %q is in %s, which is the store's own", p.Name, d))
			}
		}
	}
	if c.MirrorScrub < 0 || c.MirrorRate < 0 {
		errs = append(errs, errors.New("mirror_rate and mirror_scrub_interval must not be negative"))
	}
	return errs
}

// resolved gives where a directory really is: links in the part of it that exists are followed. What is not there yet may become a
// link later; then the next start sees it.
func resolved(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for rest := ""; ; {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest), nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return filepath.Join(dir, rest), nil
		}
		dir, rest = up, filepath.Join(filepath.Base(dir), rest)
	}
}

// below reports whether a directory is another one, or in it.
func below(dir, other string) bool {
	dir, err := resolved(dir)
	other, oerr := resolved(other)
	if err != nil || oerr != nil {
		return false
	}
	rel, err := filepath.Rel(other, dir)
	return err == nil && filepath.IsLocal(rel)
}

// openDrives makes the directories and, where there are several, sets the file system over them in the engine's options. nil:
// there is one, and nothing stands before it.
func (s *Service) openDrives(opt *engine.Options) (*mirror.FS, error) {
	err := vfs.MkdirAll(vfs.OS, s.cfg.Dir)
	several, serr := isMember(s.cfg.Dir)
	if len(s.cfg.Mirrors) == 0 && !several {
		return nil, errors.Join(err, serr)
	}
	// A drive that cannot be reached is one that is missing, which the others decide about.
	m, err := openMirror(append([]string{s.cfg.Dir}, s.cfg.Mirrors...), opt, func(o *mirror.Options) {
		o.Rate, o.Failed = int64(s.cfg.MirrorRate), s.drives.failed
	})
	if err != nil {
		return nil, err
	}
	s.drives.mirror.Store(m)
	return m, nil
}

// isMember reports whether a directory is one of several that keep a store: alone it may be out of date.
func isMember(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, mirror.RecordName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// openMirror opens directories as one, and sets what the engine needs of it.
func openMirror(dirs []string, opt *engine.Options, change func(*mirror.Options)) (*mirror.FS, error) {
	o := mirror.Options{
		Drives:    asDrives(dirs),
		Log:       opt.Log,
		Reconcile: func(members []vfs.FS) ([]error, error) { return engine.Reconcile(members, opt.Log) },
		DropIndex: func(slot int) error {
			// A ledger that was left behind when the index moved away would be of another time, too.
			return errors.Join(os.RemoveAll(filepath.Join(dirs[slot], "index")), os.RemoveAll(filepath.Join(dirs[slot], mirror.LedgerDir)))
		},
	}
	change(&o)
	m, err := mirror.Open(o)
	if err != nil {
		return nil, err
	}
	opt.FS, opt.IndexDir = m, filepath.Join(dirs[m.IndexSlot()], "index")
	return m, nil
}

func (s *Service) closeDrives(m *mirror.FS) error {
	if m == nil {
		return nil
	}
	st := m.Status()
	s.drives.mirror.Store(nil)
	s.drives.mended.Add(st.Mended)
	s.drives.otherReads.Add(st.OtherReads)
	for _, d := range st.Drives {
		if d.State == mirror.Failed {
			if s.drives.failed == nil {
				s.drives.failed = map[string]error{}
			}
			s.drives.failed[d.Name] = errors.New(d.Cause)
		}
	}
	return m.Close()
}

// errIndexMoves ends the engine, which is then opened again with an index on another drive.
var errIndexMoves = fmt.Errorf("%w: the drive that it was on has failed", engine.ErrIndexDamaged)

// watchDrives runs what several drives need.
func (s *Service) watchDrives(g *run.Group, eng *engine.Engine) {
	m := s.drives.mirror.Load()
	if m == nil {
		return
	}
	g.Go("drives", m.Run)
	g.Go("index drive", func(ctx context.Context) error {
		select {
		case <-m.IndexLost():
			return errIndexMoves
		case <-ctx.Done():
			return nil
		}
	})
	if s.cfg.MirrorScrub > 0 {
		g.Go("scrub", func(ctx context.Context) error { return s.scrubDrives(ctx, eng) })
	}
}

// firstScrub is how long after a start copies are compared at the latest: a store that is restarted often must come to it too.
const firstScrub = time.Hour

// scrubDrives compares all copies, at the rate of the copying, and again an interval later.
func (s *Service) scrubDrives(ctx context.Context, eng *engine.Engine) error {
	for wait := min(firstScrub, s.cfg.MirrorScrub); ; wait = s.cfg.MirrorScrub {
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		began, moved := time.Now(), int64(0) // the pace only; nothing is decided by it
		out, err := eng.Scrub(ctx, func(n int64) {
			s.drives.scrubbed.Add(n)
			moved += n
			mirror.Pace(ctx, began, moved, int64(s.cfg.MirrorRate))
		})
		s.drives.different.Add(out.Different)
		s.drives.beyond.Add(out.Damaged)
		if ctx.Err() != nil {
			return nil
		}
		s.drives.scrubs.Add(1)
		if err != nil {
			s.deps.Telemetry.Log.Error("the copies could not be compared", "error", err)
			continue
		}
		s.deps.Telemetry.Log.Info("all copies were compared", "bytes", out.Bytes, "different", out.Different, "damaged", out.Damaged)
	}
}

// Drives is what the admin path /drives shows.
type Drives struct {
	mirror.Status
	// Scrubs counts the comparisons of all copies since the start; ScrubbedBytes are of one copy.
	Scrubs        int64 `json:"scrubs"`
	ScrubbedBytes int64 `json:"scrubbed_bytes"`
	Different     int64 `json:"different"`
	Damaged       int64 `json:"damaged"`
}

func (d *drives) status() Drives {
	out := Drives{Scrubs: d.scrubs.Load(), ScrubbedBytes: d.scrubbed.Load(), Different: d.different.Load(), Damaged: d.beyond.Load()}
	if m := d.mirror.Load(); m != nil {
		out.Status = m.Status()
	}
	if out.Drives == nil {
		out.Drives = []mirror.DriveStatus{}
	}
	out.Mended += d.mended.Load()
	out.OtherReads += d.otherReads.Load()
	return out
}
