package regions

import (
	"cmp"
	"context"
	"iter"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
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

// scan reads the manifests of all these regions and calls fn for each boot, in order, with what all of them have and no fold has. The
// manifests of one boot at a time are in memory, some 200 bytes each, and what is folded of it, some 60.
func (k *Keeper) scan(ctx context.Context, e claims.Epoch, fn func(context.Context, []manifest) error) error {
	looker := folds.NewLooker(k.Folder(e), 0)
	var lists []*listing
	for _, r := range k.cfg.Regions {
		if e.Retired(r.Name) {
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
		boot, of := "", identity.Boot{}
		for _, l := range lists {
			if l.more && (boot == "" || l.boot() < boot) {
				boot, of = l.boot(), l.id.BootOf()
			}
		}
		if boot == "" {
			return nil
		}
		// What is folded was decided and settled. So was, for another frame, whatever else shares its sequence numbers.
		folded, err := looker.All(ctx, of)
		if err != nil {
			return err
		}
		var found []manifest
		for _, l := range lists {
			if !l.more || l.boot() != boot {
				continue
			}
			got, err := l.ofBoot(ctx, boot, folded)
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

// ofBoot reads the manifests of a boot that meet nothing that is folded, with the highest stamp that they stand for.
func (l *listing) ofBoot(ctx context.Context, boot string, folded []folds.Entry) ([]manifest, error) {
	var found []manifest
	for l.more && l.boot() == boot {
		if !folds.Meet(folded, l.id) {
			m, err := l.read(ctx)
			if err != nil {
				return nil, &RegionError{"read a manifest", l.Name, err}
			}
			found = append(found, m)
		}
		if err := l.advance(ctx); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
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
	for i := range found {
		if s := affirmed[found[i].id]; s.Compare(found[i].stamp) > 0 {
			found[i].stamp = s
		}
	}
	return found, nil
}

// read reads the manifest that comes next. One that can't be read stops the recovery: to leave it out could give its identity
// to another frame.
func (l *listing) read(ctx context.Context) (manifest, error) {
	m, err := readManifest(ctx, l.Store, l.id)
	return manifest{id: l.id, hash: m.FrameSHA256, region: l.Name, stamp: m.Stamp(), at: m.AcceptedAt}, err
}
