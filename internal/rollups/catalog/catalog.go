package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// DefaultMaxRequests of Config.
const DefaultMaxRequests = 10_000

// ErrBudget means that the refresh has used up its requests. What it read so far is kept; the next refresh
// continues from there.
var ErrBudget = errors.New("the refresh ran out of requests")

// ErrReplaced is the problem of an hour whose listing is older than its records: a generation that was not listed
// has replaced the highest one that was. The next refresh finds it.
var ErrReplaced = errors.New("replaced by a generation that was not there when it was listed")

// Config of a Catalog. Reader and AuthorityID are required.
type Config struct {
	Reader      objstore.Reader
	AuthorityID string
	// Records is for callers that publish blocks and read no samples: views then show every block that has a
	// record, also in hours that have expired.
	Records bool
	// MaxRequests of one refresh; 0 means 10,000.
	MaxRequests int
	// Copies lets a refresh take records from the copies of their days. Blocks of its views then have what copies
	// have, wherever they come from.
	Copies bool
	// Unusable gets the key and the error of copies that could not be read, whose records the refresh read one by one; it may be nil.
	Unusable func(key string, err error)
	// Each calls fn for 0 to n-1, possibly in parallel; nil calls one after the other.
	Each func(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error
}

// Catalog reads views. One caller at a time refreshes; views are safe for all.
type Catalog struct {
	cfg  Config
	view *View
	// records caches the records of the view's hours, and those of an hour that a refresh did not finish.
	records *Reader
	// left is how many requests the running refresh still has; sharing holds the blocks of the hour that it reads.
	left    atomic.Int64
	sharing map[slot]*Block
	// copied are the records that the running refresh took from copies, and ahead those that it has read before
	// it comes to their hours, by key.
	copied, ahead map[string]outcome
	// listings counts those of deltas; hourRead has the last one that an hour was read after.
	listings uint64
	hourRead map[timegrid.Hour]uint64
	// openFrom is the first of the hours without an end that were read last, after the listing openRead; nil: there
	// are none.
	openFrom *timegrid.Hour
	openRead uint64
}

// Endless is the end of hours that have none: what Refresh reads may lie in the future.
const Endless = timegrid.Hour(math.MaxInt64/timegrid.HourMS - 2)

// wasRead notes that hours were read.
func (c *Catalog) wasRead(from, to timegrid.Hour) {
	if to != Endless {
		for h := from; h <= to; h++ {
			c.hourRead[h] = c.listings
		}
		return
	}
	if c.openFrom != nil {
		for h := *c.openFrom; h < from; h++ {
			c.hourRead[h] = max(c.hourRead[h], c.openRead)
		}
	}
	maps.DeleteFunc(c.hourRead, func(h timegrid.Hour, _ uint64) bool { return h >= from })
	c.openFrom, c.openRead = &from, c.listings
}

// readAfter is the last listing of deltas that the hour was read after; false when it was not read.
func (c *Catalog) readAfter(h timegrid.Hour) (uint64, bool) {
	at, ok := c.hourRead[h]
	if c.openFrom != nil && h >= *c.openFrom {
		return max(at, c.openRead), true
	}
	return at, ok
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
	if c.Each == nil {
		c.Each = gc.OneByOne
	}
	cat := &Catalog{cfg: c, view: &View{hours: map[timegrid.Hour]*hour{}}, hourRead: map[timegrid.Hour]uint64{}}
	// The cache has no limit of its own: Keep and Forget drop records with the hours of the view.
	cat.records = NewReader(ReaderConfig{Read: cat.record, Trim: cat.share, Follow: true, Limit: math.MaxInt64})
	return cat, nil
}

// View returns the newest view.
func (c *Catalog) View() *View { return c.view }

// Forget drops what was read of the hours outside from..to, so that memory stays bounded.
func (c *Catalog) Forget(from, to timegrid.Hour) {
	next := &View{hours: map[timegrid.Hour]*hour{}, expiry: c.view.expiry, unreadable: c.view.unreadable, deltas: c.view.deltas, order: &hourOrder{}}
	for h, got := range c.view.hours {
		if h >= from && h <= to {
			next.hours[h] = got
		}
	}
	c.view = next
	maps.DeleteFunc(c.hourRead, func(h timegrid.Hour, _ uint64) bool { return h < from || h > to })
	c.forgetDeltas()
	c.records.Keep(func(n Name) bool { return n.Hour >= from && n.Hour <= to })
}

// Refresh reads the hours from..to, both included. It makes one listing in key order and then reads, of the
// records that are new or changed, only those that can count, highest generation first. On an error the view has
// the hours that were finished; the others stay as they were.
func (c *Catalog) Refresh(ctx context.Context, from, to timegrid.Hour) (*View, error) {
	if to < from {
		return c.view, nil
	}
	c.left.Store(int64(c.cfg.MaxRequests))
	p := &pass{c: c, next: &View{hours: maps.Clone(c.view.hours), expiry: c.view.expiry, unreadable: c.view.unreadable, deltas: c.view.deltas, order: &hourOrder{}}}
	err := p.read(ctx, from, to)
	if err == nil && !c.cfg.Records {
		// The expiry is read after the listings. Retention decides before it removes, so whatever was missing in a
		// listing is covered by the decision that is read now.
		err = p.readExpiry(ctx)
	}
	p.next.records = c.cfg.Records
	c.view = p.next
	if err == nil {
		c.wasRead(from, to)
		c.forgetDeltas()
	}
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

// read lists the hours and reads what is new of them. After an error of the listing the hours before it are read
// nevertheless, so that a refresh which is repeated gets on.
func (p *pass) read(ctx context.Context, from, to timegrid.Hour) error {
	defer func() { p.c.copied, p.c.ahead = nil, nil }()
	listed, end, copies, failed := p.c.listWithCopies(ctx, from, to)
	p.c.copiesAhead(ctx, listed, copies)
	at, ahead := from, 0
	for len(listed) > 0 {
		if ahead == 0 {
			ahead = p.c.readAhead(ctx, listed)
		}
		h, n := listed[0].Name.Hour, 1
		for n < len(listed) && listed[n].Name.Hour == h {
			n++
		}
		p.dropHours(at, h)
		if err := p.readHour(ctx, h, listed[:n]); err != nil {
			return err
		}
		at, listed, ahead = h+1, listed[n:], ahead-n
	}
	p.dropHours(at, end)
	return failed
}

// readHour builds the hour from its listing, and keeps the old one when nothing changed.
func (p *pass) readHour(ctx context.Context, h timegrid.Hour, listed []Slot) error {
	var versions []version
	for _, of := range listed {
		for _, l := range of.Listed {
			versions = append(versions, version{l.Name, l.Info.ETag, l.Info.Size})
		}
	}
	old := p.c.view.at(h)
	// Records that could not be read last time are tried again although the listing is the same.
	if slices.Equal(old.listed, versions) && len(old.unreadable) == 0 {
		return nil
	}
	hr := &hour{listed: versions, blocks: map[slot]*Block{}, top: map[slot]uint64{}, committed: map[slot]uint64{}, expired: map[timegrid.Resolution]bool{}}
	p.c.sharing = hr.blocks
	defer func() { p.c.sharing = nil }()
	for _, of := range slices.Backward(listed) {
		st, err := p.c.records.State(ctx, of)
		if err != nil {
			return err
		}
		hr.addSlot(of.Name, st)
	}
	hr.sortByShard()
	p.next.hours[h] = hr
	p.forgetRecords(old, hr)
	return nil
}

// dropHours removes the hours from..end-1, which have no records any more.
func (p *pass) dropHours(from, end timegrid.Hour) {
	for h, old := range p.c.view.hours {
		if h >= from && h < end {
			p.forgetRecords(old, emptyHour)
			delete(p.next.hours, h)
		}
	}
}

// forgetRecords drops the cached records that the new listing does not have.
func (p *pass) forgetRecords(old, now *hour) {
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

// addSlot takes over the generation of a slot that counts. Records that can't be read become problems of the hour;
// the highest generation that could be read below them is still shown.
func (hr *hour) addSlot(of Name, st State) {
	at := slot{of.Shard, of.Resolution}
	hr.top[at] = st.Top
	for _, g := range st.Unreadable {
		hr.unreadable = append(hr.unreadable, Problem{g.Name.Key(), g.Err})
	}
	if st.Committed == 0 {
		return
	}
	hr.committed[at] = st.Committed
	if st.Block != nil {
		hr.blocks[at] = st.Block
		hr.shards = st.Block.Shards
	}
	if by := st.Missing(); by > 0 {
		hr.unreadable = append(hr.unreadable, Problem{st.Removed.Name.Key(), fmt.Errorf("%w: by %d", ErrReplaced, by)})
	}
	if st.Expired() {
		hr.expired[at.resolution] = true
	}
}

// readExpiry reads the decision of retention. A record that can't be read is a problem of every hour.
func (p *pass) readExpiry(ctx context.Context) error {
	if err := p.c.spend(); err != nil {
		return err
	}
	e, _, err := ReadExpiry(ctx, p.c.cfg.Reader, p.c.cfg.AuthorityID)
	if record.Opaque(err) {
		// The last decision that could be read stays: hours only ever join it, so it is never wrong, only old.
		p.next.unreadable = []Problem{{layout.RollupExpiryKey, err}}
		return nil
	}
	if err != nil {
		return err
	}
	p.next.expiry, p.next.unreadable = e, nil
	return nil
}

// share keeps one copy of the inputs that the resolutions of one plan have in common. Batches and records are
// compared too, so that a damaged record can't lend its inputs to another. The positions of the journal are dropped:
// no view needs them, and those of every block of a month would take more memory than all else of them.
func (c *Catalog) share(s *Block) {
	s.Journal = nil
	if c.cfg.Copies {
		*s = *CopyOf(Record{Block: s}).Block
	}
	for at, other := range c.sharing {
		if at.shard == s.Name.Shard && other.PlanSHA256 == s.PlanSHA256 && other.Inputs.Batches() == s.Inputs.Batches() && other.Inputs.Records() == s.Inputs.Records() {
			s.Inputs = other.Inputs
			return
		}
	}
}

func (c *Catalog) record(ctx context.Context, key string) (Record, objstore.Info, error) {
	if o, ok := c.copied[key]; ok {
		return o.record, o.info, o.err
	}
	if o, ok := c.ahead[key]; ok {
		return o.record, o.info, o.err
	}
	if err := c.spend(); err != nil {
		return Record{}, objstore.Info{}, err
	}
	return Read(ctx, c.cfg.Reader, c.cfg.AuthorityID, key)
}

func (c *Catalog) spend() error {
	if c.left.Add(-1) < 0 {
		return ErrBudget
	}
	return nil
}

// Read reads the record of a generation. A record of another authority is corrupt: somebody copied objects between
// buckets, and its blocks must not be mixed with ours.
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
