package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// read reads the file of an entry and returns its head and its frame, both verified.
func (s *Spool) read(e *entry) (header, []byte, error) {
	raw, _, err := vfs.ReadFile(s.cfg.FS, s.tree.abs(e.path), 0)
	if err != nil {
		return header{}, nil, err
	}
	h, frame, err := decodeFile(raw)
	if err == nil && (h.manifest != e.manifest || h.spoolID != e.spoolID) {
		err = fileKind.Corrupt(e.path, "it is not the file that was spooled")
	}
	return h, frame, err
}

// reportUnreadable reports that the file of an entry can't be read: damage once per entry, other
// errors each time, because they may pass.
func (s *Spool) reportUnreadable(e *entry, err error) {
	if !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, fs.ErrNotExist) {
		if s.cfg.Events.LandingFailed != nil {
			s.cfg.Events.LandingFailed(fmt.Errorf("read %q: %w", e.path, err))
		}
		return
	}
	s.mu.Lock()
	known := e.damaged
	e.damaged = true
	s.mu.Unlock()
	if !known {
		s.corrupt(e.path, err)
	}
}

// has reports whether the batch of e is still in the spool.
func (s *Spool) has(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[e.manifest.Identity] == e
}

// ensureFile makes sure that the file of e holds its frame before "duplicate" or "conflict" is
// answered. A damaged or missing file is rewritten from sub, which has the same bytes.
func (s *Spool) ensureFile(sub accept.Submission, e *entry) error {
	_, _, err := s.read(e)
	if err == nil || !s.holds(e) {
		return nil // a batch that has landed has no file; the caller checks for that
	}
	s.reportUnreadable(e, err)
	if err := s.rewrite(sub, e); err != nil {
		return s.retry(accept.ReasonSpoolFailed, fmt.Errorf("spool %s: rewrite a damaged file: %w", sub.Identity, err))
	}
	if !s.holds(e) { // it landed meanwhile, and its file was removed before the rewritten one had the name
		_ = s.cfg.FS.Remove(s.tree.abs(e.path)) // if this fails, the next start lands the file once more, as a duplicate
		return nil
	}
	s.mu.Lock()
	e.damaged = false
	s.mu.Unlock()
	return nil
}

// holds reports whether e is in the index, as a batch or in quarantine.
func (s *Spool) holds(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[e.manifest.Identity] == e {
		return true
	}
	for _, l := range s.losers {
		if l == e {
			return true
		}
	}
	return false
}

// rewrite replaces the file of e in the same order of steps as placeFile.
func (s *Spool) rewrite(sub accept.Submission, e *entry) error {
	s.mu.Lock()
	s.temp++
	temp := s.tree.abs(filepath.Join(tempDir, strconv.FormatUint(s.temp, 10)))
	err := s.failed
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := vfs.WriteFile(s.cfg.FS, temp, encodeHead(e.manifestBytes, e.spoolID, len(sub.Frame)), sub.Frame); err != nil {
		s.cfg.FS.Remove(temp)
		return err
	}
	failpoint.Hit("ingest.spool.rewrite.synced")
	to := s.tree.abs(e.path)
	if err := s.cfg.FS.Rename(temp, to); err != nil {
		return s.fail(err)
	}
	failpoint.Hit("ingest.spool.rewrite.renamed")
	if err := s.cfg.FS.SyncDir(filepath.Dir(to)); err != nil {
		return s.fail(err)
	}
	return nil
}
