package catalog

import (
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

// DefaultMaxRequests of Config.
const DefaultMaxRequests = 10_000

// ErrBudget: the requests of this refresh are used up. What was read counts; the next
// refresh finds it and goes on from there.
var ErrBudget = errors.New("the refresh ran out of requests")

// ErrReplaced is the problem of an hour whose listing is older than what its records say: a
// generation that was not listed replaced the highest one that was. The next refresh has it.
var ErrReplaced = errors.New("replaced by a generation that was not there when it was listed")

// Config of a Catalog. Reader and AuthorityID are required.
type Config struct {
	Reader      objstore.Reader
	AuthorityID string
	// Records: for who publishes sets, and no reader of samples. Hours do not expire as a
	// whole in the views: they have the sets that the records say.
	Records bool
	// MaxRequests of one refresh; 0 means 10,000.
	MaxRequests int
}

// Catalog reads views. One caller at a time refreshes; views are safe for all.
type Catalog struct {
	cfg  Config
	view *View
	// records that were read of the hours of the view, and of one where a refresh ran out of requests.
	records *Reader
	// left are the requests of the refresh that runs, and sharing the sets of its hour so far.
	left    int
	sharing map[slot]*Block
}

// New makes an empty catalog; it makes no request.
func New(c Config) (*Catalog, error) {
	if c.Reader == nil || c.MaxRequests < 0 {
		return nil, errors.New("catalog: a reader is needed, and a bound that is not negative")
	}
	if err := text("authority id", c.AuthorityID, MaxNameBytes); err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	if c.MaxRequests == 0 {
		c.MaxRequests = DefaultMaxRequests
	}
	cat := &Catalog{cfg: c, view: &View{hours: map[timegrid.Hour]*hour{}}}
	cat.records = NewReader(ReaderConfig{Read: cat.record, Trim: cat.share, Follow: true, Limit: math.MaxInt64})
	return cat, nil
}

// View is the newest one.
func (c *Catalog) View() *View { return c.view }

// Forget drops what was read of the hours outside from to to, so that memory is bounded.
func (c *Catalog) Forget(from, to timegrid.Hour) {
	next := &View{hours: map[timegrid.Hour]*hour{}, expiry: c.view.expiry, doubt: c.view.doubt}
	for h, got := range c.view.hours {
		if h >= from && h <= to {
			next.hours[h] = got
		}
	}
	c.view = next
	c.records.Keep(func(n Name) bool { return n.Hour >= from && n.Hour <= to })
}

// Refresh reads the hours from to to, both included: one listing in key order, and of the
// records that are new or changed those that can count, highest generation first. On an
// error the hours that were finished are in the view, and the others stay as they were.
func (c *Catalog) Refresh(ctx context.Context, from, to timegrid.Hour) (*View, error) {
	if to < from {
		return c.view, nil
	}
	c.left = c.cfg.MaxRequests
	p := &pass{c: c, next: &View{hours: maps.Clone(c.view.hours), expiry: c.view.expiry, doubt: c.view.doubt}}
	err := p.read(ctx, from, to)
	if err == nil && !c.cfg.Records {
		// After the listings: whatever retention had removed by then was decided before.
		err = p.expiry(ctx)
	}
	p.next.records = c.cfg.Records
	c.view = p.next
	if err != nil {
		return c.view, fmt.Errorf("refresh catalog %s to %s: %w", from, to, err)
	}
	return c.view, nil
}

// pass is one refresh.
type pass struct {
	c    *Catalog
	next *View
}

func (p *pass) read(ctx context.Context, from, to timegrid.Hour) error {
	o := objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: layout.BlockManifestsHour(from)}
	if from == to {
		o = objstore.ListOptions{Prefix: layout.BlockManifestsHour(from)}
	}
	at, listed := from, []Slot(nil)
	// close takes over the hour that was listed, and those before h, which have nothing.
	close := func(h timegrid.Hour) error {
		if at >= h {
			return nil
		}
		if err := p.take(ctx, at, listed); err != nil {
			return err
		}
		for old := range p.c.view.hours {
			if old > at && old < h {
				p.drop(old)
			}
		}
		at, listed = h, nil
		return nil
	}
	for of, err := range Slots(ctx, lister{p.c}, o) {
		if err != nil {
			return err
		}
		if of.Name.Hour > to {
			break
		}
		if of.Name.Span > 0 {
			continue // a compaction is found by its sources
		}
		if err := close(of.Name.Hour); err != nil {
			return err
		}
		listed = append(listed, of)
	}
	return close(to + 1)
}

// take makes the hour of its listing.
func (p *pass) take(ctx context.Context, h timegrid.Hour, listed []Slot) error {
	if len(listed) == 0 {
		p.drop(h)
		return nil
	}
	var versions []version
	for _, of := range listed {
		for _, l := range of.Listed {
			versions = append(versions, version{l.Name, l.Info.ETag, l.Info.Size})
		}
	}
	old := p.c.view.at(h)
	if slices.Equal(old.listed, versions) && len(old.doubt) == 0 {
		return nil
	}
	hr := &hour{listed: versions, sets: map[slot]*Block{}, top: map[slot]uint64{}, committed: map[slot]uint64{}, expired: map[timegrid.Resolution]bool{}}
	p.c.sharing = hr.sets
	defer func() { p.c.sharing = nil }()
	for _, of := range slices.Backward(listed) {
		st, err := p.c.records.State(ctx, of)
		if err != nil {
			return err
		}
		hr.add(of.Name, st)
	}
	hr.byShard()
	p.next.hours[h] = hr
	p.forget(old, hr)
	return nil
}

// drop takes an hour out of which no record is left.
func (p *pass) drop(h timegrid.Hour) {
	p.forget(p.c.view.at(h), nothing)
	delete(p.next.hours, h)
}

// forget drops the records of an hour that are not there any more.
func (p *pass) forget(old, now *hour) {
	there := map[Name]bool{}
	for _, v := range now.listed {
		there[v.name] = true
	}
	for _, v := range old.listed {
		if !there[v.name] {
			p.c.records.Forget(v.name)
		}
	}
}

// add takes over what counts of a slot. What is in doubt is a problem of the hour, and what counts
// below it is shown.
func (hr *hour) add(of Name, st State) {
	at := slot{of.Shard, of.Resolution}
	hr.top[at] = st.Top
	for _, g := range st.Doubt {
		hr.doubt = append(hr.doubt, Problem{g.Name.Key(), g.Err})
	}
	if st.Committed == 0 {
		return
	}
	hr.committed[at] = st.Committed
	if st.Block != nil {
		hr.sets[at] = st.Block
		hr.shards = st.Block.Shards
	}
	if by := st.Missing(); by > 0 {
		hr.doubt = append(hr.doubt, Problem{st.Removed.Name.Key(), fmt.Errorf("%w: by %d", ErrReplaced, by)})
	}
	if st.Expired() {
		hr.expired[at.resolution] = true
	}
}

// expiry reads what retention has decided. A record that can't be read is a doubt about
// all hours.
func (p *pass) expiry(ctx context.Context) error {
	if err := p.c.spend(); err != nil {
		return err
	}
	e, _, err := ReadExpiry(ctx, p.c.cfg.Reader, p.c.cfg.AuthorityID)
	if record.Opaque(err) {
		p.next.doubt = []Problem{{layout.RollupExpiryKey, err}}
		return nil
	}
	if err != nil {
		return err
	}
	p.next.expiry, p.next.doubt = e, nil
	return nil
}

// share keeps one copy of inputs that the resolutions of a plan have in common.
func (c *Catalog) share(s *Block) {
	for at, other := range c.sharing {
		if at.shard == s.Name.Shard && other.PlanSHA256 == s.PlanSHA256 && other.Inputs.Batches() == s.Inputs.Batches() && other.Inputs.Records() == s.Inputs.Records() {
			s.Inputs = other.Inputs
			return
		}
	}
}

func (c *Catalog) record(ctx context.Context, key string) (Record, objstore.Info, error) {
	if err := c.spend(); err != nil {
		return Record{}, objstore.Info{}, err
	}
	return Read(ctx, c.cfg.Reader, c.cfg.AuthorityID, key)
}

// lister lists within the requests of a refresh.
type lister struct{ c *Catalog }

func (l lister) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := l.c.spend(); err != nil {
		return objstore.Page{}, err
	}
	return l.c.cfg.Reader.List(ctx, o)
}

func (c *Catalog) spend() error {
	if c.left == 0 {
		return ErrBudget
	}
	c.left--
	return nil
}

// Read reads the record of a generation. A record of another authority is corrupt.
func Read(ctx context.Context, g objstore.Getter, authority, key string) (Record, objstore.Info, error) {
	r, info, err := record.Read(ctx, g, key, BlockKind, func(b []byte) (Record, error) { return ParseRecord(key, b) })
	if err == nil && r.authority() != authority {
		err = BlockKind.Corrupt(key, "it is of the authority %.128q", r.authority())
	}
	if err != nil {
		return Record{}, info, err
	}
	return r, info, nil
}

func (r Record) authority() string {
	switch {
	case r.Block != nil:
		return r.Block.AuthorityID
	case r.Aborted != nil:
		return r.Aborted.AuthorityID
	}
	return r.Removed.AuthorityID
}
