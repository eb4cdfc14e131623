package ingest

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// RegionError says that the bucket is that of a region which this collector's settings do not fit. It ends the collector: waiting
// changes nothing, and to accept would count batches in two regions.
type RegionError struct {
	// Region of the bucket, by its record.
	Region string
	// Acceptance and Ours are the collector's settings acceptance and region.
	Acceptance, Ours string
	// Dissolved: the identity linearizer has ended, and the bucket is an authority of its own.
	Dissolved bool
}

func (e *RegionError) Error() string {
	if e.Dissolved {
		return fmt.Sprintf("the bucket was that of region %s, whose identity linearizer was dissolved: acceptance must not be global any more (docs/guide/regions.md#going-back)", e.Region)
	}
	if accept.Mode(e.Acceptance) == accept.ModeGlobal {
		return fmt.Sprintf("the bucket is that of region %s, and this collector is set to region %s", e.Region, e.Ours)
	}
	return fmt.Sprintf("the bucket is that of region %s, whose collectors accept by the identity linearizer: acceptance must be global, not %s (docs/guide/ingest.md#several-regions)", e.Region, e.Acceptance)
}

// checkRegion refuses a bucket that is one of several regions' to a collector that would not ask the linearizer, or would ask it for
// another region.
func (s *Service) checkRegion(ctx context.Context) error {
	b, _, err := s.store.Get(ctx, layout.RegionsKey, objstore.GetOptions{Limit: int64(regions.Kind.MaxBytes)})
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil // no region yet, or none of several
	case errors.Is(err, objstore.ErrDenied):
		// A policy of before there were regions: then the bucket is none, unless somebody forgot this grant.
		s.tel.Log.Warn("whether the bucket is one of several regions' can't be told, because the store denies reading the record", "key", layout.RegionsKey, "page", "docs/guide/permissions.md")
		return nil
	case err != nil && !objstore.Unreadable(err):
		return fmt.Errorf("is the bucket one of several regions'? %w", err)
	}
	var r regions.Record
	if err == nil {
		r, err = regions.ParseRecord(b)
	}
	global := accept.Mode(s.cfg.Acceptance) == accept.ModeGlobal
	if err == nil && r.Dissolved {
		if global {
			return &RegionError{Region: string(r.Region), Acceptance: s.cfg.Acceptance, Ours: s.cfg.Region, Dissolved: true}
		}
		return nil
	}
	if err == nil && global && string(r.Region) == s.cfg.Region {
		return nil
	} else if err != nil && (global || errors.Is(err, record.ErrNewerVersion)) {
		return fmt.Errorf("which region is the bucket? %w", err)
	}
	return &RegionError{Region: string(r.Region), Acceptance: s.cfg.Acceptance, Ours: s.cfg.Region}
}
