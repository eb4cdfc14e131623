package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// recover takes in what is on disk. A file that is there was, or may have been,
// acknowledged: it counts. Folders are synced again, because the process before may
// have ended between a name and its sync, and this one will answer "duplicate".
func (s *Spool) recover() error {
	for _, dir := range []string{batchesDir, quarantineDir, conflictsDir, corruptDir, bootsDir, tempDir} {
		if err := s.tree.mkdirs(dir); err != nil {
			return err
		}
	}
	temps, err := s.cfg.FS.List(s.tree.abs(tempDir))
	if err != nil {
		return err
	}
	for _, t := range temps {
		if err := s.cfg.FS.Remove(s.tree.abs(filepath.Join(tempDir, t.Name))); err != nil {
			return err
		}
	}
	failpoint.Hit("ingest.spool.recover.cleaned")
	var found []*entry
	for _, dir := range []string{batchesDir, quarantineDir, conflictsDir} {
		if err := s.walk(dir, func(path string) error {
			e, err := s.load(path)
			if errors.Is(err, record.ErrCorrupt) {
				return s.setAside(path, err)
			}
			if err == nil && dir == conflictsDir {
				s.parked += e.cost
			}
			if err == nil && dir != conflictsDir {
				found = append(found, e)
			}
			return err
		}); err != nil {
			return err
		}
	}
	if err := s.walk(bootsDir, func(string) error { return nil }); err != nil {
		return err // synced, as the batches are: their answers rest on it
	}
	if err := s.walk(corruptDir, func(path string) error {
		st, err := s.cfg.FS.Stat(s.tree.abs(path))
		s.used += cost(int(st.Size))
		return err
	}); err != nil {
		return err
	}
	failpoint.Hit("ingest.spool.recover.loaded")
	slices.SortFunc(found, func(a, b *entry) int {
		return a.manifest.Claim().Compare(b.manifest.Claim())
	})
	for _, e := range found {
		s.order++
		e.order = s.order
		if strings.HasPrefix(e.path, batchesDir) {
			s.entries[e.manifest.Identity] = e
		} else {
			s.losers = append(s.losers, e)
		}
	}
	return nil
}

// walk calls fn for every spool file below rel, folders synced before.
func (s *Spool) walk(rel string, fn func(path string) error) error {
	if err := s.cfg.FS.SyncDir(s.tree.abs(rel)); err != nil {
		return err
	}
	list, err := s.cfg.FS.List(s.tree.abs(rel))
	if err != nil {
		return err
	}
	for _, e := range list {
		path := filepath.Join(rel, e.Name)
		switch {
		case e.Type.IsDir():
			err = s.walk(path, fn)
		case strings.HasSuffix(e.Name, fileSuffix):
			err = fn(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// load reads the head of a file, charges for it, and checks that its name is its identity's.
func (s *Spool) load(path string) (*entry, error) {
	b, size, err := vfs.ReadFile(s.cfg.FS, s.tree.abs(path), int64(maxFileHead))
	if err != nil {
		return nil, err
	}
	s.used += cost(int(size))
	h, err := decodeHead(b, size)
	if err != nil {
		// What a newer release has acknowledged stays where it is: that release lands it.
		return nil, fileKind.Wrap(path, err)
	}
	m := h.manifest
	folder, _, _ := strings.Cut(path, string(filepath.Separator))
	want := batchPath(m.Identity)
	if folder != batchesDir {
		want = loserPath(folder, m.Identity, m.FrameSHA256)
	}
	if path != want {
		return nil, fileKind.Corrupt(path, "it is of another identity than its place")
	}
	if m.AuthorityID != s.cfg.AuthorityID {
		// No damage but a wrong setting: set aside, they would not land once it is mended.
		return nil, fmt.Errorf("%w: %q is of %q, the store is %q", ErrOtherAuthority, path, m.AuthorityID, s.cfg.AuthorityID)
	}
	return &entry{manifest: m, manifestBytes: h.manifestBytes, spoolID: h.spoolID, path: path, cost: cost(int(size))}, nil
}

// setAside moves a file without a readable head out of the way, so that its
// identity can be submitted again. It is kept, charged for and reported.
func (s *Spool) setAside(path string, cause error) error {
	to := filepath.Join(corruptDir, path)
	if err := s.tree.mkdirs(filepath.Dir(to)); err != nil {
		return err
	}
	if err := s.cfg.FS.Rename(s.tree.abs(path), s.tree.abs(to)); err != nil {
		return err
	}
	failpoint.Hit("ingest.spool.recover.aside")
	if err := s.cfg.FS.SyncDir(filepath.Dir(s.tree.abs(to))); err != nil {
		return err
	}
	s.corrupt(to, cause)
	// A loss of power amid an earlier move can leave both names to the file, and rename(2)
	// of a file to its own other name leaves both as well.
	if err := s.cfg.FS.Remove(s.tree.abs(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.cfg.FS.SyncDir(filepath.Dir(s.tree.abs(path)))
}

func (s *Spool) corrupt(path string, err error) {
	if s.cfg.Events.Corrupt != nil {
		s.cfg.Events.Corrupt(path, err)
	}
}
