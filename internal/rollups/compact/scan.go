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

// Looker finds the highest committed generations of one resolution and some shards: of hours
// in which there are many more. It remembers what it read. For one caller at a time.
type Scanner struct {
	store   objstore.Reader
	records *catalog.Reader
}

// NewLooker makes one that knows nothing; it makes no request.
func NewScanner(r objstore.Reader, authority string) *Scanner {
	return &Scanner{r, catalog.NewReader(catalog.ReaderConfig{Read: reading(r, authority), Trim: trim, Follow: true, Limit: math.MaxInt64})}
}

// reading reads the records of an authority.
func reading(r objstore.Reader, authority string) func(context.Context, string) (catalog.Record, objstore.Info, error) {
	return func(ctx context.Context, key string) (catalog.Record, objstore.Info, error) {
		return catalog.Read(ctx, r, authority, key)
	}
}

// trim drops what compaction does not need, and what there is most of.
func trim(s *catalog.Block) {
	s.Inputs = catalog.Inputs{}
	if s.Into != nil {
		s.Into.Keys = nil
	}
}

// Seen is what a look found.
type Inventory struct {
	// Sets are highest committed generations.
	Blocks []*catalog.Block
	// Compactions that begin in the hours; only those that no set points at are read.
	Compactions []catalog.Name
	// Skipped hours of shards have a record that can't be read.
	Skipped  int
	from, to timegrid.Hour
	idle     []*catalog.Block // committed compactions that no set points at
}

// Look reads the hours from to to, both included, of the shards that of names.
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
		case len(st.Doubt) > 0:
			seen.Skipped++ // any of them may count
		case st.Block != nil:
			seen.Blocks = append(seen.Blocks, st.Block)
		}
	}
	if err := l.idle(ctx, &seen, compactions); err != nil {
		return seen, err
	}
	l.records.Keep(func(n catalog.Name) bool { return used[n] || n.Resolution != res && n.Hour >= from })
	return seen, nil
}

// idle reads the compactions that no set points at.
func (l *Scanner) idle(ctx context.Context, seen *Inventory, compactions []catalog.Listed) error {
	pointed := map[catalog.Name]bool{}
	for _, s := range seen.Blocks {
		if s.Into != nil {
			pointed[s.Into.Name] = true
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
		// One that can't be read stays.
		if g.Err == nil && g.Record.Block != nil {
			seen.idle = append(seen.idle, g.Record.Block)
		}
	}
	return nil
}

// Unneeded are the compactions that no source points at, or may still be made to: a
// worker died before it did, and the sources are in a longer span, or replaced, since.
func (s Inventory) Unneeded() []catalog.Name {
	at := map[catalog.Name]*catalog.Block{}
	for _, block := range s.Blocks {
		at[block.Name] = block
	}
	var out []catalog.Name
	for _, c := range s.idle {
		if s.Skipped > 0 || c.Name.Hour < s.from || c.Name.Hour+timegrid.Hour(c.Name.Span)-1 > s.to {
			continue
		}
		if !slices.ContainsFunc(c.Sources, func(src catalog.Name) bool { return at[src] != nil && at[src].Into.Earlier(c.Name) }) {
			out = append(out, c.Name)
		}
	}
	return out
}

// slots gives the generations of the hours from to to, slot by slot in key order.
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
