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

// readFolds reads what is folded of boots. Each region has to answer, and has the folds of all of them then.
func (k *Keeper) readFolds(ctx context.Context, looker *folds.Looker, epoch claims.Epoch, boots []*foldedBoot) error {
	heads := make([]folds.Head, len(boots))
	if err := k.each(len(boots), func(i int) (err error) {
		heads[i], err = looker.Everywhere(ctx, boots[i].boot)
		return err
	}); err != nil {
		return err
	}
	// The parts of many boots at once, as far as there is room for their entries.
	for from := 0; from < len(boots); {
		to, size := from, uint64(0)
		for to < len(boots) && (to == from || size+heads[to].Count() <= scanEntries) {
			size += heads[to].Count()
			to++
		}
		if err := k.readParts(ctx, looker, epoch, boots[from:to], heads[from:to]); err != nil {
			return err
		}
		from = to
	}
	return nil
}

func (k *Keeper) readParts(ctx context.Context, looker *folds.Looker, epoch claims.Epoch, boots []*foldedBoot, heads []folds.Head) error {
	type one struct{ boot, part int }
	var parts []one
	lists := make([][][]folds.Entry, len(boots))
	for i, h := range heads {
		lists[i] = make([][]folds.Entry, len(h.Parts)+1)
		lists[i][len(h.Parts)] = h.Tail
		for n := range h.Parts {
			parts = append(parts, one{i, n})
		}
	}
	if err := k.each(len(parts), func(i int) (err error) {
		p := parts[i]
		lists[p.boot][p.part], err = looker.Part(ctx, boots[p.boot].boot, heads[p.boot].Parts[p.part])
		return err
	}); err != nil {
		return err
	}
	for i, b := range boots {
		entries, err := folds.Merge(epoch.Retired, lists[i]...)
		if err != nil {
			return fmt.Errorf("folds of boot %s: %w", b.boot, err)
		}
		b.of(entries, epoch)
	}
	return nil
}

// headList is the boots that have a head of folds in a region, one ahead.
type headList struct {
	Region
	read func() (identity.Boot, error, bool)
	stop func()
	boot identity.Boot // that comes next
	at   string
	more bool
}

func newHeadList(ctx context.Context, r Region) *headList {
	h := &headList{Region: r}
	h.read, h.stop = iter.Pull2(folds.Boots(ctx, r.Store))
	return h
}

func (h *headList) advance() error {
	boot, err, ok := h.read()
	if h.more = ok; !ok {
		return nil
	}
	if err != nil {
		return &RegionError{"list folds", h.Name, err}
	}
	h.boot, h.at = boot, layout.AcceptedBoot(boot)
	return nil
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
