package catalog

import (
	"context"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// lister charges listings to the budget of the refresh.
type lister struct{ c *Catalog }

func (l lister) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := l.c.spend(); err != nil {
		return objstore.Page{}, err
	}
	return l.c.cfg.Reader.List(ctx, o)
}

// list gives the slots of the hours from..to in key order, without compactions: those are reached through the blocks
// that redirect to them. With an error the slots of the hours before end are whole; without one end is after to.
func (c *Catalog) list(ctx context.Context, from, to timegrid.Hour) (slots []Slot, end timegrid.Hour, err error) {
	infos, end, err := c.listInfos(ctx, from, to)
	for s := range slotsOf(each(infos)) {
		if n := s.Name; n.Span == 0 && n.Hour >= from && n.Hour < end {
			slots = append(slots, s)
		}
	}
	return slots, end, err
}

func each(infos []objstore.Info) func(yield func(objstore.Info, error) bool) {
	return func(yield func(objstore.Info, error) bool) {
		for _, i := range infos {
			if !yield(i, nil) {
				return
			}
		}
	}
}

func (c *Catalog) listInfos(ctx context.Context, from, to timegrid.Hour) ([]objstore.Info, timegrid.Hour, error) {
	if from == to {
		// A single hour has a prefix of its own, which saves reading a page that runs into later hours.
		return c.listPart(ctx, objstore.ListOptions{Prefix: layout.BlockManifestsHour(from)}, from, to)
	}
	all := listing{from: from, to: to, o: objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: layout.BlockManifestsHour(from)}}
	if to == Endless {
		return c.listPart(ctx, all.o, from, to)
	}
	// What was read before tells how many keys the hours have about. Without it, and where few requests are left, the first
	// page tells.
	if parts := c.partsOf(all); len(parts) > 0 && int64(len(parts)) <= c.left.Load()/4 {
		return c.listParts(ctx, parts)
	}
	all.read(ctx, c)
	return all.infos, all.end, all.err
}

const (
	// pageKeys is how many keys stores give in a page.
	pageKeys = 1000
	// partPercent is how full pages are meant to be: a part that does not fit takes two requests one after the other.
	partPercent = 98
)

// partsOf splits a listing into parts of a page each, as far as can be told from what was read before; none when that is
// nothing.
func (c *Catalog) partsOf(all listing) (parts []listing) {
	counts := make([]int, 0, len(c.view.hours))
	for _, hr := range c.view.hours {
		counts = append(counts, len(hr.listed))
	}
	most := mostOf(counts)
	if most == 0 {
		return nil
	}
	parts, keys := []listing{all}, 0
	for h := all.from; h <= all.to; h++ {
		n := most
		if _, read := c.readAfter(h); read {
			n = len(c.view.at(h).listed)
		}
		if keys += n; keys > pageKeys*partPercent/100 && h > parts[len(parts)-1].from {
			parts, keys = all.split(parts, h), n
		}
	}
	return parts
}

// split ends the last part before an hour, with which another one begins.
func (l *listing) split(parts []listing, h timegrid.Hour) []listing {
	parts[len(parts)-1].to = h - 1
	return append(parts, listing{from: h, to: l.to, o: objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: layout.BlockManifestsHour(h)}})
}

// listing is that of some hours.
type listing struct {
	from, to timegrid.Hour
	o        objstore.ListOptions // its first page

	infos []objstore.Info
	end   timegrid.Hour
	err   error
}

// read lists the hours: a page, and then what is left of them at once, in as many parts as pages are needed about.
func (l *listing) read(ctx context.Context, c *Catalog) {
	l.infos, l.end, l.err = func() ([]objstore.Info, timegrid.Hour, error) {
		page, err := lister{c}.List(ctx, l.o)
		if err != nil {
			return nil, l.from, err
		}
		infos, at := page.Objects, reached(page.Objects, l.from)
		if page.Next == "" || at > l.to {
			return upTo(infos, l.to), l.to + 1, nil
		}
		rest := listing{from: at, to: l.to, o: objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: page.Next}}
		// A little fewer hours than a page has.
		width := max(timegrid.Hour(len(infos)*partPercent/100/densest(infos)), 1)
		// Whatever the page says, the parts leave requests for the records.
		width = max(width, (l.to-at)/timegrid.Hour(max(c.left.Load()/4, 1))+1)
		parts := []listing{rest}
		for h := at + width; h <= l.to; h += width {
			parts = rest.split(parts, h)
		}
		more, end, err := c.listParts(ctx, parts)
		return append(infos, more...), end, err
	}()
}

// listParts lists parts that follow each other, at once.
func (c *Catalog) listParts(ctx context.Context, parts []listing) (infos []objstore.Info, end timegrid.Hour, err error) {
	_ = c.cfg.Each(ctx, len(parts), func(ctx context.Context, i int) error {
		parts[i].read(ctx, c)
		return nil // errors are in parts
	})
	for i := range parts {
		infos = append(infos, parts[i].infos...)
		if err := parts[i].err; err != nil {
			return infos, parts[i].end, err
		}
	}
	return infos, parts[len(parts)-1].to + 1, nil
}

// upTo leaves out the manifests of hours after to.
func upTo(infos []objstore.Info, to timegrid.Hour) []objstore.Info {
	for k := len(infos); k > 0; k-- {
		if n, err := layout.ParseBlockManifest(infos[k-1].Key); err == nil && n.Hour <= to {
			return infos[:k]
		}
	}
	return nil
}

// densest is the most keys that an hour of a page has, as mostOf counts; of the last hour more may follow.
func densest(page []objstore.Info) int {
	var counts []int
	var at timegrid.Hour
	for i := range page {
		// A key of something else belongs to the hour that it stands in.
		if name, err := layout.ParseBlockManifest(page[i].Key); err == nil && name.Hour != at || i == 0 {
			at, counts = name.Hour, append(counts, 0)
		}
		counts[len(counts)-1]++
	}
	return max(mostOf(counts), 1)
}

// mostOf is the most keys that hours have, but for a few with more than twice what others have: an hour of many generations
// must not make a request of every hour. A part that it is too large for is split again.
func mostOf(counts []int) (most int) {
	if len(counts) == 0 {
		return 0
	}
	slices.Sort(counts)
	usual := counts[len(counts)*3/4]
	for _, n := range counts {
		if n <= 2*usual {
			most = n
		}
	}
	return most
}

// listPart lists hours one page after the other.
func (c *Catalog) listPart(ctx context.Context, o objstore.ListOptions, from, to timegrid.Hour) (infos []objstore.Info, end timegrid.Hour, err error) {
	for i, err := range objstore.List(ctx, lister{c}, o) {
		if err != nil {
			return infos, reached(infos, from), err
		}
		if n, err := layout.ParseBlockManifest(i.Key); err == nil && n.Hour > to {
			break
		}
		infos = append(infos, i)
	}
	if to == Endless {
		return infos, Endless, nil
	}
	return infos, to + 1, nil
}

// reached is the hour of the last manifest, of which more may follow; from when there is none.
func reached(infos []objstore.Info, from timegrid.Hour) timegrid.Hour {
	for _, i := range slices.Backward(infos) {
		if n, err := layout.ParseBlockManifest(i.Key); err == nil {
			return max(n.Hour, from)
		}
	}
	return from
}
