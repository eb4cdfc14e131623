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

// read gives the frame of an entry, and the head that stands before it.
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

// damaged reports, of what is lost once, that the file of an entry can't be read.
func (s *Spool) damaged(e *entry, err error) {
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

// keep sees to it that the file of e holds its frame before an answer rests on it. A
// file that does not is written anew: sub has the same bytes.
func (s *Spool) keep(sub accept.Submission, e *entry) error {
	_, _, err := s.read(e)
	if err == nil || !s.holds(e) {
		return nil // no file where the batch has landed: its caller looks
	}
	s.damaged(e, err)
	if err := s.rewrite(sub, e); err != nil {
		return s.retry(accept.ReasonSpoolFailed, fmt.Errorf("spool %s: write a damaged file anew: %w", sub.Identity, err))
	}
	if !s.holds(e) { // landed meanwhile, and its file gone before ours had the name
		_ = s.cfg.FS.Remove(s.tree.abs(e.path)) // a left-over lands once more, as a duplicate
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

// rewrite replaces the file of e, in the order of place.
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
