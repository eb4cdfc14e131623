package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Where the block of an hour beside can't be read, the identity manifests tell who
// overlaps: a rival is an accepted batch, published or not. So a damaged hour does not
// hold up the hours beside it.

// rivalsAccepted makes accepted batches with samples in beside that overlap the pending
// ones of h inputs of h, and those inputs of beside.
func (o *owner) rivalsAccepted(ctx context.Context, pend []accepted.Batch, beside, h timegrid.Hour) error {
	for i := 0; i < len(pend); {
		boot, end := pend[i].Identity.BootOf(), pend[i].SeqEnd
		j := i
		for ; j < len(pend) && pend[j].Identity.BootOf() == boot; j++ {
			end = max(end, pend[j].SeqEnd)
		}
		if err := o.overlaps(ctx, boot, pend[i:j], end, beside, h); err != nil {
			return err
		}
		i = j
	}
	return nil
}

// overlaps lists the accepted batches of one boot that may overlap; pend is in their order.
func (o *owner) overlaps(ctx context.Context, boot identity.Boot, pend []accepted.Batch, end uint64, beside, h timegrid.Hour) error {
	prefix := layout.AcceptedBoot(boot)
	from := pend[0].SeqStart - min(pend[0].SeqStart, uint64(frame.DefaultLimits().Records))
	for i, err := range objstore.List(ctx, o.s.store, objstore.ListOptions{Prefix: prefix, StartAfter: prefix + layout.SeqName(from, 0)}) {
		if err != nil {
			return fmt.Errorf("list %q: %w", prefix, err)
		}
		id, err := layout.ParseAccepted(i.Key)
		if err != nil {
			continue // foreign, or of a boot whose name goes on
		}
		if id.SeqStart > end {
			return nil
		}
		var mine []accepted.Batch
		for _, e := range pend {
			if e.Identity != id && e.Identity.Intersects(id) {
				mine = append(mine, e)
			}
		}
		if len(mine) == 0 || slices.ContainsFunc(pend, func(e accepted.Batch) bool { return e.Identity == id }) {
			continue
		}
		e, err := o.s.acceptedEntry(ctx, id)
		if err != nil {
			return err
		}
		if first, last := e.Hours(); beside < first || beside > last {
			continue
		}
		o.log.join(e, h, o.s.now())
		for _, m := range mine {
			o.log.need(o.log.batches[m.Identity], beside, o.s.now())
		}
	}
	return nil
}

// joinAccepted makes published batches of another hour inputs of h when the plan that has
// their entries can't be read.
func (o *owner) joinAccepted(ctx context.Context, ids []identity.Batch, h timegrid.Hour) error {
	for _, id := range ids {
		e, err := o.s.acceptedEntry(ctx, id)
		if errors.Is(err, objstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		o.log.join(e, h, o.s.now())
	}
	return nil
}

// acceptedEntry is what the identity manifest says of a batch.
func (s *Service) acceptedEntry(ctx context.Context, id identity.Batch) (accepted.Batch, error) {
	key := layout.Accepted(id)
	b, _, err := s.store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxRecordBytes})
	if err != nil {
		return accepted.Batch{}, fmt.Errorf("read %q: %w", key, err)
	}
	m, err := accept.ParseManifest(b)
	if err != nil {
		return accepted.Batch{}, fmt.Errorf("read %q: %w", key, err)
	}
	return m.Batch(), nil
}
