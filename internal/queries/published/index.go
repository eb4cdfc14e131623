package published

import (
	"context"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// index is a parsed index with caches of what was asked of it.
type index struct {
	*chunk.Index
	id      identity.Digest // of its object's bytes
	numbers []int           // of the series in that object, where only some of them are here; else nil
	label   agentlabel.Name
	renames bool // some series has a label of its own with that name
	shared  *metas
	metas   []atomic.Pointer[meta]

	selections selections
	// every has the numbers of all series, made on first use.
	every atomic.Pointer[[]int]
	// agentShards are those of its agents, made on first use.
	agentShards atomic.Pointer[agentShards]
}

// newIndex is an index of an object whose series have the numbers; nil: all of them.
func (r *Reader) newIndex(x *chunk.Index, id identity.Digest, numbers []int) *index {
	label := r.cfg.AgentLabel
	// A label of the series' own with the agent label's name is renamed on reading, which costs time for each
	// series; most indexes have none.
	in := &index{Index: x, id: id, numbers: numbers, label: label, renames: label != "" && x.HasLabel(string(label)), shared: r.metas, metas: make([]atomic.Pointer[meta], x.Len())}
	if numbers == nil {
		in.selections.max = selectionBytes(x.Len())
	}
	return in
}

// bytes estimates the memory of an index with what is made of it, but for the labels of its series: those of different
// hours share them.
func (x *index) bytes() int64 {
	const (
		overhead  = int64(unsafe.Sizeof(index{})) + 256 // with the cache's entry
		ofSeries  = 8 + 8 + 8                           // metas, numbers, every
		ofSymbols = 128                                 // postings
	)
	n := x.Bytes() + int64(x.Len())*ofSeries + overhead + x.selections.max
	if x.numbers == nil {
		n += int64(x.Symbols()) * ofSymbols
	}
	return n
}

// number is that of series i in the object.
func (x *index) number(i int) int {
	if x.numbers == nil {
		return i
	}
	return x.numbers[i]
}

// meta of series i.
// Two readers may compute it at the same time; both get the same.
func (x *index) meta(i int) *meta {
	if p := x.metas[i].Load(); p != nil {
		return p
	}
	// Made on first use: a selector touches few of an index's series, and label sets take most of its memory.
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.own = x.AppendLabels(s.own[:0], i)
	m := x.shared.of(x.label.Labels(&s.b, own(s.own), x.Agent(i)), x.Type(i))
	x.metas[i].Store(m)
	return m
}

// scratch is memory for making labels.
type scratch struct {
	own []series.Label
	b   labels.ScratchBuilder
}

var scratches = sync.Pool{New: func() any { return &scratch{} }}

func own(ls []series.Label) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for _, l := range ls {
			if !yield(l.Name, l.Value) {
				return
			}
		}
	}
}

func (x *index) labels(i int) labels.Labels { return x.meta(i).labels }

// cachedIndex is the index of o from the cache: perhaps only those of its series that were found by the matchers of the
// key.
func (q *Query) cachedIndex(o *catalog.Object, key string) (*index, bool) {
	x, ok := q.r.chosen.Get(chosenKey{o.IndexSHA256, key})
	if !ok {
		x, ok = q.r.indexes.Get(o.IndexKey)
	}
	if ok {
		q.stats.indexHits.Add(1)
	}
	return x, ok
}

// chosenKey is an index and matchers.
type chosenKey struct {
	index    identity.Digest
	matchers string
}

// chosenFrom is the part of an index's series, as a divisor, of which no more may be found so that they are kept alone.
const chosenFrom = 4

// choose keeps some series of an index that had to be read, in an index of their own: those of many hours together take
// more memory than there is, while queries ask again and again for few series of each.
func (r *Reader) choose(x *index, key string, found []int) *index {
	if len(found) == 0 || len(found) > x.Len()/chosenFrom {
		return nil
	}
	some := r.newIndex(x.Only(found), x.id, slices.Clone(found))
	r.chosen.Put(chosenKey{x.id, key}, some, some.bytes()+int64(len(key)))
	return some
}

// index reads and checks the index of o.
func (q *Query) index(ctx context.Context, o *catalog.Object) (*index, error) {
	r := q.r
	if o.Memory == nil {
		if err := q.spend(int64(o.IndexBytes)); err != nil {
			return nil, err
		}
	}
	for {
		// Callers share one read, which runs under the first caller's context: if that one is canceled, another
		// caller reads again.
		v, err, shared := r.one.Do(o.IndexKey, func() (any, error) { return r.readIndex(ctx, o) })
		if err != nil && shared && ctx.Err() == nil && isContext(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return v.(*index), nil
	}
}

func (r *Reader) readIndex(ctx context.Context, o *catalog.Object) (*index, error) {
	get := block.Fetch(r.get)
	if o.Memory != nil {
		get = func(context.Context, string, int64, int64) ([]byte, error) { return o.Memory.Index, nil }
	}
	x, err := get.Index(ctx, o, r.cfg.Limits)
	if err != nil {
		return nil, err
	}
	in := r.newIndex(x, o.IndexSHA256, nil)
	r.indexes.Put(o.IndexKey, in, in.bytes())
	return in, nil
}
