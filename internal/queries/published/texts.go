package published

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// LabelNames returns the names on series that match and may have samples in the range.
func (q *Query) LabelNames(ctx context.Context, mint, maxt int64, ms ...*labels.Matcher) ([]string, error) {
	return q.texts(ctx, "names", mint, maxt, ms, (*index).labelNames)
}

// LabelValues returns the values of a label on series that match and may have samples in the range.
func (q *Query) LabelValues(ctx context.Context, name string, mint, maxt int64, ms ...*labels.Matcher) ([]string, error) {
	return q.texts(ctx, "values of "+name, mint, maxt, ms, func(x *index, all bool, series []int, add func(string)) {
		x.labelValues(name, all, series, add)
	})
}

// texts gathers what the selected series of each index have. what names it: a text is a function of what, the matchers
// and the indexes, and so it is kept for the next query.
func (q *Query) texts(ctx context.Context, what string, mint, maxt int64, ms []*labels.Matcher, of func(x *index, all bool, series []int, add func(string))) ([]string, error) {
	from, to, ok := q.span(mint, maxt)
	if !ok {
		return nil, nil
	}
	if err := q.pin(ctx, from, to); err != nil {
		return nil, err
	}
	objects, instead, err := q.objects(ctx, Hint{}, from, to, mint, maxt, ms)
	if err != nil {
		return nil, err
	}
	// Rolled rows have the labels of all samples, so some may be missing only where no rows are left.
	q.reduceFound(instead, nil)
	sources, key := textsOf(what, ms, objects)
	if out, ok := q.r.texts.Get(key); ok {
		return slices.Clone(out), nil
	}
	set := map[string]struct{}{}
	var out []string
	size := int64(textsOverhead)
	for _, s := range sources {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		of(s.x, s.whole(), s.series, func(v string) {
			if _, ok := set[v]; !ok {
				set[v] = struct{}{}
				out = append(out, v)
				size += int64(len(v)) + 16
			}
		})
	}
	// Cloned, as texts are parts of their index, which the cache must not keep in memory.
	kept := make([]string, len(out))
	for i, v := range out {
		kept[i] = strings.Clone(v)
	}
	q.r.texts.Put(key, kept, size)
	return out, nil
}

// textsOverhead estimates the memory of an entry besides its texts.
const textsOverhead = 256

// textSource is an index with some of its series.
type textSource struct {
	x      *index
	series []int
}

// whole reports whether these are all series of the index, whose tables have their texts then. Matchers, or agents that
// are masked, leave out others.
func (s *textSource) whole() bool { return len(s.series) == s.x.Len() && s.x.numbers == nil }

// textsOf are the different sources of objects - the hours of a compaction have one - and a key of what they, the
// matchers and what determine.
func textsOf(what string, ms []*labels.Matcher, objects []*object) (out []textSource, key identity.Digest) {
	type from struct {
		h      *handle
		masked *int // the first of the series, where not all of the handle's count
	}
	seen := make(map[from]struct{}, len(objects))
	h := sha256.New()
	fmt.Fprintf(h, "%q %q\n", what, selectionKey(ms))
	var b []byte
	for _, ob := range objects {
		f := from{h: ob.handle}
		masked := !ob.whole()
		if masked {
			f.masked = &ob.series[0]
		}
		if _, ok := seen[f]; ok {
			continue
		}
		seen[f] = struct{}{}
		out = append(out, textSource{ob.x, ob.series})
		b = append(b[:0], ob.x.id[:]...)
		b = binary.AppendUvarint(b, uint64(len(ob.series)))
		// The series that match are those of the key and the index; which of them count is not.
		for _, i := range ob.series {
			if !masked {
				break
			}
			b = binary.AppendUvarint(b, uint64(ob.x.number(i)))
		}
		h.Write(b)
	}
	h.Sum(key[:0])
	return out, key
}
