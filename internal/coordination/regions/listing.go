package regions

import (
	"context"
	"fmt"
	"iter"
	"math"
	"sort"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// foldedBoot is a boot that has folds, as far as a recovery needs them. A nil one has none.
type foldedBoot struct {
	boot identity.Boot
	at   string // what the keys of its manifests begin with: boots are in the order of these
	// runs of sequence numbers without gaps that are folded with a home that takes part, in order. What begins in one of them was decided,
	// or lost, whatever it is.
	runs []run
	// lost are the entries whose home was retired: of such an identity other regions may have a copy, or have accepted it since.
	lost []folds.Entry

	// touched: a recovery may have written to the boot's heads that was overtaken. joins are the regions that have prepared something of it,
	// prepared what that is, and present the parts that regions have, named by their heads or not. Heads that are to be moved are standing.
	touched bool
	joins   []claims.Region
	// marked are the buckets that have the boot among those that a region has prepared.
	marked   map[claims.Region][]claims.Region
	prepared []*preparedBoot
	present  map[claims.Region][]identity.Digest
	standing *folds.Standing
}

// run is a range of sequence numbers, and how many identities of it have their home where.
type run struct {
	start, end uint64
	of         map[claims.Region]int
}

// of makes runs of entries, which are in order.
func (b *foldedBoot) of(entries []folds.Entry, epoch claims.Epoch) {
	for _, e := range entries {
		if epoch.Retired(e.Home) {
			b.lost = append(b.lost, e)
			continue
		}
		if n := len(b.runs); n > 0 && b.runs[n-1].end != math.MaxUint64 && b.runs[n-1].end+1 == e.Start {
			b.runs[n-1].end = e.End
		} else {
			b.runs = append(b.runs, run{e.Start, e.End, map[claims.Region]int{}})
		}
		b.runs[len(b.runs)-1].of[e.Home]++
	}
}

// from is the first run that ends at a sequence number or later.
func (b *foldedBoot) from(seq uint64) int {
	return sort.Search(len(b.runs), func(i int) bool { return b.runs[i].end >= seq })
}

// meets reports whether an identity shares sequence numbers with one that is folded.
func (b *foldedBoot) meets(id identity.Batch) bool {
	if b == nil {
		return false
	}
	i := b.from(id.SeqStart)
	return i < len(b.runs) && b.runs[i].start <= id.SeqEnd || folds.Meet(b.lost, id)
}

// has reports whether a manifest of the boot says nothing that is not decided: it meets something that is folded, and is no copy of what a
// retired region had.
func (b *foldedBoot) has(id identity.Batch) bool {
	if !b.meets(id) {
		return false
	}
	_, exact := folds.Exact(b.lost, id)
	return !exact
}

// allows reports whether the identity may have the hash: what is folded with a retired home is decided for its own.
func (b *foldedBoot) allows(id identity.Batch, hash identity.Digest) bool {
	if b == nil {
		return true
	}
	e, exact := folds.Exact(b.lost, id)
	return !exact || e.Digest == folds.DigestOf(hash)
}

// below is the number behind everything that is folded below a sequence number.
func (b *foldedBoot) below(seq uint64) (from uint64) {
	if i := b.from(seq); i > 0 {
		from = b.runs[i-1].end + 1
	}
	for _, e := range b.lost {
		if e.End < seq {
			from = max(from, e.End+1)
		}
	}
	return from
}

// inside is the run that a sequence number is in.
func (b *foldedBoot) inside(seq uint64) (run, bool) {
	if b == nil {
		return run{}, false
	}
	i := b.from(seq)
	if i == len(b.runs) || b.runs[i].start > seq {
		return run{}, false
	}
	return b.runs[i], true
}

// behind lies behind all keys of the boot under a prefix whose batches begin in the run, or before it, and before all others.
func (b *foldedBoot) behind(prefix string, r run) string {
	if r.end == math.MaxUint64 {
		return layout.BootEnd(prefix, b.boot)
	}
	return layout.BootFrom(prefix, b.boot, r.end+1)
}

// bootHeads are the heads of a boot: what is folded, and then what each region that joins has prepared.
type bootHeads struct {
	*foldedBoot
	heads []folds.Head
	// lists are the entries of each head's parts, and behind them those of its tail.
	lists [][][]folds.Entry
}

func (h *bootHeads) count() (n uint64) {
	for _, one := range h.heads {
		n += one.Count()
	}
	return n
}

// readFolds reads what is folded of boots, and what is prepared, of all of them at once.
func (s *scanner) readFolds(ctx context.Context, boots []*foldedBoot) error {
	all, err := s.readHeads(ctx, boots)
	for err == nil && len(all) > 0 {
		n := fitting(all)
		err = s.readParts(ctx, all[:n])
		all = all[n:]
	}
	return err
}

// fitting is how many of these boots there is room for at once, one at least.
func fitting(all []bootHeads) int {
	n, size := 1, all[0].count()
	for n < len(all) && size+all[n].count() <= scanEntries {
		size += all[n].count()
		n++
	}
	return n
}

// readHeads reads the heads of boots. Each region has to answer, and has the folds of all of them then, or will have them when they are raised.
func (s *scanner) readHeads(ctx context.Context, boots []*foldedBoot) ([]bootHeads, error) {
	all := make([]bootHeads, len(boots))
	err := s.k.each(len(boots), func(i int) (err error) {
		all[i], err = s.readHead(ctx, boots[i])
		return err
	})
	return all, err
}

func (s *scanner) readHead(ctx context.Context, b *foldedBoot) (h bootHeads, err error) {
	h = bootHeads{foldedBoot: b, heads: make([]folds.Head, 1+len(b.joins))}
	if !b.touched && !s.dry {
		h.heads[0], err = s.looker.Everywhere(ctx, b.boot)
		return h, err
	}
	if b.standing, err = s.looker.Folder().Stand(ctx, b.boot); err != nil {
		return h, err
	}
	h.heads[0] = b.standing.Head
	for i, r := range b.joins {
		if h.heads[1+i], err = folds.ReadPrepared(ctx, s.k.store(r), r, b.boot); err != nil {
			return h, &RegionError{"read what is prepared", r, err}
		}
	}
	return h, nil
}

func (s *scanner) readParts(ctx context.Context, boots []bootHeads) error {
	type one struct{ boot, head, part int }
	var parts []one
	for i := range boots {
		b := &boots[i]
		b.lists = make([][][]folds.Entry, len(b.heads))
		for j, h := range b.heads {
			b.lists[j] = make([][]folds.Entry, len(h.Parts)+1)
			b.lists[j][len(h.Parts)] = h.Tail
			for n := range h.Parts {
				parts = append(parts, one{i, j, n})
			}
		}
	}
	if err := s.k.each(len(parts), func(i int) (err error) {
		p := parts[i]
		b := &boots[p.boot]
		b.lists[p.head][p.part], err = s.looker.Part(ctx, b.boot, b.heads[p.head].Parts[p.part])
		return err
	}); err != nil {
		return err
	}
	for _, b := range boots {
		entries, err := folds.Merge(s.homes, b.lists[0]...)
		if err != nil {
			return fmt.Errorf("folds of boot %s: %w", b.boot, err)
		}
		b.of(entries, s.epoch)
		for i, r := range b.joins {
			p := &preparedBoot{region: r, parts: b.heads[1+i].Parts, of: b.lists[1+i]}
			if p.entries, err = folds.Merge(s.homes, p.of...); err != nil {
				return fmt.Errorf("what is prepared of boot %s: %w", b.boot, err)
			}
			b.prepared = append(b.prepared, p)
		}
		b.compare()
	}
	return nil
}

// headList is the boots of which a region's bucket has folds, one ahead; or something that is prepared of a region.
type headList struct {
	Region
	// of is the region of what is prepared; empty of folds.
	of   claims.Region
	read func() (folds.Listed, error, bool)
	stop func()
	next folds.Listed
	at   string
	more bool
}

func newHeadList(ctx context.Context, r Region) *headList {
	h := &headList{Region: r}
	h.read, h.stop = iter.Pull2(folds.List(ctx, r.Store))
	return h
}

// newPreparedList lists what the bucket of a region has of what another one, or itself, has prepared.
func newPreparedList(ctx context.Context, r Region, of claims.Region) *headList {
	h := &headList{Region: r, of: of}
	boots := folds.PreparedBoots(ctx, r.Store, of)
	h.read, h.stop = iter.Pull2(func(yield func(folds.Listed, error) bool) {
		for b, err := range boots {
			if !yield(folds.Listed{Boot: b}, err) {
				return
			}
		}
	})
	return h
}

func (h *headList) advance() error {
	next, err, ok := h.read()
	if h.more = ok; !ok {
		return nil
	}
	if err != nil {
		return &RegionError{"list folds", h.Name, err}
	}
	h.next, h.at = next, layout.AcceptedBoot(next.Boot)
	return nil
}

// takes notes what the list has of a boot.
func (b *foldedBoot) takes(h *headList, epoch claims.Epoch) (known bool) {
	b.boot = h.next.Boot
	switch {
	case h.of == "":
		b.present[h.Name] = h.next.Parts
		return h.next.Head
	case h.of == h.Name:
		b.joins = append(b.joins, h.of)
	case !epoch.Retired(h.of):
		// A mark alone, which precedes what it is of: the region has prepared nothing of the boot yet.
		b.marked[h.of] = append(b.marked[h.of], h.Name)
		return false
	}
	b.touched = true
	return true
}

// listing is the manifests of a region, one ahead.
type listing struct {
	Region
	page []objstore.Info
	next string // where the next page begins; empty at the end
	id   identity.Batch
	more bool
	// ahead are pages that were read before they are asked for, by where they begin.
	ahead map[string]objstore.Page
}

func newListing(r Region) *listing { return &listing{Region: r, next: layout.AcceptedPrefix} }

// boot is what the keys of its boot begin with: listings are in the order of these.
func (l *listing) boot() string { return layout.AcceptedBoot(l.id.BootOf()) }

// advance goes on to the next manifest. Behind a run that is folded of its boot the page is taken that was read ahead, if there is one;
// else the next page begins there, if this one ends within the run.
func (l *listing) advance(ctx context.Context, folded *foldedBoot) error {
	behind := ""
	if r, inside := folded.inside(l.id.SeqStart); l.more && inside {
		behind = folded.behind(layout.AcceptedPrefix, r)
		if p, there := l.ahead[behind]; there {
			l.page, l.next = p.Objects, p.Next
			delete(l.ahead, behind)
		}
	}
	for len(l.page) == 0 {
		if l.next == "" {
			l.more = false
			return nil
		}
		p, err := l.list(ctx, max(l.next, behind), 0)
		if err != nil {
			return err
		}
		l.page, l.next = p.Objects, p.Next
	}
	id, err := layout.ParseAccepted(l.page[0].Key)
	if err != nil {
		return &RegionError{"list manifests", l.Name, err}
	}
	l.id, l.more, l.page = id, true, l.page[1:]
	return nil
}

func (l *listing) list(ctx context.Context, after string, limit int) (objstore.Page, error) {
	p, err := l.Store.List(ctx, objstore.ListOptions{Prefix: layout.AcceptedPrefix, StartAfter: after, Limit: limit})
	if err != nil {
		return objstore.Page{}, &RegionError{"list manifests", l.Name, err}
	}
	return p, nil
}

// affirmed are the highest stamps that manifests of a boot are affirmed with. They are in order, and there is at least one.
func (r Region) affirmed(ctx context.Context, folded *foldedBoot, ids []identity.Batch) (map[identity.Batch]accepted.Stamp, error) {
	affirmed := map[identity.Batch]accepted.Stamp{}
	boot, last := ids[0].BootOf(), ids[len(ids)-1].SeqStart
	o := objstore.ListOptions{Prefix: layout.OfBoot(layout.AffirmedPrefix, boot), StartAfter: layout.BootFrom(layout.AffirmedPrefix, boot, ids[0].SeqStart)}
	for {
		p, err := r.Store.List(ctx, o)
		if err != nil {
			return nil, err
		}
		seq := ids[0].SeqStart
		for _, info := range p.Objects {
			id, s, err := layout.ParseAffirmation(info.Key)
			if err != nil {
				return nil, err
			}
			if seq = id.SeqStart; s.Compare(affirmed[id]) > 0 {
				affirmed[id] = s
			}
		}
		if o.StartAfter = p.Next; p.Next == "" || seq > last {
			return affirmed, nil
		}
		if in, inside := folded.inside(seq); inside {
			o.StartAfter = max(p.Next, folded.behind(layout.AffirmedPrefix, in))
		}
	}
}
