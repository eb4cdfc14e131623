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

// recover loads what is on disk. A file that exists was, or may have been, acknowledged, so
// its batch is accepted. Folders are synced again, because the process before may have
// ended between a name and its sync, and this one will answer "duplicate".
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
				return s.moveToCorrupt(path, err)
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
		return err // walked only to sync the folders: answers depend on claims and watermarks, too
	}
	if err := s.walk(corruptDir, func(path string) error {
		st, err := s.cfg.FS.Stat(s.tree.abs(path))
		s.used += cost(int(st.Size))
		return err
	}); err != nil {
		return err
	}
	failpoint.Hit("ingest.spool.recover.loaded")
	// In order of acceptance, in which they will land.
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
	s.recovered = s.order
	return nil
}

// walk calls fn for every spool file below rel, after it has synced the file's folder.
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

// load reads the head of a file, charges for the file, and checks that its path is that of its identity. The frame is verified later, when the file is used.
func (s *Spool) load(path string) (*entry, error) {
	b, size, err := vfs.ReadFile(s.cfg.FS, s.tree.abs(path), int64(maxFileHead))
	if err != nil {
		return nil, err
	}
	s.used += cost(int(size))
	h, err := decodeHead(b, size)
	if err != nil {
		// It may also be of a newer release. That is no damage, and the file stays: that release lands it.
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
		// This is a wrong setting and no damage: a file that was moved away would not land once the setting is corrected.
		return nil, fmt.Errorf("%w: %q is of %q, the store is %q", ErrOtherAuthority, path, m.AuthorityID, s.cfg.AuthorityID)
	}
	return &entry{manifest: m, manifestBytes: h.manifestBytes, spoolID: h.spoolID, path: path, cost: cost(int(size))}, nil
}

// moveToCorrupt moves a file without a readable head to the folder corrupt, so that its
// identity can be submitted again. The file is kept, charged for and reported.
func (s *Spool) moveToCorrupt(path string, cause error) error {
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
	// A power loss during an earlier move can leave the file under both names. rename(2) of
	// one name of a file to its other name does nothing, so the old name is removed here.
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
