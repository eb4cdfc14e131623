package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/record"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// Defaults of Config.
const (
	DefaultRequestTimeout = 10 * time.Second
	DefaultMaxRequests    = 10_000
)

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
	// RequestTimeout of one request; 0 means 10 s.
	RequestTimeout time.Duration
}

// Catalog reads views. One caller at a time refreshes; views are safe for all.
type Catalog struct {
	cfg  Config
	view *View
	// half of an hour: what a refresh had read of it when it ran out of requests.
	half   map[string]seen
	halfOf window.Hour
	// compactions that were read, by key.
	compactions map[string]*Set
}

// New makes an empty catalog; it makes no request.
func New(c Config) (*Catalog, error) {
	if c.Reader == nil || c.MaxRequests < 0 || c.RequestTimeout < 0 {
		return nil, errors.New("catalog: a reader is needed, and bounds that are not negative")
	}
	if err := text("authority id", c.AuthorityID, MaxNameBytes); err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	if c.MaxRequests == 0 {
		c.MaxRequests = DefaultMaxRequests
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = DefaultRequestTimeout
	}
	return &Catalog{cfg: c, view: &View{hours: map[window.Hour]*hour{}}}, nil
}

// View is the newest one.
func (c *Catalog) View() *View { return c.view }

// Forget drops what was read of the hours outside from to to, so that memory is bounded.
func (c *Catalog) Forget(from, to window.Hour) {
	next := &View{hours: map[window.Hour]*hour{}, expiry: c.view.expiry, doubt: c.view.doubt}
	for h, got := range c.view.hours {
		if h >= from && h <= to {
			next.hours[h] = got
		}
	}
	c.view = next
}

// Refresh reads the hours from to to, both included: one listing in key order, and of the
// records that are new or changed those that can count, highest generation first. On an
// error the hours that were finished are in the view, and the others stay as they were.
func (c *Catalog) Refresh(ctx context.Context, from, to window.Hour) (*View, error) {
	if to < from {
		return c.view, nil
	}
	p := &pass{c: c, left: c.cfg.MaxRequests, next: &View{hours: maps.Clone(c.view.hours), expiry: c.view.expiry, doubt: c.view.doubt}}
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
	left int
	next *View
}

func (p *pass) read(ctx context.Context, from, to window.Hour) error {
	o := objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: layout.RollupSetsHour(from)}
	if from == to {
		o = objstore.ListOptions{Prefix: layout.RollupSetsHour(from)}
	}
	at, listed := from, []objstore.Info(nil)
	// close takes over the hour that was listed, and those before h, which have nothing.
	close := func(h window.Hour) error {
		if at >= h {
			return nil
		}
		if err := p.take(ctx, at, listed); err != nil {
			return err
		}
		for old := range p.c.view.hours {
			if old > at && old < h {
				delete(p.next.hours, old)
			}
		}
		at, listed = h, nil
		return nil
	}
	for {
		page, err := p.list(ctx, o)
		if err != nil {
			return err
		}
		for _, info := range page.Objects {
			n, err := layout.ParseRollupSet(info.Key)
			if err != nil || n.Span > 0 {
				continue // of another family, or foreign; a compaction is found by its sources
			}
			if n.Hour > to {
				return close(to + 1)
			}
			if err := close(n.Hour); err != nil {
				return err
			}
			listed = append(listed, info)
		}
		if page.Next == "" {
			return close(to + 1)
		}
		o.StartAfter = page.Next
	}
}

// take makes the hour of its listing.
func (p *pass) take(ctx context.Context, h window.Hour, listed []objstore.Info) error {
	if len(listed) == 0 {
		delete(p.next.hours, h)
		return nil
	}
	old := p.c.view.at(h)
	hr := &hour{seen: make(map[string]seen, len(listed)), sets: map[slot]*Set{}, top: map[slot]uint64{}, committed: map[slot]uint64{}, expired: map[window.Window]bool{}}
	changed := len(listed) != len(old.seen)
	for _, info := range listed {
		n, _ := layout.ParseRollupSet(info.Key)
		s := seen{name: n, etag: info.ETag, size: info.Size}
		was, ok := old.seen[info.Key]
		if half, read := p.c.half[info.Key]; read {
			was, ok = half, true
		}
		if ok && was.etag == s.etag && was.size == s.size {
			s.record = was.record
		} else {
			changed = true
		}
		hr.seen[info.Key] = s
	}
	if !changed && len(old.doubt) == 0 {
		return nil
	}
	// The listing ascends by generation within a slot: from its end, the first committed one counts.
	for _, info := range slices.Backward(listed) {
		if err := p.decide(ctx, hr, info.Key); err != nil {
			p.c.half, p.c.halfOf = hr.seen, h
			return err
		}
	}
	if p.c.halfOf == h {
		p.c.half = nil
	}
	hr.byShard()
	p.next.hours[h] = hr
	return nil
}

func (p *pass) decide(ctx context.Context, hr *hour, key string) error {
	s := hr.seen[key]
	at := slot{s.name.Shard, s.name.Window}
	hr.top[at] = max(hr.top[at], s.name.Generation)
	if hr.committed[at] > 0 {
		return nil
	}
	if s.record == nil {
		r, err := p.record(ctx, key)
		if record.Opaque(err) || errors.Is(err, objstore.ErrNotFound) {
			hr.doubt = append(hr.doubt, Problem{key, err})
			return nil
		}
		if err != nil {
			return err
		}
		p.share(hr, r.Set)
		s.record = &r
		hr.seen[key] = s
	}
	if set := s.record.Set; set != nil && set.Into != nil && set.Into.Set == nil {
		if ok, err := p.compaction(ctx, hr, key, set.Into); !ok || err != nil {
			s.record = nil // to be read again
			hr.seen[key] = s
			return err
		}
	}
	if s.record.Set != nil {
		hr.sets[at] = s.record.Set
		hr.shards = s.record.Set.Shards
	}
	if r := s.record.Removed; r != nil && r.SupersededBy > hr.top[at] {
		hr.doubt = append(hr.doubt, Problem{key, fmt.Errorf("%w: by %d", ErrReplaced, r.SupersededBy)})
	} else if r != nil && r.SupersededBy == 0 {
		hr.expired[at.window] = true
	}
	// One that was committed, and expired, hides what it had superseded.
	if s.record.Aborted == nil {
		hr.committed[at] = s.name.Generation
	}
	return nil
}

// expiry reads what retention has decided. A record that can't be read is a doubt about
// all hours.
func (p *pass) expiry(ctx context.Context) error {
	if err := p.spend(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.c.cfg.RequestTimeout)
	defer cancel()
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

// compaction looks up where the rows of a set are; false: it is a doubt.
func (p *pass) compaction(ctx context.Context, hr *hour, key string, into *Into) (bool, error) {
	at := into.Name.Key()
	c := p.c.compactions[at]
	if c == nil {
		r, err := p.record(ctx, at)
		if err != nil && !record.Opaque(err) && !errors.Is(err, objstore.ErrNotFound) {
			return false, err
		}
		if err == nil && r.Set == nil {
			err = CompactionKind.Corrupt(at, "it is not committed, or removed")
		}
		if err != nil {
			hr.doubt = append(hr.doubt, Problem{key, err})
			return false, nil
		}
		c = r.Set
		if p.c.compactions == nil || len(p.c.compactions) >= maxCompactions {
			p.c.compactions = map[string]*Set{}
		}
		p.c.compactions[at] = c
	}
	into.Set = c
	return true, nil
}

// maxCompactions bounds those that are remembered beside what a view holds.
const maxCompactions = 1000

// share keeps one copy of inputs that the windows of a plan have in common.
func (p *pass) share(hr *hour, s *Set) {
	if s == nil {
		return
	}
	for at, other := range hr.sets {
		if at.shard == s.Name.Shard && other.PlanSHA256 == s.PlanSHA256 && other.Inputs.Batches() == s.Inputs.Batches() && other.Inputs.Records() == s.Inputs.Records() {
			s.Inputs = other.Inputs
			return
		}
	}
}

func (p *pass) record(ctx context.Context, key string) (Record, error) {
	if err := p.spend(); err != nil {
		return Record{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.c.cfg.RequestTimeout)
	defer cancel()
	r, _, err := Read(ctx, p.c.cfg.Reader, p.c.cfg.AuthorityID, key)
	return r, err
}

func (p *pass) list(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := p.spend(); err != nil {
		return objstore.Page{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.c.cfg.RequestTimeout)
	defer cancel()
	return p.c.cfg.Reader.List(ctx, o)
}

func (p *pass) spend() error {
	if p.left == 0 {
		return ErrBudget
	}
	p.left--
	return nil
}

// Read reads the record of a generation. A record of another authority is corrupt.
func Read(ctx context.Context, g record.Getter, authority, key string) (Record, objstore.Info, error) {
	r, info, err := record.Read(ctx, g, key, SetKind, func(b []byte) (Record, error) { return ParseRecord(key, b) })
	if err == nil && r.authority() != authority {
		err = SetKind.Corrupt(key, "it is of the authority %.128q", r.authority())
	}
	if err != nil {
		return Record{}, info, err
	}
	return r, info, nil
}

func (r Record) authority() string {
	switch {
	case r.Set != nil:
		return r.Set.AuthorityID
	case r.Aborted != nil:
		return r.Aborted.AuthorityID
	}
	return r.Removed.AuthorityID
}
