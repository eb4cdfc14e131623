package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// Modes of a retention, and states of a legal hold, as S3 names them.
const (
	Governance = "GOVERNANCE" // may be taken back by who may bypass it
	Compliance = "COMPLIANCE" // ends with its date and not before, whoever asks
	HoldOn     = "ON"
	HoldOff    = "OFF"
)

// SettingLock is the name of the bucket setting that turns object lock on. It is never removed, so that what is locked
// in a bucket stays so.
const SettingLock = "object-lock"

// Lock is what protects an object from being deleted or replaced. The zero value protects nothing.
type Lock struct {
	Mode  string    // Governance or Compliance; empty: no retention
	Until time.Time // the end of the retention, in milliseconds; zero without one
	Hold  string    // HoldOn or HoldOff; empty: there was never a legal hold
}

// Retained reports whether a retention is in force at a time.
func (l Lock) Retained(now time.Time) bool { return l.Mode != "" && now.Before(l.Until) }

// Protects reports whether the object may not go at a time. With bypass a governance retention does not count.
func (l Lock) Protects(now time.Time, bypass bool) bool {
	return l.Hold == HoldOn || l.Retained(now) && !(bypass && l.Mode == Governance)
}

// Retain gives the lock with another retention; an empty mode removes it. ErrLocked: the present one is in force, and
// would become weaker. A compliance retention can only be made longer. A governance one can be replaced by any other
// with bypass.
func (l Lock) Retain(mode string, until, now time.Time, bypass bool) (Lock, error) {
	longer := mode == l.Mode && !until.Before(l.Until)
	if l.Retained(now) && !longer && !(bypass && l.Mode == Governance) {
		return l, ErrLocked
	}
	l.Mode, l.Until = mode, until
	return l, nil
}

// Bits of an encoded lock.
const (
	lockGovernance byte = 1 << iota
	lockCompliance
	lockHoldOff
	lockHoldOn
)

// appendLock encodes a lock: a byte, and the end of a retention as Unix milliseconds. Nanoseconds would end in 2262,
// which is within reach of a retention.
func appendLock(b []byte, l Lock) []byte {
	var bits byte
	switch l.Mode {
	case Governance:
		bits |= lockGovernance
	case Compliance:
		bits |= lockCompliance
	}
	switch l.Hold {
	case HoldOff:
		bits |= lockHoldOff
	case HoldOn:
		bits |= lockHoldOn
	}
	b = append(b, bits)
	if l.Mode != "" {
		b = binary.AppendUvarint(b, uint64(l.Until.UnixMilli()))
	}
	return b
}

// lock decodes what appendLock has encoded. Bits that are not known, or that contradict each other, make the record
// unreadable: what protects an object must not be guessed.
func (s *scanner) lock() (l Lock) {
	bits := s.Byte()
	switch bits & (lockGovernance | lockCompliance) {
	case 0:
	case lockGovernance:
		l.Mode = Governance
	case lockCompliance:
		l.Mode = Compliance
	default:
		s.Bad = true
	}
	switch bits &^ (lockGovernance | lockCompliance) {
	case 0:
	case lockHoldOff:
		l.Hold = HoldOff
	case lockHoldOn:
		l.Hold = HoldOn
	default:
		s.Bad = true
	}
	if l.Mode != "" {
		l.Until = time.UnixMilli(int64(s.Num())).UTC()
	}
	return l
}

// checkLock decides whether the object with entry gone may go, by a delete or because another takes its place; nil is
// none. It is asked in the committer, so a lock that was set before by a racer counts. Where a lost write may have
// locked it, the error is ErrUncertain.
func (e *Engine) checkLock(o *op, gone *entry) error {
	if gone == nil || o.rewrites {
		return nil
	}
	if gone.lock.Protects(e.opt.Now(), o.cond.BypassGovernance) {
		return ErrLocked
	}
	b, err := e.Bucket(o.rec.bucket)
	if err != nil || b.Settings[SettingLock] == nil || isInternal(o.rec.key) {
		return err
	}
	return e.uncertain(gone)
}

// SetLockConfiguration turns object lock on for a bucket with versioning, or replaces the text of its configuration,
// which the engine does not read.
func (e *Engine) SetLockConfiguration(ctx context.Context, name string, text []byte) error {
	return e.changeSetting(ctx, name, SettingLock, text, func(b *Bucket) error {
		if b.Versioning() != Enabled {
			return ErrLockNeedsVersions
		}
		return nil
	})
}

// SetLock changes the lock of a version, or of the current one when version is empty, and gives its id; body, ETag, times
// and order stay. change gets the present lock and the time, and its error is the result.
func (e *Engine) SetLock(ctx context.Context, bucket, key, version string, change func(l Lock, now time.Time) (Lock, error)) (id string, err error) {
	id, err = e.rewrite(ctx, bucket, key, version, func(o *Object) (err error) {
		o.Lock, err = change(o.Lock, e.opt.Now())
		return err
	})
	if err != nil {
		return id, fmt.Errorf("lock %q: %w", key, err)
	}
	return id, nil
}
