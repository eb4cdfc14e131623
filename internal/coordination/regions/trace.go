package regions

import (
	"context"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Kinds of records of an identity.
const (
	KindManifest    = "MANIFEST"
	KindAffirmation = "AFFIRMATION"
	KindQuarantine  = "QUARANTINE"
)

// MaxTrace bounds the records of a region that a trace reads.
const MaxTrace = 1000

// Found is a record of an identity in the bucket of a region.
type Found struct {
	Region   claims.Region
	Key      string
	Kind     string
	Identity identity.Batch
	Hash     identity.Digest
	Stamp    identity.Stamp
	// At by the clock of whoever wrote it, Unix nanoseconds; 0: it does not say.
	At int64
	// Err is why it can't be read.
	Err error
}

// Trace reads the records of the identities of a boot that begin within a range of sequence numbers, in all regions, by descending
// stamp. unread are regions whose buckets did not answer.
func (k *Keeper) Trace(ctx context.Context, id identity.Batch) (found []Found, unread []*RegionError) {
	for _, r := range k.cfg.Regions {
		got, err := r.trace(ctx, id)
		found = append(found, got...)
		if err != nil {
			unread = append(unread, &RegionError{"trace", r.Name, err})
		}
	}
	slices.SortStableFunc(found, func(a, b Found) int { return b.Stamp.Compare(a.Stamp) })
	return found, unread
}

func (r Region) trace(ctx context.Context, id identity.Batch) (found []Found, err error) {
	for _, prefix := range []string{layout.AcceptedPrefix, layout.AffirmedPrefix, layout.QuarantinePrefix} {
		o := objstore.ListOptions{Prefix: layout.OfBoot(prefix, id.BootOf()), StartAfter: layout.BootFrom(prefix, id.BootOf(), id.SeqStart)}
		for info, err := range objstore.List(ctx, r.Store, o) {
			if err != nil {
				return found, err
			}
			f := r.found(ctx, prefix, info.Key)
			if f.Err == nil && f.Identity.SeqStart > id.SeqEnd {
				break
			}
			if len(found) == MaxTrace {
				return found, fmt.Errorf("more than %d records", MaxTrace)
			}
			found = append(found, f)
		}
	}
	return found, nil
}

// found reads one record as far as its kind needs it.
func (r Region) found(ctx context.Context, prefix, key string) Found {
	f := Found{Region: r.Name, Key: key}
	get := func() []byte {
		b, _, err := r.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
		f.Err = err
		return b
	}
	switch prefix {
	case layout.AcceptedPrefix:
		f.Kind = KindManifest
		if f.Identity, f.Err = layout.ParseAccepted(key); f.Err != nil {
			break
		}
		if b := get(); f.Err == nil {
			var m accept.Manifest
			m, f.Err = accept.ParseManifest(b)
			f.Hash, f.Stamp, f.At = m.FrameSHA256, m.Stamp(), m.AcceptedAt
		}
	case layout.AffirmedPrefix:
		f.Kind = KindAffirmation
		f.Identity, f.Stamp, f.Err = layout.ParseAffirmation(key)
		if f.Err != nil {
			break
		}
		if b := get(); f.Err == nil {
			var a accept.Affirmation
			a, f.Err = accept.ParseAffirmation(b)
			f.Hash = a.FrameSHA256
		}
	default:
		f.Kind = KindQuarantine
		f.Identity, f.Hash, f.Err = layout.ParseQuarantine(key)
		if f.Err != nil {
			break
		}
		if b := get(); f.Err == nil {
			var c accept.ConflictRecord
			c, f.Err = accept.ParseConflictRecord(b)
			f.At = c.ObservedAt
		}
	}
	return f
}
