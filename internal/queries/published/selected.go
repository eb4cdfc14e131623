package published

import (
	"context"
	"strconv"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
)

// selections caches the answers of an index to matchers; most often the answer is that it has nothing. The index
// is charged for the whole bound in advance.
type selections struct {
	mu   sync.Mutex
	max  int64
	used int64
	at   map[string][]int
}

const (
	selectionOverhead = 64      // of an entry, besides its key and numbers
	selectionKeys     = 4 << 10 // bytes for entries of any index, in addition to those for its series
)

// selectionBytes is the bound for an index with that many series.
func selectionBytes(series int) int64 { return selectionKeys + 8*int64(series) }

// selectionKey encodes matchers with their lengths, so that different lists have different keys.
func selectionKey(ms []*labels.Matcher) string {
	size := 0
	for _, m := range ms {
		size += len(m.Name) + len(m.Value) + 12
	}
	b := make([]byte, 0, size)
	for _, m := range ms {
		b = strconv.AppendInt(b, int64(m.Type), 10)
		b = append(strconv.AppendInt(append(b, ' '), int64(len(m.Name)), 10), ' ')
		b = append(b, m.Name...)
		b = append(strconv.AppendInt(b, int64(len(m.Value)), 10), ' ')
		b = append(b, m.Value...)
	}
	return string(b)
}

// all returns all series.
func (x *index) all() []int {
	if p := x.every.Load(); p != nil {
		return *p
	}
	all := make([]int, x.Len())
	for i := range all {
		all[i] = i
	}
	x.every.Store(&all)
	return all
}

// selected returns the series that match, ascending; the caller must not change them. An error is the context's:
// an expression over many values may take long.
func (x *index) selected(ctx context.Context, key string, ms []*labels.Matcher) ([]int, error) {
	// Those that were chosen were found by these matchers.
	if len(ms) == 0 || x.numbers != nil {
		return x.all(), nil
	}
	s := &x.selections
	s.mu.Lock()
	found, ok := s.at[key]
	s.mu.Unlock()
	if ok {
		return found, nil
	}
	found = x.match(ctx, ms)
	if err := ctx.Err(); err != nil {
		return nil, err // found may be too short, and must not be cached
	}
	size := int64(len(key)+8*cap(found)) + selectionOverhead
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.at[key]; ok || size > s.max {
		return found, nil
	}
	// When it is full everything goes: selectors repeat within a dashboard, so the next queries fill it again, and
	// no order of use has to be kept.
	if s.used += size; s.used > s.max || s.at == nil {
		s.at, s.used = map[string][]int{}, size
	}
	s.at[key] = found
	return found, nil
}
