package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Copies are copies of the records of a day's blocks in one object, so that readers of many hours need not read each
// record. They decide nothing. Which generations there are is what the listing says, and a copy counts only where its
// ETag is that of the listing: then it says what the record says. A copy that is missing, older or newer than the
// record, and an object of copies that can't be read, cost a reader the request for the record, and nothing else.
//
// Copies have what a reader of samples needs: of a block neither fence, transaction, plan key, counts nor times.
type Copies struct {
	AuthorityID string
	Day         layout.Day
	// Records of the day's hours, by name, each name once.
	Records []Copy
}

// Copy is the copy of one record.
type Copy struct {
	Name Name
	// ETag of the record that was copied. That of a compaction is empty: its record can't change while a block
	// redirects to it, so it holds as long as the copy of such a block.
	ETag   string
	Record Record
}

// compareNames is the order of copies.
func compareNames(a, b Name) int {
	return cmp.Or(cmp.Compare(a.Hour, b.Hour), cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.Resolution, b.Resolution), cmp.Compare(a.Span, b.Span), cmp.Compare(a.Generation, b.Generation))
}

// Sort puts the records in order.
func (c *Copies) Sort() {
	slices.SortFunc(c.Records, func(a, b Copy) int { return compareNames(a.Name, b.Name) })
}

// Find returns the copy of a record; nil when there is none.
func (c *Copies) Find(n Name) *Copy {
	if c == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(c.Records, n, func(x Copy, n Name) int { return compareNames(x.Name, n) })
	if !ok {
		return nil
	}
	return &c.Records[i]
}

// CopyOf is the part of a record that copies have.
func CopyOf(r Record) Record {
	switch {
	case r.Block != nil:
		s := r.Block
		c := &Block{AuthorityID: s.AuthorityID, Name: s.Name, Shards: s.Shards, PlanSHA256: s.PlanSHA256, Objects: s.Objects, Inputs: s.Inputs, Unrolled: s.Unrolled}
		if s.Redirect != nil {
			c.Redirect = &Redirect{Name: s.Redirect.Name, Block: s.Redirect.Block}
		}
		return Record{Block: c}
	case r.Aborted != nil:
		return Record{Aborted: &Aborted{AuthorityID: r.Aborted.AuthorityID, Name: r.Aborted.Name}}
	}
	return Record{Removed: &Removed{AuthorityID: r.Removed.AuthorityID, Name: r.Removed.Name, SupersededBy: r.Removed.SupersededBy}}
}

// ReadCopies reads the copies of a day. Errors wrap record.ErrCorrupt, record.ErrNewerVersion or
// objstore.ErrNotFound, or are the store's.
func ReadCopies(ctx context.Context, g objstore.Getter, authority string, day layout.Day) (*Copies, error) {
	key := layout.RollupCopies(day)
	c, _, err := record.Read(ctx, g, key, CopiesKind, ParseCopies)
	if err == nil && (c.AuthorityID != authority || c.Day != day) {
		err = CopiesKind.Corrupt(key, "they are of %s of the authority %.128q", c.Day, c.AuthorityID)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// worthCopies is how many records of a day a refresh must need before it reads their copies.
const worthCopies = 8

// copiesRead is what the reading of a day's copies gave.
type copiesRead struct {
	copies *Copies
	err    error
}

// maxCopiesAhead bounds the days whose copies are read before the listing has said that they are needed: a few days more
// of a long range cost a round of requests, while there may be no blocks at all in most of it.
const maxCopiesAhead = 8

// listWithCopies lists hours, and at the same time reads the copies of days that were not read before: nearly always they
// are needed then.
func (c *Catalog) listWithCopies(ctx context.Context, from, to timegrid.Hour) (slots []Slot, end timegrid.Hour, read map[layout.Day]copiesRead, err error) {
	days := c.unreadDays(from, to)
	got := make([]copiesRead, len(days))
	_ = c.cfg.Each(ctx, 1+len(days), func(ctx context.Context, i int) error {
		if i == 0 {
			slots, end, err = c.list(ctx, from, to)
		} else {
			got[i-1] = c.readCopies(ctx, days[i-1])
		}
		return nil // errors are in err and in got
	})
	read = make(map[layout.Day]copiesRead, len(days))
	for i, day := range days {
		read[day] = got[i]
	}
	return slots, end, read, err
}

// unreadDays are the days of which several hours are asked for that were never read; none where they are too many.
func (c *Catalog) unreadDays(from, to timegrid.Hour) (days []layout.Day) {
	// Where few requests are left they are for what is needed without fail.
	if !c.cfg.Copies || to == Endless || c.left.Load() < 10*maxCopiesAhead {
		return nil
	}
	n := 0
	for h := from; h <= to; h++ {
		if h == from || layout.DayOf(h) != layout.DayOf(h-1) {
			n = 0
		}
		if _, read := c.readAfter(h); read {
			continue
		}
		if n++; n == worthCopiesHours {
			if days = append(days, layout.DayOf(h)); len(days) > maxCopiesAhead {
				return nil
			}
		}
	}
	return days
}

// worthCopiesHours is how many hours of a day a refresh must ask for before it reads the day's copies with the listing.
const worthCopiesHours = 3

func (c *Catalog) readCopies(ctx context.Context, day layout.Day) copiesRead {
	if err := c.spend(); err != nil {
		return copiesRead{nil, err}
	}
	copies, err := ReadCopies(ctx, c.cfg.Reader, c.cfg.AuthorityID, day)
	return copiesRead{copies, err}
}

// copiesAhead takes records from the copies of their days, as far as these are as new as the listing. Those of some days
// were read with the listing.
func (c *Catalog) copiesAhead(ctx context.Context, slots []Slot, of map[layout.Day]copiesRead) {
	c.copied = map[string]outcome{}
	if !c.cfg.Copies {
		return
	}
	needed := map[layout.Day]int{}
	var days []layout.Day
	for _, s := range slots {
		if c.records.has(s.Listed[len(s.Listed)-1]) {
			continue
		}
		day := layout.DayOf(s.Name.Hour)
		if _, read := of[day]; read {
			continue
		}
		if needed[day]++; needed[day] == worthCopies {
			days = append(days, day)
		}
	}
	days = days[:min(int64(len(days)), max(c.left.Load()/2, 0))]
	read := make([]copiesRead, len(days))
	_ = c.cfg.Each(ctx, len(days), func(ctx context.Context, i int) error {
		read[i] = c.readCopies(ctx, days[i])
		return nil // the records are read themselves then
	})
	for i, day := range days {
		of[day] = read[i]
	}
	for _, day := range slices.Sorted(maps.Keys(of)) {
		if err := of[day].err; err != nil && !errors.Is(err, objstore.ErrNotFound) && !errors.Is(err, ErrBudget) && ctx.Err() == nil && c.cfg.Unusable != nil {
			c.cfg.Unusable(layout.RollupCopies(day), err)
		}
	}
	if len(of) > 0 {
		c.copied = make(map[string]outcome, len(slots)) // a week has tens of thousands
	}
	taken := map[Name]bool{} // compactions from the copies of a day
	at, copies := layout.Day(math.MinInt64), (*Copies)(nil)
	for _, s := range slots {
		if day := layout.DayOf(s.Name.Hour); day != at {
			at, copies = day, of[day].copies
			clear(taken)
		}
		if copies == nil {
			continue
		}
		for _, l := range s.Listed {
			if x := copies.Find(l.Name); x != nil && x.ETag != "" && x.ETag == l.Info.ETag {
				c.take(copies, l.Info.Key, x, taken)
			}
		}
	}
}

// take uses a copy as what the reading of its record would give.
func (c *Catalog) take(from *Copies, key string, x *Copy, taken map[Name]bool) {
	c.copied[key] = outcome{record: x.Record, info: objstore.Info{Key: key, ETag: x.ETag}}
	if b := x.Record.Block; b != nil && b.Redirect != nil {
		to := b.Redirect.Name
		if taken[to] {
			return
		}
		taken[to] = true
		if y := from.Find(to); y != nil && y.Record.Block != nil {
			key := to.Key()
			c.copied[key] = outcome{record: y.Record, info: objstore.Info{Key: key}}
		}
	}
}

// validate refuses copies that no writer would have written.
func (c *Copies) validate() error {
	if err := text("authority_id", c.AuthorityID, MaxNameBytes); err != nil {
		return err
	}
	for i := range c.Records {
		x := &c.Records[i]
		if i > 0 && compareNames(c.Records[i-1].Name, x.Name) >= 0 {
			return fmt.Errorf("the copy of %s is out of order", x.Name.Key())
		}
		if (x.Name.Span == 0) == (x.ETag == "") || x.Name.Span == 0 && layout.DayOf(x.Name.Hour) != c.Day {
			return fmt.Errorf("the copy of %s is not of %s, or its ETag is not what it should be", x.Name.Key(), c.Day)
		}
		if b := x.Record.Block; b != nil {
			if i := b.Redirect; i != nil && (x.Name.Span > 0 || len(b.Objects) > 0 || i.Name.Span == 0 || i.Name.Resolution != x.Name.Resolution || !spans(i.Name, x.Name.Hour)) {
				return fmt.Errorf("%s can not be compacted into %s", x.Name.Key(), i.Name.Key())
			}
		}
	}
	return nil
}

// spans reports whether a compaction has the hour.
func spans(c Name, h timegrid.Hour) bool {
	return h >= c.Hour && h < c.Hour+timegrid.Hour(c.Span)
}
