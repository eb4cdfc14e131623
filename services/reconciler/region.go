package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// RegionError says that the bucket is that of a region which this reconciler's settings do not fit. It stays not ready until they do:
// without the region it would count what another region counts, and with another one release claims whose manifests are elsewhere.
type RegionError struct {
	// Region of the bucket, by its record.
	Region claims.Region
	// Ours is the setting; "" where there is none.
	Ours claims.Region
	// Dissolved: the identity linearizer has ended, and the bucket is an authority of its own.
	Dissolved bool
}

func (e *RegionError) Error() string {
	switch {
	case e.Dissolved:
		return fmt.Sprintf("the bucket was that of region %s, whose identity linearizer was dissolved: reconciler.region must not be set any more (docs/guide/regions.md#going-back)", e.Region)
	case e.Ours == "":
		return fmt.Sprintf("the bucket is that of region %s, where the identity linearizer says what counts: set reconciler.region (docs/guide/reconciler.md#several-regions)", e.Region)
	}
	return fmt.Sprintf("the bucket is that of region %s, and this reconciler is set to region %s", e.Region, e.Ours)
}

// errRegionChanged ends a life that began over an authority of its own, which was a region's in between.
var errRegionChanged = errors.New("the record of the bucket's region has changed")

// unfit reports that a life may not go on over the bucket.
func unfit(err error) bool {
	var e *RegionError
	return errors.As(err, &e) || errors.Is(err, errRegionChanged)
}

// openRegion compares the record of the bucket's region with the setting. It gives the judge of a bucket that was a region's, and nil
// of any other. Errors: *RegionError; record.ErrCorrupt and record.ErrNewerVersion, since what can't be read may be of any region; what
// the store answers.
func openRegion(ctx context.Context, s objstore.Getter, ours claims.Region, log *slog.Logger) (judge, error) {
	r, _, err := record.Read(ctx, s, layout.RegionsKey, regions.Kind, regions.ParseRecord)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil, nil // no region yet, or none of several
	case errors.Is(err, objstore.ErrDenied):
		// A policy of before there were regions: then the bucket is none, unless somebody forgot this grant.
		log.Warn("whether the bucket is one of several regions' can't be told, because the store denies reading the record", "key", layout.RegionsKey, "page", "docs/guide/permissions.md")
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("which region is the bucket? %w", err)
	case r.Dissolved && ours == "":
		return formerRegion{s}, nil
	case r.Dissolved || r.Region != ours:
		return nil, &RegionError{Region: r.Region, Ours: ours, Dissolved: r.Dissolved}
	}
	return nil, nil
}

// refit is openRegion in the middle of a life, before it enters or changes what only the right settings may: a region may have been
// added, and the linearizer dissolved, since the life began. former says that it began over a bucket that was a region's.
func (k *journalKeeper) refit(ctx context.Context, former bool) error {
	j, err := openRegion(ctx, k.store, k.cfg.Region, slog.New(slog.DiscardHandler)) // the life has said what is denied
	if err == nil && (j != nil) != former {
		return errRegionChanged
	}
	return err
}

// misfit is why this reconciler's settings do not fit the bucket; nil while they do.
func (k *journalKeeper) misfit() error {
	if e := k.unfitting.Load(); e != nil {
		return e
	}
	return nil
}
