package compact

import (
	"context"
	"iter"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Scanner finds the highest committed generations of one resolution and of some shards, in hours that have many
// more. It caches what it read. It is for one caller at a time.
type Scanner struct {
	store   objstore.Reader
	records *catalog.Reader
}

// NewScanner makes a Scanner with an empty cache; it makes no request.
func NewScanner(r objstore.Reader, authority string) *Scanner {
	return &Scanner{r, catalog.NewReader(catalog.ReaderConfig{Read: reading(r, authority), Trim: trim, Follow: true, Limit: math.MaxInt64})}
}

// reading reads the records of an authority.
func reading(r objstore.Reader, authority string) func(context.Context, string) (catalog.Record, objstore.Info, error) {
	return func(ctx context.Context, key string) (catalog.Record, objstore.Info, error) {
		return catalog.Read(ctx, r, authority, key)
	}
}

// trim drops what compaction does not need, which is most of a record.
func trim(s *catalog.Block) {
	s.Inputs = catalog.Inputs{}
	if s.Redirect != nil {
		s.Redirect.Keys = nil
	}
}

// Inventory is the result of a scan.
type Inventory struct {
	// Blocks are highest committed generations.
	Blocks []*catalog.Block
	// Compactions that begin in the hours; only those to which no block redirects are read.
	Compactions []catalog.Name
	// Skipped counts the hours of shards that have a record that can't be read.
	Skipped      int
	from, to     timegrid.Hour
	unreferenced []*catalog.Block // committed compactions to which no block redirects
}

// Scan reads the hours from..to, both included, of the shards for which of is true. What it read stays cached until Forget.
func (l *Scanner) Scan(ctx context.Context, res timegrid.Resolution, from, to timegrid.Hour, of func(shard.ID) bool) (Inventory, error) {
	seen := Inventory{from: from, to: to}
	used := map[catalog.Name]bool{}
	var compactions []catalog.Listed
	for slot, err := range slots(ctx, l.store, from, to) {
		if err != nil {
			return seen, err
		}
		if slot.Name.Resolution != res || !of(slot.Name.Shard) {
			continue
		}
		for _, g := range slot.Listed {
			used[g.Name] = true
			if slot.Name.Span > 0 {
				seen.Compactions = append(seen.Compactions, g.Name)
				compactions = append(compactions, g)
			}
		}
		if slot.Name.Span > 0 {
			continue
		}
		st, err := l.records.State(ctx, slot)
		switch {
		case err != nil:
			return seen, err
		case len(st.Unreadable) > 0:
			seen.Skipped++ // the unreadable record may be of the generation that counts
		case st.Block != nil:
			seen.Blocks = append(seen.Blocks, st.Block)
		}
	}
	if err := l.readUnreferenced(ctx, &seen, compactions); err != nil {
		return seen, err
	}
	// Records of other resolutions and hours stay, for other scans.
	l.records.Keep(func(n catalog.Name) bool { return used[n] || n.Resolution != res || n.Hour < from || n.Hour > to })
	return seen, nil
}

// Forget drops the records of hours before the given one, which is not scanned again.
func (l *Scanner) Forget(before timegrid.Hour) {
	l.records.Keep(func(n catalog.Name) bool { return n.Hour >= before })
}

// readUnreferenced reads the compactions to which no block redirects.
func (l *Scanner) readUnreferenced(ctx context.Context, seen *Inventory, compactions []catalog.Listed) error {
	pointed := map[catalog.Name]bool{}
	for _, s := range seen.Blocks {
		if s.Redirect != nil {
			pointed[s.Redirect.Name] = true
		}
	}
	for _, c := range compactions {
		if pointed[c.Name] {
			continue
		}
		g, err := l.records.Generation(ctx, c)
		if err != nil {
			return err
		}
		// One that can't be read is never called orphaned, and so stays.
		if g.Err == nil && g.Record.Block != nil {
			seen.unreferenced = append(seen.unreferenced, g.Record.Block)
		}
	}
	return nil
}

// Orphaned returns the compactions to which no source redirects, nor will: a worker died before it redirected
// them, and the sources are in a longer span or superseded since.
func (s Inventory) Orphaned() []catalog.Name {
	at := map[catalog.Name]*catalog.Block{}
	for _, block := range s.Blocks {
		at[block.Name] = block
	}
	var out []catalog.Name
	for _, c := range s.unreferenced {
		// With an hour unread, or a span that reaches beyond the scan, a source that redirects may have been
		// missed.
		if s.Skipped > 0 || c.Name.Hour < s.from || c.Name.Hour+timegrid.Hour(c.Name.Span)-1 > s.to {
			continue
		}
		if !slices.ContainsFunc(c.Sources, func(src catalog.Name) bool { return at[src] != nil && at[src].Redirect.YieldsTo(c.Name) }) {
			out = append(out, c.Name)
		}
	}
	return out
}

// slots yields the generations of the hours from..to, slot by slot in key order.
func slots(ctx context.Context, r objstore.Reader, from, to timegrid.Hour) iter.Seq2[catalog.Slot, error] {
	return func(yield func(catalog.Slot, error) bool) {
		o := objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: layout.BlockManifestsHour(from)}
		for of, err := range catalog.Slots(ctx, r, o) {
			if err == nil && of.Name.Hour > to {
				return
			}
			if !yield(of, err) || err != nil {
				return
			}
		}
	}
}
