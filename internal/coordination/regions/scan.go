package regions

import (
	"cmp"
	"context"
	"iter"
	"slices"
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

// Bounds of what is in memory at once: so many boots, and no further one once there are so many manifests.
const (
	scanBoots     = 64
	scanManifests = 8192
)

// scanned is what a scan knows of a boot.
type scanned struct {
	boot identity.Boot
	// ids of the manifests, by region; then those that meet nothing that is folded.
	ids    map[claims.Region][]identity.Batch
	folded []folds.Entry
	found  []manifest
}

// scan reads the manifests of all regions of an epoch and calls fn for each boot, in order, with what all of them have and no fold has. The
// manifests of one boot are in memory at once, some 200 bytes each, and what is folded of it, some 60.
func (k *Keeper) scan(ctx context.Context, e claims.Epoch, fn func(context.Context, []manifest) error) error {
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
	looker := folds.NewLooker(k.Folder(e), 0)
	for {
		boots, err := take(ctx, lists)
		if err != nil || len(boots) == 0 {
			return err
		}
		// What is folded was decided and settled. So was, for another frame, whatever else shares its sequence numbers.
		// Only what had its home in a region that was retired since may be accepted anew, or be there as a copy.
		if err := k.each(len(boots), func(i int) (err error) {
			boots[i].folded, err = looker.All(ctx, boots[i].boot)
			return err
		}); err != nil {
			return err
		}
		if err := k.read(ctx, e, lists, boots); err != nil {
			return err
		}
		for _, b := range boots {
			if err := fn(ctx, b.found); err != nil {
				return err
			}
		}
	}
}

// take takes the next boots off the lists.
func take(ctx context.Context, lists []*listing) (boots []*scanned, err error) {
	for n := 0; len(boots) < scanBoots && n < scanManifests; {
		boot := ""
		for _, l := range lists {
			if l.more && (boot == "" || l.boot() < boot) {
				boot = l.boot()
			}
		}
		if boot == "" {
			break
		}
		b := &scanned{ids: map[claims.Region][]identity.Batch{}}
		for _, l := range lists {
			for l.more && l.boot() == boot {
				if n++; b.boot == (identity.Boot{}) {
					b.boot = l.id.BootOf()
				}
				// One copy of the names for all.
				l.id.Agent, l.id.Boot = b.boot.Agent, b.boot.Boot
				b.ids[l.Name] = append(b.ids[l.Name], l.id)
				if err := l.advance(ctx); err != nil {
					return nil, err
				}
			}
		}
		boots = append(boots, b)
	}
	return boots, nil
}

// read reads the manifests of boots that meet nothing that is folded, with the highest stamp that they stand for.
func (k *Keeper) read(ctx context.Context, epoch claims.Epoch, lists []*listing, boots []*scanned) error {
	type one struct {
		of *scanned
		Region
		ids []identity.Batch
		at  int // of the first manifest
	}
	var jobs []one  // a boot in a region
	var reads []one // a manifest
	for _, b := range boots {
		for _, l := range lists {
			left := slices.DeleteFunc(b.ids[l.Name], func(id identity.Batch) bool {
				e, exact := folds.Exact(b.folded, id)
				return folds.Meet(b.folded, id) && !(exact && epoch.Retired(e.Home))
			})
			if len(left) == 0 {
				continue
			}
			at := len(b.found)
			b.found = append(b.found, make([]manifest, len(left))...)
			jobs = append(jobs, one{b, l.Region, left, at})
			for i := range left {
				reads = append(reads, one{b, l.Region, left[i : i+1], at + i})
			}
		}
	}
	if err := k.each(len(reads), func(i int) (err error) {
		r := reads[i]
		if r.of.found[r.at], err = r.manifest(ctx, r.ids[0]); err != nil {
			return &RegionError{"read a manifest", r.Name, err}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := k.each(len(jobs), func(i int) error {
		j := jobs[i]
		affirmed, err := j.affirmed(ctx, j.of.boot)
		if err != nil {
			return &RegionError{"list affirmations", j.Name, err}
		}
		for n := range j.ids {
			m := &j.of.found[j.at+n]
			if s := affirmed[m.id]; s.Compare(m.stamp) > 0 {
				m.stamp = s
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for _, b := range boots {
		b.found = slices.DeleteFunc(b.found, func(m manifest) bool {
			e, exact := folds.Exact(b.folded, m.id)
			return exact && e.Digest != folds.DigestOf(m.hash)
		})
	}
	return nil
}

// affirmed are the highest stamps that manifests of a boot are affirmed with.
func (r Region) affirmed(ctx context.Context, boot identity.Boot) (map[identity.Batch]accepted.Stamp, error) {
	affirmed := map[identity.Batch]accepted.Stamp{}
	prefix := layout.AffirmedPrefix + strings.TrimPrefix(layout.AcceptedBoot(boot), layout.AcceptedPrefix)
	for info, err := range objstore.List(ctx, r.Store, objstore.ListOptions{Prefix: prefix}) {
		if err != nil {
			return nil, err
		}
		id, s, err := layout.ParseAffirmation(info.Key)
		if err != nil {
			return nil, err
		}
		if s.Compare(affirmed[id]) > 0 {
			affirmed[id] = s
		}
	}
	return affirmed, nil
}

// manifest reads a manifest. One that can't be read stops the recovery: to leave it out could give its identity to another frame.
func (r Region) manifest(ctx context.Context, id identity.Batch) (manifest, error) {
	m, err := readManifest(ctx, r.Store, id)
	return manifest{id: id, hash: m.FrameSHA256, region: r.Name, stamp: m.Stamp(), at: m.AcceptedAt}, err
}

// each does n things, and gives the first error of them in their order.
func (k *Keeper) each(n int, fn func(i int) error) error {
	errs := make([]error, n)
	k.cfg.Parallel(n, func(i int) bool {
		errs[i] = fn(i)
		return errs[i] == nil
	})
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
