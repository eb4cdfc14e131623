package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

const reserveName = "RESERVE"

// space keeps a reserve on the disk: a file that only takes room. Writes are refused while
// little is free; the reserve is given back bit by bit to deletes, to reclaiming and to the
// index, so that a full disk can be emptied, and the store stopped and started, whoever filled it.
type space struct {
	mu     sync.Mutex
	file   vfs.File
	want   int64 // 0: no reserve
	held   int64 // length of the file
	full   atomic.Bool
	warned bool
}

// Shares of the reserve: writes are refused with less than want/refuseShare free, and taken
// again with want/resumeShare free and the reserve whole. It is given back and taken in steps.
const (
	refuseShare = 4
	resumeShare = 2
	reserveStep = 8
)

// full makes ErrFull of an error of a full disk, and leaves others alone.
func full(err error) error {
	if err != nil && vfs.IsFull(err) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

func (e *Engine) openReserve() error {
	s := &e.space
	if s.want = e.opt.Reserve; s.want <= 0 {
		return nil
	}
	f, err := e.fs.Open(reserveName)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = e.fs.Create(reserveName); vfs.IsFull(err) {
			return nil // there is room for nothing; room says so
		}
	}
	if err != nil {
		return fmt.Errorf("open the reserve: %w", err)
	}
	s.file = f
	if s.held, err = f.Size(); err != nil {
		return fmt.Errorf("open the reserve: %w", err)
	}
	if s.held > s.want {
		if err := f.Truncate(s.want); err != nil {
			return fmt.Errorf("open the reserve: %w", err)
		}
		s.held = s.want
	}
	s.full.Store(true) // until room has found the reserve whole
	s.warned = true
	e.checkSpace()
	if s.full.Load() {
		e.opt.Log.Error("the disk is full: objects can be read and deleted only", "reserve", s.held)
	}
	return nil
}

// CheckSpace says whether there is room for new objects; ErrFull when there is not.
func (e *Engine) CheckSpace() error { return e.checkSpace() }

func (e *Engine) checkSpace() error {
	s := &e.space
	if s.want <= 0 {
		return nil
	}
	free, _, err := e.fs.Free(".")
	if err != nil {
		return nil // what cannot be known refuses nothing
	}
	if !s.full.Load() && free >= s.want/refuseShare {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	step := max(1, s.want/reserveStep)
	for free < step && s.held > 0 {
		if !e.shrinkReserve(step) {
			break
		}
		if free, _, err = e.fs.Free("."); err != nil {
			return nil
		}
	}
	for s.file != nil && s.held < s.want && free >= s.want/resumeShare+step {
		n := min(step, s.want-s.held)
		if err := s.file.Allocate(s.held, n); err != nil {
			_ = s.file.Truncate(s.held)
			break
		}
		s.held += n
		free -= n
	}
	whole := s.held >= s.want || s.file == nil
	switch was := s.full.Load(); {
	case was && whole && free >= s.want/resumeShare:
		s.full.Store(false)
		if !s.warned {
			e.opt.Log.Info("the disk has room again: objects are taken")
		}
		s.warned = false
	case !was && free < s.want/refuseShare:
		s.full.Store(true)
		e.opt.Log.Error("the disk is full: objects can be read and deleted only", "free", free, "reserve", s.held)
	}
	if s.full.Load() {
		return fmt.Errorf("%w: %d bytes are free", ErrFull, free)
	}
	return nil
}

// shrinkReserve gives some of the reserve back; false when nothing is left. It needs mu.
func (e *Engine) shrinkReserve(n int64) bool {
	s := &e.space
	if s.held == 0 || s.file == nil {
		return false
	}
	left := max(0, s.held-n)
	if err := s.file.Truncate(left); err != nil {
		return false
	}
	s.held = left
	s.full.Store(true)
	return true
}

// freeReserve is called where a write failed for lack of room; it may be tried again then.
func (e *Engine) freeReserve() bool {
	e.space.mu.Lock()
	defer e.space.mu.Unlock()
	return e.shrinkReserve(max(1, e.space.want/reserveStep))
}

// onIndexDiskFull holds the index's writes back for a while when nothing is left, because it
// tries again at once.
func (e *Engine) onIndexDiskFull() {
	if !e.freeReserve() {
		time.Sleep(100 * time.Millisecond)
	}
}

// hasSpaceFor says whether so many bytes can be copied within the log, the reserve included.
func (e *Engine) hasSpaceFor(n int64) bool {
	if e.space.want <= 0 {
		return true
	}
	free, _, err := e.fs.Free(".")
	e.space.mu.Lock()
	defer e.space.mu.Unlock()
	return err != nil || n < (free+e.space.held)/2
}
