package regions

import (
	"cmp"
	"context"
	"slices"

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
	return cmp.Or(o.stamp.Compare(m.stamp), cmp.Compare(m.at, o.at), cmp.Compare(m.region, o.region), m.id.Compare(o.id))
}

// Bounds of what is in memory at once: so many boots, and no further one once there are so many manifests, or so many identities that are
// folded.
const (
	scanBoots     = 64
	scanManifests = 8192
	scanEntries   = 1 << 20
	// scanAhead pages of listings that are read before they are asked for, and how many manifests each has: those that are not folded of
	// a boot that is active, and some of the next boot.
	scanAhead, scanAheadPage = 512, 256
	// scanWorth is how many manifests of a run are worth a page that is read ahead: listings go on one page after the other.
	scanWorth = 32
)

// scanned is what a scan knows of a boot.
type scanned struct {
	boot identity.Boot
	// folded is nil where nothing is.
	folded *foldedBoot
	// ids of the manifests that count, by region, and then what they say.
	ids   map[claims.Region][]identity.Batch
	found []manifest
}

// scan reads the manifests of all regions of an epoch and calls fn for each boot, in order, with what all of them have and no fold has. The
// manifests of one boot are in memory at once, some 200 bytes each; and what is folded of it, some 60 bytes an identity, while it is made
// into runs. Every region has the folds of all boots then.
//
// What regions that join have prepared is folded with it, where nothing contradicts it.
func (k *Keeper) scan(ctx context.Context, e claims.Epoch, retired, joining []claims.Region, fn func(context.Context, []manifest) error) error {
	s := &scanner{k: k, epoch: e, homes: homes(e, retired), joining: joining, looker: folds.NewLooker(k.Folder(e, retired), 0)}
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.stop()
	for {
		boots, err := s.take(ctx)
		if err != nil || len(boots) == 0 {
			return err
		}
		if err := k.read(ctx, s.lists, boots); err != nil {
			return err
		}
		if err := s.raise(ctx, boots); err != nil {
			return err
		}
		for _, b := range boots {
			if err := fn(ctx, b.found); err != nil {
				return err
			}
		}
	}
}

// scanner goes through the boots of all regions: those that have folds, which the heads name, and those that listings of manifests show.
type scanner struct {
	k      *Keeper
	epoch  claims.Epoch
	homes  folds.Homes
	looker *folds.Looker
	// joining are regions of which not everything that was prepared is folded; one that was retired meanwhile may be among them.
	joining []claims.Region
	// dry: nothing is written, and only the listed regions' manifests are counted.
	dry    bool
	listed []claims.Region
	lists  []*listing
	heads  []*headList
	// waiting are the heads of boots that there was no room for yet.
	waiting []bootHeads
	// group are the next boots with folds. Boots up to the last of them may be taken; all, once there are no more heads.
	group []*foldedBoot
	bound string
	all   bool
}

// begin begins all listings.
func (s *scanner) begin(ctx context.Context) error {
	for _, r := range s.k.cfg.Regions {
		if s.epoch.Retired(r.Name) {
			continue
		}
		s.heads = append(s.heads, newHeadList(ctx, r))
		for _, n := range s.joining {
			// What is prepared lies in the region's own bucket. The others have the boots, which are needed where it is gone; those of regions that
			// were added to the settings since are completed.
			s.heads = append(s.heads, newPreparedList(ctx, r, n))
		}
		if !s.dry || slices.Contains(s.listed, r.Name) {
			s.lists = append(s.lists, newListing(r))
		}
	}
	for _, l := range s.lists {
		if err := l.advance(ctx, nil); err != nil {
			s.stop()
			return err
		}
	}
	for _, h := range s.heads {
		if err := h.advance(); err != nil {
			s.stop()
			return err
		}
	}
	return nil
}

func (s *scanner) stop() {
	for _, h := range s.heads {
		h.stop()
	}
}

// take takes the next boots.
func (s *scanner) take(ctx context.Context) (boots []*scanned, err error) {
	for n := 0; len(boots) < scanBoots && n < scanManifests; {
		at, ok := s.next()
		if !ok && s.all {
			break
		}
		if !ok {
			if err := s.load(ctx); err != nil {
				return nil, err
			}
			continue
		}
		b, err := s.boot(ctx, at)
		if err != nil {
			return nil, err
		}
		for _, ids := range b.ids {
			n += len(ids)
		}
		boots = append(boots, b)
	}
	return boots, nil
}

// boot lists the manifests of the boot that is next. Regions that have prepared something of it come last: what the others have is known then.
func (s *scanner) boot(ctx context.Context, at string) (*scanned, error) {
	b := &scanned{ids: map[claims.Region][]identity.Batch{}}
	if len(s.group) > 0 && s.group[0].at == at {
		b.folded, b.boot = s.group[0], s.group[0].boot
		s.group = s.group[1:]
	}
	var prepared []*listing
	for _, l := range s.lists {
		if b.folded.preparedOf(l.Name) != nil {
			prepared = append(prepared, l)
		} else if err := b.list(ctx, l, at, b.folded); err != nil {
			return nil, err
		}
	}
	b.contest(s.lists)
	if len(prepared) > 1 {
		return b, b.contestPrepared(ctx, prepared, at)
	}
	for _, l := range prepared {
		if err := b.list(ctx, l, at, b.folded.passed(b.folded.preparedOf(l.Name))); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// list takes the manifests of the boot that a region has, but for those that are passed over.
func (b *scanned) list(ctx context.Context, l *listing, at string, over *foldedBoot) error {
	for l.more && l.boot() == at {
		if b.boot == (identity.Boot{}) {
			b.boot = l.id.BootOf()
		}
		// What is folded was decided and settled. So was, for another frame, whatever else shares its sequence numbers.
		if !over.has(l.id) {
			// One copy of the names for all.
			id := l.id
			id.Agent, id.Boot = b.boot.Agent, b.boot.Boot
			b.ids[l.Name] = append(b.ids[l.Name], id)
		}
		if err := l.advance(ctx, over); err != nil {
			return err
		}
	}
	return nil
}

// next is where the next boot is that may be taken.
func (s *scanner) next() (at string, ok bool) {
	if len(s.group) > 0 {
		at, ok = s.group[0].at, true
	}
	for _, l := range s.lists {
		if l.more && (s.all || l.boot() <= s.bound) && (!ok || l.boot() < at) {
			at, ok = l.boot(), true
		}
	}
	return at, ok
}

// load reads what is folded of the next boots that have folds.
func (s *scanner) load(ctx context.Context) (err error) {
	if len(s.waiting) == 0 {
		boots, err := s.nextFolded()
		if err != nil {
			return err
		}
		if len(boots) == 0 {
			s.all = true
			return nil
		}
		if s.waiting, err = s.readHeads(ctx, boots); err != nil {
			return err
		}
	}
	n := fitting(s.waiting)
	if err := s.readParts(ctx, s.waiting[:n]); err != nil {
		return err
	}
	for _, b := range s.waiting[:n] {
		s.group = append(s.group, b.foldedBoot)
	}
	s.bound, s.waiting = s.waiting[n-1].at, s.waiting[n:]
	return s.listAhead(ctx)
}

// nextFolded are the next boots that have folds, or something that is prepared.
func (s *scanner) nextFolded() (boots []*foldedBoot, err error) {
	for len(boots) < scanBoots {
		at := ""
		for _, h := range s.heads {
			if h.more && (at == "" || h.at < at) {
				at = h.at
			}
		}
		if at == "" {
			break
		}
		b, known := &foldedBoot{at: at, present: map[claims.Region][]identity.Digest{}, marked: map[claims.Region][]claims.Region{}}, false
		for _, h := range s.heads {
			if !h.more || h.at != at {
				continue
			}
			known = b.takes(h, s.epoch) || known
			if err := h.advance(); err != nil {
				return nil, err
			}
		}
		// Parts without a head are of a region that was prepared, and takes no part.
		if known {
			boots = append(boots, b)
		}
	}
	return boots, nil
}

// listAhead reads the pages that follow runs, all at once.
func (s *scanner) listAhead(ctx context.Context) error {
	type page struct {
		l     *listing
		after string
	}
	var pages []page
	for _, l := range s.lists {
		l.ahead = map[string]objstore.Page{}
		for _, b := range s.group {
			if p := b.preparedOf(l.Name); p != nil && len(b.prepared) == 1 {
				b = b.passed(p)
			}
			for _, r := range b.runs {
				if r.of[l.Name] > scanWorth && len(pages) < scanAhead {
					pages = append(pages, page{l, b.behind(layout.AcceptedPrefix, r)})
				}
			}
		}
	}
	got := make([]objstore.Page, len(pages))
	if err := s.k.each(len(pages), func(i int) (err error) {
		got[i], err = pages[i].l.list(ctx, pages[i].after, scanAheadPage)
		return err
	}); err != nil {
		return err
	}
	for i, p := range pages {
		p.l.ahead[p.after] = got[i]
	}
	return nil
}

// read reads the manifests of boots that count, with the highest stamp that they stand for.
func (k *Keeper) read(ctx context.Context, lists []*listing, boots []*scanned) error {
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
			ids := b.ids[l.Name]
			if len(ids) == 0 {
				continue
			}
			at := len(b.found)
			b.found = append(b.found, make([]manifest, len(ids))...)
			jobs = append(jobs, one{b, l.Region, ids, at})
			for i := range ids {
				reads = append(reads, one{b, l.Region, ids[i : i+1], at + i})
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
		affirmed, err := j.affirmed(ctx, j.of.folded, j.ids)
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
		b.found = slices.DeleteFunc(b.found, func(m manifest) bool { return !b.folded.allows(m.id, m.hash) })
	}
	return nil
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
