package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	segmentsAtOnce  = 200
	segmentsTimeout = time.Minute
)

// ForeignSegmentError is a segment of another number of shards: its agents are spread
// otherwise. It stays where it is, and holds up nothing.
type ForeignSegmentError struct {
	Key        string
	Have, Want uint32
}

func (e *ForeignSegmentError) Error() string {
	return fmt.Sprintf("segment %q is of %d shards, not %d", e.Key, e.Have, e.Want)
}

// follow reads new segments, as many as there is room for, and from time to time those
// again that it has no memory of.
func (o *owner) follow(ctx context.Context) (more bool, err error) {
	if !o.s.room(o) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, segmentsTimeout)
	defer cancel()
	more, err = o.reader.Poll(ctx, segmentsAtOnce, func(key string) error { return o.segment(ctx, key) })
	if err == nil && !more {
		more, err = o.lookAgain(ctx)
	}
	if errors.Is(err, errNoRoom) {
		return false, nil
	}
	return more, err
}

// lookAgain reads all segments that this owner has no memory of: what was shelved, what
// could not be read, what appeared late.
func (o *owner) lookAgain(ctx context.Context) (more bool, err error) {
	if o.second == nil {
		if o.s.now().Sub(o.looked) < o.s.cfg.Intake.Recheck {
			return false, nil
		}
		o.second = intake.NewReader(o.s.store, o.grant.Shard)
		o.log.shelved, o.alone = 0, 0
	}
	more, err = o.second.Poll(ctx, segmentsAtOnce, func(key string) error { return o.segment(ctx, key) })
	if err == nil && !more {
		o.second, o.looked = nil, o.s.now()
	}
	return more, err
}

// segment takes one segment.
func (o *owner) segment(ctx context.Context, key string) error {
	if o.log.knows(key) {
		return nil
	}
	if !o.s.room(o) {
		return errNoRoom
	}
	seg, err := o.s.readSegment(ctx, key)
	var foreign *ForeignSegmentError
	switch {
	case errors.Is(err, record.ErrCorrupt):
		o.leaveAlone(ctx, "corrupt", key, err)
		return nil
	case errors.As(err, &foreign):
		o.leaveAlone(ctx, "foreign", key, err)
		return nil
	case errors.Is(err, objstore.ErrNotFound):
		return nil // a former owner deleted it
	case err != nil:
		return o.later(key, err)
	}
	now := o.s.now()
	hours := make(map[identity.Batch][]timegrid.Hour, len(seg.Entries))
	ahead := 0
	for _, e := range seg.Entries {
		hs, err := o.s.hours(ctx, e)
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", intake.ErrLater, err)
		}
		if err != nil {
			return o.later(key, err)
		}
		hours[e.Identity] = hs
		if len(hs) > 0 && o.ahead(hs[len(hs)-1], now) && o.log.batches[e.Identity] == nil {
			ahead++
		}
	}
	o.s.m.segments.WithLabelValues("read").Inc()
	o.s.m.ahead.Add(float64(ahead))
	o.snaps.offer(seg.Entries)
	o.log.add(key, seg.Entries, func(e accepted.Batch) []timegrid.Hour { return hours[e.Identity] }, now)
	return nil
}

// leaveAlone tells of a segment that is none of this authority's. The batches that it was
// to name are in the reconcilers' ledgers, so that only an operator enters them again.
func (o *owner) leaveAlone(ctx context.Context, what, key string, err error) {
	o.alone++
	o.s.m.segments.WithLabelValues(what).Inc()
	written := "unknown"
	if info, herr := o.s.store.Head(ctx, key); herr == nil {
		written = info.LastModified.UTC().Format(time.RFC3339)
	}
	o.s.log.Error("intake segment is "+what+" and is left alone; lmctl reprocess enters what was accepted until it was written", "key", key, "written", written, "error", err)
}

// later tells of a segment that is put aside.
func (o *owner) later(key string, err error) error {
	if errors.Is(err, intake.ErrLater) {
		o.s.m.segments.WithLabelValues("later").Inc()
		o.s.log.Warn("intake segment can't be taken now and is tried again; others go on", "key", key, "error", err)
	}
	return err
}

// readSegment reads a segment of this authority: *ForeignSegmentError when it is not. What
// a later try may mend wraps intake.ErrLater.
func (s *Service) readSegment(ctx context.Context, key string) (intake.Segment, error) {
	seg, err := intake.ReadSegment(ctx, s.store, key)
	switch {
	case err == nil && seg.Shards != s.cfg.Shards:
		return seg, &ForeignSegmentError{Key: key, Have: seg.Shards, Want: s.cfg.Shards}
	case err == nil, errors.Is(err, record.ErrCorrupt), errors.Is(err, objstore.ErrNotFound), ctx.Err() != nil:
		return seg, err
	}
	return seg, fmt.Errorf("%w: %w", intake.ErrLater, err)
}

// hours gives the hours that the batch has records in. Between the first and the last of
// a batch that spans three or more there may be none: its frame tells.
func (s *Service) hours(ctx context.Context, e accepted.Batch) ([]timegrid.Hour, error) {
	first, last := e.Hours()
	if last <= first+1 {
		return slices.Compact([]timegrid.Hour{first, last}), nil
	}
	raw, err := s.frames.get(ctx, e)
	var bad *UnreadableError
	if errors.As(err, &bad) {
		return []timegrid.Hour{first, last}, nil // its job will say so
	}
	if err != nil {
		return nil, err
	}
	f, err := s.decoder().decode(raw)
	if err != nil {
		return []timegrid.Hour{first, last}, nil
	}
	var hs []timegrid.Hour
	for i := range f.Groups {
		for _, t := range f.Groups[i].Timestamps {
			if h := timegrid.HourOfNS(t); len(hs) == 0 || hs[len(hs)-1] != h {
				hs = append(hs, h)
			}
		}
	}
	slices.Sort(hs)
	return slices.Compact(hs), nil
}
