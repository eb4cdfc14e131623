package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	claimFile  = "claim.json"
	landedFile = "landed"
	clashFile  = "clash"
)

// ClaimBoot is as accept.Protocol's, against the spool's own records. The store's
// record is claimed when the boot's first batch lands; a clash with it is found then.
func (s *Spool) ClaimBoot(_ context.Context, id identity.Boot, spoolID string) error {
	if err := id.Validate(); err != nil {
		return &accept.RefusedError{Reason: accept.ReasonInvalidSubmission, Err: fmt.Errorf("spool: claim boot: %w", err)}
	}
	if err := accept.ValidSpoolID(spoolID); err != nil {
		return &accept.RefusedError{Reason: accept.ReasonInvalidSubmission, Err: fmt.Errorf("spool: claim boot %s: %w", id, err)}
	}
	_, err := s.claimBoot(id, spoolID)
	return err
}

// errUnsure says that a file was renamed, and that its new name may or may not be durable.
var errUnsure = errors.New("directory not synced")

func (s *Spool) claimBoot(id identity.Boot, spoolID string) (boot, error) {
	b, err := s.bootOf(id, spoolID)
	if errors.Is(err, errUnsure) {
		// bootOf holds the lock that fail needs, so the failure is noted here.
		s.fail(err)
	}
	return b, err
}

func (s *Spool) bootOf(id identity.Boot, spoolID string) (boot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.boots.Get(id)
	if !ok {
		if s.failed != nil {
			return boot{}, s.retry(accept.ReasonSpoolFailed, s.failed)
		}
		var err error
		b, err = s.loadBoot(id, spoolID)
		// A full spool is its own error. Everything else is a disk error or a damaged record.
		var full *accept.RetryError
		if errors.As(err, &full) {
			return boot{}, err
		}
		if err != nil {
			return boot{}, s.retry(accept.ReasonSpoolFailed, fmt.Errorf("spool: claim boot %s: %w", id, err))
		}
		s.boots.Put(id, b, 1)
	}
	if b.spoolID != spoolID || b.clash {
		return boot{}, &accept.RefusedError{Reason: accept.ReasonBootIDClash, Err: fmt.Errorf("boot %s belongs to another spool", id)}
	}
	return *b, nil
}

// loadBoot reads the boot's record, or writes it for spoolID.
func (s *Spool) loadBoot(id identity.Boot, spoolID string) (*boot, error) {
	dir := bootPath(bootsDir, id)
	b := &boot{spoolID: spoolID}
	raw, _, err := vfs.ReadFile(s.cfg.FS, s.tree.abs(filepath.Join(dir, claimFile)), accept.MaxRecordBytes+1)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.checkDisk(cost(accept.MaxRecordBytes)); err != nil {
			return nil, err
		}
		return b, s.writeClaim(dir, id, spoolID)
	}
	if err != nil {
		return nil, err
	}
	r, err := accept.ParseBootRecord(raw)
	if err != nil {
		return nil, err
	}
	if r.Boot != id {
		return nil, accept.BootKind.Corrupt("", "it names the boot %s", r.Boot)
	}
	b.spoolID = r.SpoolID
	switch _, _, err := vfs.ReadFile(s.cfg.FS, s.tree.abs(filepath.Join(dir, clashFile)), 1); {
	case err == nil:
		b.clash = true
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return b, s.loadLanded(dir, b)
}

func (s *Spool) loadLanded(dir string, b *boot) error {
	raw, _, err := vfs.ReadFile(s.cfg.FS, s.tree.abs(filepath.Join(dir, landedFile)), 32)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		b.landed, err = strconv.ParseUint(string(raw), 10, 64)
		b.any = true
	}
	return err
}

// writeClaim writes the boot's record. It syncs with the lock held, which is acceptable because first uses of boots are rare.
func (s *Spool) writeClaim(dir string, id identity.Boot, spoolID string) error {
	body := accept.BootRecord{
		AuthorityID: s.cfg.AuthorityID, Boot: id, SpoolID: spoolID, Mode: accept.ModeLocalSpool,
		FirstSeen: max(s.cfg.Clock.Now().UnixNano(), 0), CollectorID: s.cfg.CollectorID,
	}.Marshal()
	return s.replaceLocked(dir, claimFile, body)
}

// replaceLocked writes a small file durably and atomically, replacing an earlier one. The caller holds s.mu.
func (s *Spool) replaceLocked(dir, name string, body []byte) error {
	if err := s.tree.mkdirs(dir); err != nil {
		return err
	}
	s.temp++
	temp := s.tree.abs(filepath.Join(tempDir, strconv.FormatUint(s.temp, 10)))
	if err := vfs.WriteFile(s.cfg.FS, temp, body); err != nil {
		s.cfg.FS.Remove(temp)
		return err
	}
	failpoint.Hit("ingest.spool.record.synced")
	if err := s.cfg.FS.Rename(temp, s.tree.abs(filepath.Join(dir, name))); err != nil {
		s.cfg.FS.Remove(temp)
		return err
	}
	failpoint.Hit("ingest.spool.record.renamed")
	if err := s.cfg.FS.SyncDir(s.tree.abs(dir)); err != nil {
		return fmt.Errorf("%w: %w", errUnsure, err)
	}
	failpoint.Hit("ingest.spool.record.durable")
	return nil
}

// recordClash makes ClaimBoot and Accept refuse a boot that the store knows from another spool:
// its batches could never land. A failed write is ignored, because the next landing repeats it.
func (s *Spool) recordClash(id identity.Boot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.boots.Get(id); ok {
		if b.clash {
			return
		}
		b.clash = true
	}
	_ = s.replaceLocked(bootPath(bootsDir, id), clashFile, nil)
}

// raiseWatermark records durably that ranges of the boot up to seq may have left the spool. It is
// called before any of them leaves.
func (s *Spool) raiseWatermark(id identity.Boot, seq uint64) error {
	err := s.writeWatermark(id, seq)
	if errors.Is(err, errUnsure) {
		s.fail(err)
	}
	return err
}

func (s *Spool) writeWatermark(id identity.Boot, seq uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := bootPath(bootsDir, id)
	b, ok := s.boots.Get(id)
	if !ok {
		b = &boot{}
		if err := s.loadLanded(dir, b); err != nil {
			return err
		}
	}
	// Quarantined frames land after later batches of their boot; the watermark never goes back.
	if b.any && b.landed >= seq {
		return nil
	}
	if err := s.replaceLocked(dir, landedFile, fmt.Appendf(nil, "%020d", seq)); err != nil {
		return err
	}
	// Changed only after the file is durable. With b from the cache, Accept sees it at once.
	b.landed, b.any = seq, true
	return nil
}
