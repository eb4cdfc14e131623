package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// timeScan lists accepted-by-time from the checkpoint minus the lookback to a little after
// now, checks the other derived keys of each manifest, and moves the checkpoint to the time
// at which the scan began.
func (s *Service) timeScan(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Frontier.Timeout)
	defer cancel()
	began, err := s.storeTime(ctx)
	if err != nil {
		return err
	}
	through, err := s.core.ReadCheckpoint(ctx)
	if errors.Is(err, record.ErrCorrupt) {
		s.log.Error("checkpoint can't be read; it is rewritten", "error", err)
		through, err = 0, nil
	}
	if err != nil {
		return err
	}
	// Without a checkpoint the lookback is enough: the frontier audit finds everything older.
	from := began
	if through > 0 && through < began.UnixNano() {
		from = time.Unix(0, through)
	}
	from = from.Add(-s.cfg.TimeScan.Lookback).UTC()
	// Keys have no times before 1970.
	if from.Unix() < 0 {
		from = time.Unix(0, 0).UTC()
	}
	r := newRound()
	until := began.Add(s.cfg.TimeScan.Ahead)
	for hour := from.Truncate(time.Hour); !hour.After(until); hour = hour.Add(time.Hour) {
		if err := s.scanHour(ctx, hour, from, r); err != nil {
			return err
		}
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	// The checkpoint says that these batches need not be reconciled again, so they must be in the
	// intake before it moves.
	if err := s.intake.flush(ctx); err != nil {
		return err
	}
	failpoint.Hit("reconciler.scan.checkpoint.before")
	_, err = s.core.AdvanceCheckpoint(ctx, began.UnixNano())
	return err
}

func (s *Service) scanHour(ctx context.Context, hour, from time.Time, r *round) error {
	prefix, after := layout.AcceptedByTimeHour(hour), ""
	if from.After(hour) {
		// Manifest ids begin with the time of acceptance, so the listing can start within the hour.
		after = prefix + fmt.Sprintf("%020d", from.UnixNano())
	}
	return s.listAll(ctx, prefix, after, func(o objstore.Info) error {
		// This process has reconciled the manifest, or reported that it can't be used.
		if s.indexed.has(o.Key) || s.bad.has(o.Key) {
			return nil
		}
		if !strings.HasSuffix(o.Key, ".json") {
			s.reportForeign(o.Key)
			return nil
		}
		body, _, err := s.store.Get(ctx, o.Key, objstore.GetOptions{Limit: accept.MaxRecordBytes})
		if errors.Is(err, objstore.ErrNotFound) {
			return nil
		}
		if err != nil && !objstore.Unreadable(err) {
			return err
		}
		m, perr := accept.ParseManifest(body)
		if err != nil || perr != nil || byTimeKey(m) != o.Key {
			s.reportForeign(o.Key)
			return nil
		}
		return s.enqueue(ctx, &item{key: layout.Accepted(m.Identity), src: fromTimeScan, headFirst: true, rounds: []*round{r}})
	})
}

func byTimeKey(m accept.Manifest) string { return layout.AcceptedByTime(m.AcceptedTime(), m.Identity) }
