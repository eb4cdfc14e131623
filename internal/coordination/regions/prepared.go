package regions

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// preparedBoot is what a region that joins has prepared of a boot. What of it is folded is decided by whatever else there is: an entry is
// left out that meets something that is folded, a manifest of another region, or what another region has prepared.
type preparedBoot struct {
	region claims.Region
	parts  []folds.Part
	// of are the entries of the parts, and behind them those of the tail.
	of [][]folds.Entry
	// entries are those that are not left out, in order.
	entries []folds.Entry
}

// leave leaves out the entries that share numbers with an identity, and reports whether there are any.
func (p *preparedBoot) leave(start, end uint64) bool {
	from, _ := slices.BinarySearchFunc(p.entries, start, func(e folds.Entry, s uint64) int {
		if e.End < s {
			return -1
		}
		return 1
	})
	to := from
	for to < len(p.entries) && p.entries[to].Start <= end {
		to++
	}
	p.entries = slices.Delete(p.entries, from, to)
	return to > from
}

// bulk is what of it is folded: parts of which nothing is left out as they are.
func (p *preparedBoot) bulk() (out folds.Bulk) {
	left := map[uint64]bool{}
	for _, e := range p.entries {
		left[e.Start] = true
	}
	for i, of := range p.of {
		kept := slices.DeleteFunc(slices.Clone(of), func(e folds.Entry) bool { return !left[e.Start] })
		if i < len(p.parts) && len(kept) == len(of) {
			out.Parts = append(out.Parts, p.parts[i])
			continue
		}
		out.Entries = append(out.Entries, kept...)
	}
	slices.SortFunc(out.Entries, func(a, b folds.Entry) int {
		if a.Start < b.Start {
			return -1
		}
		return 1
	})
	return out
}

// compare leaves out of what is prepared of a boot what meets something that is folded, or what another region has prepared.
func (b *foldedBoot) compare() {
	for _, p := range b.prepared {
		p.entries = slices.DeleteFunc(p.entries, func(e folds.Entry) bool { return b.meets(e.Identity(b.boot)) })
	}
	// The manifests of what is left out here are listed, and contest the other region's.
	for i, p := range b.prepared {
		for _, o := range b.prepared[:i] {
			for _, e := range o.entries {
				p.leave(e.Start, e.End)
			}
		}
	}
}

// preparedOf is what a region has prepared of the boot, if it joins.
func (b *foldedBoot) preparedOf(r claims.Region) *preparedBoot {
	if b == nil {
		return nil
	}
	i := slices.IndexFunc(b.prepared, func(p *preparedBoot) bool { return p.region == r })
	if i < 0 {
		return nil
	}
	return b.prepared[i]
}

// passed is the boot as a listing of the region passes over it: also what the region has prepared and is folded now. Its manifests say
// nothing more, and of others in its bucket that share numbers with them what was prepared counts.
func (b *foldedBoot) passed(p *preparedBoot) *foldedBoot {
	out := &foldedBoot{boot: b.boot, at: b.at, lost: b.lost}
	rest := p.entries
	add := func(r run) {
		if n := len(out.runs); n > 0 && out.runs[n-1].end != math.MaxUint64 && out.runs[n-1].end+1 == r.start {
			out.runs[n-1].end = r.end
			for h, of := range r.of {
				out.runs[n-1].of[h] += of
			}
			return
		}
		of := map[claims.Region]int{}
		for h, n := range r.of {
			of[h] = n
		}
		out.runs = append(out.runs, run{r.start, r.end, of})
	}
	for i := 0; i < len(b.runs) || len(rest) > 0; {
		if i < len(b.runs) && (len(rest) == 0 || b.runs[i].start < rest[0].Start) {
			add(b.runs[i])
			i++
			continue
		}
		add(run{rest[0].Start, rest[0].End, map[claims.Region]int{p.region: 1}})
		rest = rest[1:]
	}
	return out
}

// contest leaves out what is prepared of a region and meets manifests of others, and reports whether that is anything.
func (b *scanned) contest(lists []*listing) (any bool) {
	if b.folded == nil {
		return false
	}
	for _, p := range b.folded.prepared {
		for _, l := range lists {
			if l.Name == p.region {
				continue
			}
			for _, id := range b.ids[l.Name] {
				any = p.leave(id.SeqStart, id.SeqEnd) || any
			}
		}
	}
	return any
}

// contestPrepared lists the boot in several regions that have prepared something of it. What is not prepared in one of them may contest what
// is in another. An entry that is left out there counts like any manifest, and so does what shares numbers with it in its own bucket, which may
// contest others: so they are listed whole, and compared until nothing more is left out.
func (b *scanned) contestPrepared(ctx context.Context, lists []*listing, at string) error {
	all := map[claims.Region][]identity.Batch{}
	for _, l := range lists {
		if err := b.list(ctx, l, at, b.folded); err != nil {
			return err
		}
		all[l.Name] = b.ids[l.Name]
	}
	for more := true; more; more = b.contest(lists) {
		for _, l := range lists {
			over := b.folded.passed(b.folded.preparedOf(l.Name))
			b.ids[l.Name] = slices.DeleteFunc(slices.Clone(all[l.Name]), over.has)
		}
	}
	return nil
}

// raiseTries bounds how often a boot is decided again because others move its heads.
const raiseTries = 8

// raise adds what was prepared of boots to their heads in all regions, and moves those of all boots of which anything was prepared, so that
// no recovery that was overtaken can write to them any more. What is decided of them is found again where others have moved a head meanwhile.
func (s *scanner) raise(ctx context.Context, boots []*scanned) error {
	for try := 0; ; try++ {
		todo := slices.DeleteFunc(slices.Clone(boots), func(b *scanned) bool { return b.folded == nil || b.folded.standing == nil })
		if len(todo) == 0 {
			return nil
		}
		if err := s.mark(ctx, todo); err != nil {
			return err
		}
		// Behind the reading of the heads: whoever overtakes this recovery has not moved them before, or is noticed here.
		if err := s.k.holds(ctx, s.epoch); err != nil {
			return err
		}
		moved := make([]bool, len(todo))
		if err := s.k.each(len(todo), func(i int) error {
			err := s.raiseBoot(ctx, todo[i].folded)
			if moved[i] = errors.Is(err, folds.ErrMoved); moved[i] && try < raiseTries {
				return nil
			}
			return err
		}); err != nil {
			return err
		}
		var again []*scanned
		for i, b := range todo {
			if moved[i] {
				again = append(again, b)
			}
		}
		for _, b := range again {
			if err := s.again(ctx, b); err != nil {
				return err
			}
		}
		boots = again
	}
}

// mark notes boots that regions have prepared in the buckets which do not have that yet, before their heads are moved: where such a region is
// lost, the next recovery knows by it which heads this one may have written to.
func (s *scanner) mark(ctx context.Context, boots []*scanned) error {
	type one struct {
		boot   identity.Boot
		of, in claims.Region
	}
	var lacking []one
	for _, b := range boots {
		for _, of := range b.folded.joins {
			for _, in := range s.epoch.Regions {
				if in != of && !slices.Contains(b.folded.marked[of], in) {
					lacking = append(lacking, one{b.boot, of, in})
				}
			}
		}
	}
	return s.k.each(len(lacking), func(i int) error {
		l := lacking[i]
		if err := folds.Mark(ctx, s.k.store(l.in), l.of, l.boot); err != nil {
			return &RegionError{"note what is prepared", l.in, err}
		}
		return nil
	})
}

func (s *scanner) raiseBoot(ctx context.Context, b *foldedBoot) error {
	var add folds.Bulk
	for _, p := range b.prepared {
		one := p.bulk()
		add.Parts, add.Entries = append(add.Parts, one.Parts...), append(add.Entries, one.Entries...)
	}
	has := func(r claims.Region, d identity.Digest) bool { return slices.Contains(b.present[r], d) }
	var err error
	if add.Entries, err = folds.Merge(s.homes, add.Entries); err != nil {
		return fmt.Errorf("boot %s: %w", b.boot, err)
	}
	return s.looker.Folder().Raise(ctx, b.standing, add, has)
}

// again finds everything of one boot once more.
func (s *scanner) again(ctx context.Context, b *scanned) error {
	one := &scanner{k: s.k, epoch: s.epoch, homes: s.homes, looker: s.looker, joining: s.joining}
	for _, l := range s.lists {
		n := newListing(l.Region)
		n.next = b.folded.at
		if err := n.advance(ctx, nil); err != nil {
			return err
		}
		one.lists = append(one.lists, n)
	}
	f := &foldedBoot{boot: b.folded.boot, at: b.folded.at, touched: true, present: b.folded.present, joins: b.folded.joins, marked: b.folded.marked}
	if err := one.readFolds(ctx, []*foldedBoot{f}); err != nil {
		return err
	}
	one.group, one.bound = []*foldedBoot{f}, f.at
	got, err := one.boot(ctx, f.at)
	if err != nil {
		return err
	}
	*b = *got
	return s.k.read(ctx, one.lists, []*scanned{b})
}
