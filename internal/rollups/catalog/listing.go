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
	first := objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: layout.BlockManifestsHour(from)}
	if to == Endless {
		return c.listPart(ctx, first, from, to)
	}
	// The first page tells how many hours a page has about. The others are asked for at once.
	page, err := lister{c}.List(ctx, first)
	if err != nil {
		return nil, from, err
	}
	infos, at := page.Objects, reached(page.Objects, from)
	if page.Next == "" || at > to {
		return infos, to + 1, nil
	}
	width := hoursThatFit(page.Objects, from, at)
	type part struct {
		from, to timegrid.Hour
		o        objstore.ListOptions
		infos    []objstore.Info
		end      timegrid.Hour
		err      error
	}
	parts := []part{{from: at, o: objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: page.Next}}}
	for h := at + width; h <= to; h += width {
		parts[len(parts)-1].to = h - 1
		parts = append(parts, part{from: h, o: objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: layout.BlockManifestsHour(h)}})
	}
	parts[len(parts)-1].to = to
	_ = c.cfg.Each(ctx, len(parts), func(ctx context.Context, i int) error {
		p := &parts[i]
		p.infos, p.end, p.err = c.listPart(ctx, p.o, p.from, p.to)
		return nil // errors are in parts
	})
	for i := range parts {
		infos = append(infos, parts[i].infos...)
		if err := parts[i].err; err != nil {
			return infos, parts[i].end, err
		}
	}
	return infos, to + 1, nil
}

// hoursThatFit is how many hours a page has that is like the given one, whose last hour is at and may go on behind it.
// It is a little less than that, as a part that does not fit takes two requests one after the other.
func hoursThatFit(page []objstore.Info, from, at timegrid.Hour) timegrid.Hour {
	whole := len(page)
	for whole > 0 {
		if n, err := layout.ParseBlockManifest(page[whole-1].Key); err == nil && n.Hour < at {
			break
		}
		whole--
	}
	if whole == 0 {
		return 1
	}
	return max(timegrid.Hour(len(page)*98/100)*(at-from)/timegrid.Hour(whole), 1)
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
