package compact

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/record"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// Looker finds the highest committed generations of one window and some shards: of hours
// in which there are many more. It remembers what it read. For one caller at a time.
type Looker struct {
	store     objstore.Reader
	authority string
	known     map[string]*remembered
}

// remembered is a record that was read. Of a set the inputs are left out.
type remembered struct {
	etag string
	set  *catalog.Set // nil: removed or aborted
	over bool         // nothing below it counts
	used bool         // in this look
}

// NewLooker makes one that knows nothing; it makes no request.
func NewLooker(r objstore.Reader, authority string) *Looker {
	return &Looker{r, authority, map[string]*remembered{}}
}

// Seen is what a look found.
type Seen struct {
	// Sets are highest committed generations.
	Sets []*catalog.Set
	// Compactions that begin in the hours; only those that no set points at are read.
	Compactions []catalog.Name
	// Skipped hours of shards have a record that can't be read.
	Skipped  int
	from, to window.Hour
	idle     []*catalog.Set // committed compactions that no set points at
}

// Look reads the hours from to to, both included, of the shards that of names.
func (l *Looker) Look(ctx context.Context, w window.Window, from, to window.Hour, of func(shard.ID) bool) (Seen, error) {
	seen := Seen{from: from, to: to}
	type slot struct {
		h window.Hour
		s shard.ID
	}
	gens := map[slot][]objstore.Info{}
	var order []slot
	var compactions []objstore.Info
	err := listHours(ctx, l.store, from, to, func(n catalog.Name, i objstore.Info) error {
		if n.Window != w || !of(n.Shard) {
			return nil
		}
		if n.Span > 0 {
			seen.Compactions = append(seen.Compactions, n)
			compactions = append(compactions, i)
			return nil
		}
		at := slot{n.Hour, n.Shard}
		if gens[at] == nil {
			order = append(order, at)
		}
		gens[at] = append(gens[at], i)
		return nil
	})
	if err != nil {
		return seen, err
	}
	for _, r := range l.known {
		r.used = false
	}
	for _, at := range order {
		for _, i := range slices.Backward(gens[at]) {
			r, err := l.read(ctx, i)
			if unreadable(err) {
				seen.Skipped++
				break
			}
			if err != nil {
				return seen, err
			}
			if r.set != nil {
				seen.Sets = append(seen.Sets, r.set)
			}
			if r.over {
				break
			}
		}
	}
	if err := l.idle(ctx, &seen, compactions); err != nil {
		return seen, err
	}
	for key, r := range l.known {
		if n, err := layout.ParseRollupSet(key); err == nil && !r.used && (n.Window == w || n.Hour < from) {
			delete(l.known, key)
		}
	}
	return seen, nil
}

// idle reads the compactions that no set points at.
func (l *Looker) idle(ctx context.Context, seen *Seen, compactions []objstore.Info) error {
	pointed := map[catalog.Name]bool{}
	for _, s := range seen.Sets {
		if s.Into != nil {
			pointed[s.Into.Name] = true
		}
	}
	for k, i := range compactions {
		if pointed[seen.Compactions[k]] {
			continue
		}
		r, err := l.read(ctx, i)
		if unreadable(err) {
			continue // it stays
		}
		if err != nil {
			return err
		}
		if r.set != nil {
			seen.idle = append(seen.idle, r.set)
		}
	}
	return nil
}

// Unneeded are the compactions that no source points at, or may still be made to: a
// worker died before it did, and the sources are in a longer span, or replaced, since.
func (s Seen) Unneeded() []catalog.Name {
	at := map[catalog.Name]*catalog.Set{}
	for _, set := range s.Sets {
		at[set.Name] = set
	}
	var out []catalog.Name
	for _, c := range s.idle {
		if s.Skipped > 0 || c.Name.Hour < s.from || c.Name.Hour+window.Hour(c.Name.Span)-1 > s.to {
			continue
		}
		if !slices.ContainsFunc(c.Sources, func(src catalog.Name) bool { return at[src] != nil && at[src].Into.Earlier(c.Name) }) {
			out = append(out, c.Name)
		}
	}
	return out
}

func unreadable(err error) bool {
	return record.Opaque(err) || errors.Is(err, objstore.ErrNotFound)
}

// read reads a record, and the compaction that it points at.
func (l *Looker) read(ctx context.Context, i objstore.Info) (*remembered, error) {
	if r := l.known[i.Key]; r != nil && r.etag == i.ETag {
		r.used = true
		return r, nil
	}
	rec, info, err := l.record(ctx, i.Key)
	if err != nil {
		return nil, err
	}
	r := &remembered{etag: info.ETag, set: rec.Set, over: rec.Aborted == nil, used: true}
	if s := r.set; s != nil {
		s.Inputs = catalog.Inputs{}
		if s.Into != nil {
			s.Into.Keys = nil
			if s.Into.Set, err = l.compaction(ctx, s.Into.Name); err != nil {
				return nil, err
			}
		}
	}
	l.known[i.Key] = r
	return r, nil
}

func (l *Looker) record(ctx context.Context, key string) (catalog.Record, objstore.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	return catalog.Read(ctx, l.store, l.authority, key)
}

func (l *Looker) compaction(ctx context.Context, n catalog.Name) (*catalog.Set, error) {
	key := n.Key()
	if r := l.known[key]; r != nil && r.set != nil {
		r.used = true
		return r.set, nil
	}
	rec, info, err := l.record(ctx, key)
	if err != nil {
		return nil, err
	}
	if rec.Set == nil {
		return nil, fmt.Errorf("%w: %q is removed", record.ErrCorrupt, key)
	}
	l.known[key] = &remembered{etag: info.ETag, set: rec.Set, used: true}
	return rec.Set, nil
}

// listHours gives the manifests of the hours from to to in key order.
func listHours(ctx context.Context, r objstore.Reader, from, to window.Hour, fn func(catalog.Name, objstore.Info) error) error {
	after := layout.RollupSetsHour(from)
	for {
		page, err := listPage(ctx, r, objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: after})
		if err != nil {
			return err
		}
		for _, i := range page.Objects {
			n, err := layout.ParseRollupSet(i.Key)
			if err != nil {
				continue // foreign
			}
			if n.Hour > to {
				return nil
			}
			if err := fn(n, i); err != nil {
				return err
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

func listPage(ctx context.Context, r objstore.Reader, o objstore.ListOptions) (objstore.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	return r.List(ctx, o)
}
