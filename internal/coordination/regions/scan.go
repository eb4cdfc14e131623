package regions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// manifest is what a recovery knows of an identity manifest.
type manifest struct {
	id     identity.Batch
	hash   identity.Digest
	region claims.Region
	// stamp is the highest of the manifest's own and of its affirmations.
	stamp accepted.Stamp
	// at is the time of acceptance, Unix nanoseconds. It decides only between manifests of no claim, from before there was a
	// linearizer.
	at int64
}

// before orders by descending stamp.
func (m manifest) before(o manifest) int {
	return cmp.Or(o.stamp.Compare(m.stamp), cmp.Compare(m.at, o.at), cmp.Compare(m.region, o.region), cmp.Compare(m.id.SeqStart, o.id.SeqStart))
}

// listing is the manifests of a region, one ahead.
type listing struct {
	Region
	next func() (objstore.Info, error, bool)
	stop func()
	id   identity.Batch // that comes next
	more bool
}

func (l *listing) advance(ctx context.Context) error {
	info, err, ok := l.next()
	if l.more = ok; !ok {
		return nil
	}
	if err == nil {
		l.id, err = layout.ParseAccepted(info.Key)
	}
	if err != nil {
		return &RegionError{"list manifests", l.Name, err}
	}
	return nil
}

// boot is what the keys of its boot begin with: listings are in the order of these.
func (l *listing) boot() string { return layout.AcceptedBoot(l.id.BootOf()) }

// scan reads the manifests of all these regions and calls fn for each boot, in order, with what all of them have. The manifests
// of one boot at a time are in memory, some 200 bytes each.
func (k *Keeper) scan(ctx context.Context, regions []claims.Region, fn func(context.Context, []manifest) error) error {
	var lists []*listing
	for _, r := range k.cfg.Regions {
		if !slices.Contains(regions, r.Name) {
			continue
		}
		l := &listing{Region: r}
		l.next, l.stop = iter.Pull2(objstore.List(ctx, r.Store, objstore.ListOptions{Prefix: layout.AcceptedPrefix}))
		defer l.stop()
		lists = append(lists, l)
		if err := l.advance(ctx); err != nil {
			return err
		}
	}
	for {
		boot := ""
		for _, l := range lists {
			if l.more && (boot == "" || l.boot() < boot) {
				boot = l.boot()
			}
		}
		if boot == "" {
			return nil
		}
		var found []manifest
		for _, l := range lists {
			if !l.more || l.boot() != boot {
				continue
			}
			got, err := l.ofBoot(ctx, boot)
			if err != nil {
				return err
			}
			found = append(found, got...)
		}
		if err := fn(ctx, found); err != nil {
			return err
		}
	}
}

// ofBoot reads the manifests of a boot, with the highest stamp that they stand for.
func (l *listing) ofBoot(ctx context.Context, boot string) ([]manifest, error) {
	affirmed := map[identity.Batch]accepted.Stamp{}
	prefix := layout.AffirmedPrefix + strings.TrimPrefix(boot, layout.AcceptedPrefix)
	for info, err := range objstore.List(ctx, l.Store, objstore.ListOptions{Prefix: prefix}) {
		if err != nil {
			return nil, &RegionError{"list affirmations", l.Name, err}
		}
		id, s, err := layout.ParseAffirmation(info.Key)
		if err != nil {
			return nil, &RegionError{"list affirmations", l.Name, err}
		}
		if s.Compare(affirmed[id]) > 0 {
			affirmed[id] = s
		}
	}
	var found []manifest
	for l.more && l.boot() == boot {
		m, err := l.read(ctx)
		if err != nil {
			return nil, &RegionError{"read a manifest", l.Name, err}
		}
		if s := affirmed[m.id]; s.Compare(m.stamp) > 0 {
			m.stamp = s
		}
		found = append(found, m)
		if err := l.advance(ctx); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// read reads the manifest that comes next. One that can't be read stops the recovery: to leave it out could give its identity
// to another frame.
func (l *listing) read(ctx context.Context) (manifest, error) {
	key := layout.Accepted(l.id)
	b, _, err := l.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return manifest{}, fmt.Errorf("%q was listed, and is not there: %w", key, err)
	}
	if err != nil {
		return manifest{}, err
	}
	m, err := accept.ParseManifest(b)
	if err == nil && m.Identity != l.id {
		err = accept.ManifestKind.Corrupt(key, "it names the identity %s", m.Identity)
	}
	if err != nil {
		return manifest{}, accept.ManifestKind.Wrap(key, err)
	}
	return manifest{id: m.Identity, hash: m.FrameSHA256, region: l.Name, stamp: m.Stamp(), at: m.AcceptedAt}, nil
}
