package published

import (
	"context"
	"iter"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// index is a parsed index with caches of what was asked of it.
type index struct {
	*chunk.Index
	id         uint64 // unique in the process
	label      agentlabel.Name
	renames    bool // some series has a label of its own with that name
	metas      []atomic.Pointer[meta]
	selections selections
	// every has the numbers of all series, made on first use.
	every atomic.Pointer[[]int]
	// agentShards are those of its agents, made on first use.
	agentShards atomic.Pointer[agentShards]
}

// meta is what the index says about a series.
type meta struct {
	labels labels.Labels
	hash   uint64
	typ    series.Type
}

// indexFactor is about how much larger a parsed index is, postings and label sets included.
const indexFactor = 12

// meta of series i.
// Two readers may compute it at the same time; both get the same.
func (x *index) meta(i int) *meta {
	if p := x.metas[i].Load(); p != nil {
		return p
	}
	// Made on first use: a selector touches few of an index's series, and label sets take most of its memory.
	ref := x.Series(i)
	b := labels.NewScratchBuilder(len(ref.Labels) + 1)
	ls := x.label.Labels(&b, own(ref.Labels), ref.Agent)
	m := &meta{ls, ls.Hash(), ref.Type}
	x.metas[i].Store(m)
	return m
}

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

// index reads and checks the index of o, or takes it from the cache.
func (q *Query) index(ctx context.Context, o *catalog.Object) (*index, error) {
	r := q.r
	if x, ok := r.indexes.Get(o.IndexKey); ok {
		q.stats.indexHits.Add(1)
		return x, nil
	}
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
	label := r.cfg.AgentLabel
	// A label of the series' own with the agent label's name is renamed on reading, which costs time for each
	// series; most indexes have none.
	in := &index{Index: x, id: r.lastIndex.Add(1), label: label, renames: label != "" && x.HasLabel(string(label)), metas: make([]atomic.Pointer[meta], x.Len()), selections: selections{max: selectionBytes(x.Len())}}
	r.indexes.Put(o.IndexKey, in, int64(o.IndexBytes)*indexFactor+int64(x.Len())*208+selectionBytes(x.Len()))
	return in, nil
}
