package coordinator

import (
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
)

// closedReason is why a coordinator does not decide identities.
type closedReason string

// Reasons, for whoever branches on them: a metric has each as a label.
const (
	// closedStarting: it was not opened yet.
	closedStarting closedReason = "starting"
	// closedRecovering: this coordinator reads what the regions have.
	closedRecovering closedReason = "recovering"
	// closedNotLeading: another coordinator, which leads, has to recover, or does.
	closedNotLeading closedReason = "not_leading"
	// closedRegion: a region's bucket does not answer, or has something that can't be read.
	closedRegion closedReason = "region"
	// closedEtcd: etcd does not answer.
	closedEtcd closedReason = "etcd"
	// closedRestored: etcd has forgotten what it had.
	closedRestored closedReason = "restored"
	// closedOvertaken: another epoch was opened; this coordinator is about to serve it.
	closedOvertaken closedReason = "overtaken"
	// closedSettings: the settings do not fit the regions of the epoch.
	closedSettings closedReason = "settings"
	// closedDissolving and closedDissolved: an operator has ended the linearizer.
	closedDissolving closedReason = "dissolving"
	closedDissolved  closedReason = "dissolved"
	// closedNotAdded: regions of the settings were prepared, or have to be, and an operator has to add them.
	closedNotAdded closedReason = "not_added"
	// closedTooManyClaims: a recovery would enter more claims into etcd than the settings allow.
	closedTooManyClaims closedReason = "too_many_claims"
	// closedForgets: a retirement died, etcd was restored since, and the region's bucket does not answer: an operator has to say what may be forgotten.
	closedForgets closedReason = "forgets"
	// closedOther: the log says what.
	closedOther closedReason = "other"
)

// closedReasons are all of them.
var closedReasons = []closedReason{
	closedStarting, closedRecovering, closedNotLeading, closedRegion, closedEtcd, closedRestored, closedOvertaken, closedSettings, closedDissolving, closedDissolved,
	closedNotAdded, closedTooManyClaims, closedForgets, closedOther,
}

// errNotOpened is the cause before the first attempt.
var errNotOpened = errors.New("it was not opened yet")

// closure is why nothing is answered.
type closure struct {
	reason closedReason
	// region that everything waits for; of closedRegion.
	region claims.Region
	err    error
}

// closureOf tells the reason by the error that closed the linearizer, or kept it from being opened.
func closureOf(err error) *closure {
	c := &closure{reason: closedOther, err: err}
	var of *regions.RegionError
	switch {
	case errors.Is(err, errNotOpened):
		c.reason = closedStarting
	case errors.Is(err, regions.ErrDissolved):
		c.reason = closedDissolved
	case errors.Is(err, regions.ErrDissolving):
		c.reason = closedDissolving
	case errors.Is(err, regions.ErrNotAdded), errors.Is(err, regions.ErrUnprepared):
		c.reason = closedNotAdded
	case errors.Is(err, regions.ErrTooManyClaims):
		c.reason = closedTooManyClaims
	case errors.Is(err, regions.ErrForgets):
		c.reason = closedForgets
	case errors.Is(err, regions.ErrRegionSettings):
		c.reason = closedSettings
	case errors.Is(err, regions.ErrOvertaken), errors.Is(err, claims.ErrEpoch):
		c.reason = closedOvertaken
	case errors.As(err, &of):
		c.reason, c.region = closedRegion, of.Region
	case errors.Is(err, claims.ErrForgot):
		c.reason = closedRestored
	case errors.Is(err, regions.ErrMustRecover):
		c.reason = closedNotLeading
	case errors.Is(err, claims.ErrUnavailable), errors.Is(err, claims.ErrUnknown):
		c.reason = closedEtcd
	}
	return c
}

func (v *identities) closed(err error) {
	v.why.Store(closureOf(err))
	v.open.Store(nil)
}

// closure is why nothing is answered; nil while it is open.
func (v *identities) closure() *closure {
	if v.open.Load() != nil {
		return nil
	}
	c := v.why.Load()
	if v.recovering.Load() {
		return &closure{reason: closedRecovering, err: c.err}
	}
	return c
}

// notOpen says why nothing is answered, for people; nil while it is open. The cause is in it as text: that somebody does not know what
// became of an attempt to open it says nothing about a caller's operation.
func (v *identities) notOpen() error {
	if c := v.closure(); c != nil {
		return errors.New(c.String())
	}
	return nil
}

func (c *closure) String() string {
	if c.reason == closedRecovering {
		return fmt.Sprintf("the regions are read, to find out what was decided: %v", c.err)
	}
	return fmt.Sprintf("the identity linearizer is not open: %v", c.err)
}

// refusal is the error of an operation that found it closed. It may be open by now.
func (v *identities) refusal() error {
	c := v.closure()
	switch {
	case c == nil:
		return fmt.Errorf("%w: the identity linearizer was not open", claims.ErrUnavailable)
	case c.reason == closedDissolved:
		return fmt.Errorf("%w: %v", claims.ErrDissolved, c)
	}
	return fmt.Errorf("%w: %v", claims.ErrUnavailable, c)
}
