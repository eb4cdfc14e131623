package ingest

import (
	"context"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/epochs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Values of Config.MarkerReads.
const (
	// markersAlways: the marker of every blob is read before an answer that relies on it.
	markersAlways = "always"
	// markersEpochs: it is not, where the journal's segment names an epoch of condemned names that does not have the frame.
	markersEpochs = "epochs"
)

// heldFor is after how many intervals without an answer to the question for new epochs the collector names none any more, and closes
// its run: garbage collection waits for it.
const heldFor = 10

// condemnedNames follows the log of epochs.
type condemnedNames struct {
	log *epochs.Log
	now func() time.Time
	// read is when the end of the log was found last, Unix nanoseconds; fresh for how long that counts. A set that is older is
	// as safe; it only makes others wait.
	read  atomic.Int64
	fresh time.Duration
}

// Held implements journal.Epochs.
func (c *condemnedNames) Held() (journal.Condemned, uint64) {
	set, reading := c.log.Held()
	if set == nil || c.now().Sub(time.Unix(0, c.read.Load())) > c.fresh {
		return nil, 0
	}
	return set, reading
}

// Readings implements journal.Epochs.
func (c *condemnedNames) Readings() uint64 { return c.log.Readings() }

func (c *condemnedNames) update(ctx context.Context) error {
	at := c.now()
	err := c.log.Read(ctx)
	if err == nil {
		c.read.Store(at.UnixNano())
	}
	return err
}

// sparing makes what the journal's writer needs to name epochs; nil where markers are always read.
func (s *Service) sparing(authorityID string) *condemnedNames {
	if s.cfg.MarkerReads != markersEpochs {
		return nil
	}
	return &condemnedNames{log: epochs.NewLog(s.store, authorityID), now: s.now, fresh: heldFor * s.cfg.EpochsInterval}
}

// followEpochs asks for new epochs until ctx ends.
func (s *Service) followEpochs(ctx context.Context) error {
	if s.cfg.MarkerReads != markersEpochs {
		return nil
	}
	for {
		if a, c := s.condemned.Load(), s.writing.Load(); a != nil && c != nil {
			rctx, cancel := context.WithTimeout(ctx, settleTimeout)
			err := a.update(rctx)
			cancel()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				s.tel.Log.Warn("epochs of condemned names could not be read; markers are read as long as this lasts", "error", err)
			}
			// A run that has nothing to write names a new epoch, or ends where it can't learn of one.
			c.Wake()
		}
		if err := run.Sleep(ctx, s.cfg.EpochsInterval); err != nil {
			return err
		}
	}
}

// validMarkers checks the settings.
func (c Config) validMarkers() bool {
	return c.MarkerReads == markersAlways || c.MarkerReads == markersEpochs && accept.Mode(c.Acceptance) == accept.ModeS3Manifest
}
