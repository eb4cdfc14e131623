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

// space keeps a reserve on the disk: a file that only occupies space. While little is free,
// objects are refused, and the reserve is released in steps to deletes, reclaiming and the index.
// So a full disk can be emptied, and the store stopped and started, even if another program
// filled the disk.
type space struct {
	mu     sync.Mutex
	file   vfs.File
	want   int64 // 0: no reserve
	held   int64 // length of the file
	full   atomic.Bool
	warned bool

	plenty atomic.Int64 // nanoseconds behind processStart until which there is space, without asking
}

// processStart makes intervals of times that nobody can set.
var processStart = time.Now()

// While plentyShare times the reserve is free, the operating system is asked for it once in plentyFor and not for every
// write: no disk gets full in so short a time.
const (
	plentyShare = 8
	plentyFor   = 20 * time.Millisecond
)

// Fractions of the reserve. Writes are refused with less than want/refuseShare free, and accepted
// again with want/resumeShare free and the whole reserve in place; the distance keeps the state
// from flapping. The reserve is released and refilled in steps of want/reserveStep.
const (
	refuseShare = 4
	resumeShare = 2
	reserveStep = 8
)

// full turns the error of a full disk into ErrFull and returns other errors unchanged.
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
			return nil // not even an empty file fits; checkSpace refuses writes
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
	// The store starts as full and checkSpace refills the reserve. warned suppresses the message
	// that the disk has space again, which would be logged by every ordinary start.
	s.full.Store(true)
	s.warned = true
	e.checkSpace()
	if s.full.Load() {
		e.opt.Log.Error("the disk is full: objects can be read and deleted only", "reserve", s.held)
	}
	return nil
}

// CheckSpace gives ErrFull when there is no space for new objects.
func (e *Engine) CheckSpace() error { return e.checkSpace() }

func (e *Engine) checkSpace() error {
	s := &e.space
	if s.want <= 0 {
		return nil
	}
	now := int64(time.Since(processStart))
	if now < s.plenty.Load() {
		return nil
	}
	free, _, err := e.fs.Free(".")
	if err != nil {
		return nil // an unknown amount of space refuses nothing; the write itself will fail
	}
	if !s.full.Load() && free >= plentyShare*s.want {
		s.plenty.Store(now + int64(plentyFor))
	}
	// The common case takes no lock: every write passes here.
	if !s.full.Load() && free >= s.want/refuseShare {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	step := max(1, s.want/reserveStep)
	// Deletes and the index need some free space even while objects are refused.
	for free < step && s.held > 0 {
		if !e.shrinkReserve(step) {
			break
		}
		if free, _, err = e.fs.Free("."); err != nil {
			return nil
		}
	}
	// Refill the reserve from space that was freed, but leave want/resumeShare free: the
	// refill itself must not make the disk full again.
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

// shrinkReserve releases n bytes of the reserve; false when nothing is left. The caller holds mu.
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
	s.plenty.Store(0)
	return true
}

// freeReserve releases a step of the reserve after a write failed for lack of space. True: the
// write may be tried again.
func (e *Engine) freeReserve() bool {
	e.space.mu.Lock()
	defer e.space.mu.Unlock()
	return e.shrinkReserve(max(1, e.space.want/reserveStep))
}

// onIndexDiskFull releases a step of the reserve for the index. Pebble calls it on a full disk and
// tries again at once, so when nothing is left it waits, to keep that from being a busy loop.
func (e *Engine) onIndexDiskFull() {
	if !e.freeReserve() {
		time.Sleep(100 * time.Millisecond)
	}
}

// hasSpaceFor reports whether n bytes can be copied within the log, with the reserve's help. Half
// stays free, for the index and for the deletes that empty the disk.
func (e *Engine) hasSpaceFor(n int64) bool {
	if e.space.want <= 0 {
		return true
	}
	free, _, err := e.fs.Free(".")
	e.space.mu.Lock()
	defer e.space.mu.Unlock()
	return err != nil || n < (free+e.space.held)/2
}
