package published

import (
	"context"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Rolled is one label set with rolled rows of some hours and raw samples of others.
type Rolled struct {
	Labels labels.Labels
	// Raw is what is read from raw blocks; nil when nothing is.
	Raw  *Series
	rows []part // by hour, disjoint
	q    *Query
}

// part is a series of one chunk with the hours whose rows count.
type part struct {
	piece    // none when cols are there
	from, to timegrid.Hour
	res      timegrid.Resolution
	typ      series.Type
	cols     *chunk.Columns // of what was found before
	read     int            // how many rows were read for them: limits count these, and not those that are left
}

// partsOf joins consecutive hours of one chunk.
func partsOf(pieces []piece) []part {
	var out []part
	for _, p := range pieces {
		// One part is decoded at once, while each hour on its own would decode the chunk again.
		if n := len(out); n > 0 && out[n-1].ob.handle == p.ob.handle && out[n-1].i == p.i && out[n-1].to+1 == p.ob.hour {
			out[n-1].to++
			continue
		}
		out = append(out, part{piece: p, from: p.ob.hour, to: p.ob.hour, res: p.ob.res, typ: p.ob.x.meta(p.i).typ})
	}
	return out
}

// Parts is the number of parts with rolled rows; they are in time order.
func (r *Rolled) Parts() int { return len(r.rows) }

// Resolution of the rows of part i.
func (r *Rolled) Resolution(i int) timegrid.Resolution { return r.rows[i].res }

// Type of the rows of part i.
func (r *Rolled) Type(i int) series.Type { return r.rows[i].typ }

// Rows returns the rolled rows of part i whose buckets end in [mint, maxt], and perhaps others; those with index from
// up to, not including, to count. They are in the memory of into, or shared with other queries, and must not be
// changed. It is false when they can't be read, which is noted as a Problem. Error: *LimitError.
func (r *Rolled) Rows(i int, mint, maxt int64, want chunk.Mask, into *chunk.Columns) (cols *chunk.Columns, from, to int, ok bool, err error) {
	p := r.rows[i]
	mint, maxt = firstNS(max(mint, p.from.StartMS()+1)), lastNS(min(maxt, p.to.EndMS()))
	rows := 0
	if cols = p.cols; cols != nil {
		rows = p.read
	} else {
		if p.ob.broken.Load() {
			return nil, 0, 0, false, nil
		}
		if cols, rows, err = p.ob.rolledRows(p.i, mint, maxt, want, into); err != nil {
			p.ob.corrupt(err)
			return nil, 0, 0, false, nil
		}
	}
	from, _ = slices.BinarySearch(cols.T, mint)
	to, _ = slices.BinarySearch(cols.T, maxt+1)
	return cols, from, to, true, r.q.decoded(rows)
}

// rolledKey is some columns of a range of a series' parts.
type rolledKey struct {
	columnKey
	want chunk.Mask
}

func (h *handle) rowsKey(i, first, last int) rolledKey {
	return rolledKey{columnKey{h.x.id, h.x.number(i), first, last}, h.want}
}

// rolledOverhead estimates the memory of a cache entry besides its rows: Columns name many columns that it lacks.
const rolledOverhead = 256 + int64(unsafe.Sizeof(chunk.Columns{}))

// heldRows are the columns of rolled rows that a query wants of a handle, in a range of time.
type heldRows struct {
	mint, maxt int64 // nanoseconds
	of         []keptRows
}

// keptRows of a series; cols is nil when they must be decoded.
type keptRows struct {
	first, last int // parts
	cols        *chunk.Columns
	none        bool // there are no rows in the range
}

// holdRows takes the columns of the handle's series that are cached, and returns the series that must be decoded. What it
// took stays with the query, whatever the cache evicts.
func (q *Query) holdRows(h *handle, mint, maxt int64) (rest []int) {
	width := 8 * int64(1+bits.OnesCount32(uint32(h.want))) // a time, and a number in each column
	h.kept = &heldRows{mint, maxt, make([]keptRows, len(h.series))}
	for k, i := range h.series {
		first, last, ok := h.x.Parts(i, mint, maxt)
		if !ok {
			h.kept.of[k].none = true
			continue
		}
		if c, ok := q.r.rolled.Get(h.rowsKey(i, first, last)); ok {
			h.kept.of[k] = keptRows{first: first, last: last, cols: c}
			q.stats.columnHits.Add(1)
			continue
		}
		rest = append(rest, i)
		h.rest += width * int64(h.x.Rows(i, first, last))
	}
	return rest
}

// rowsAtHand are the columns of series i that are held; nil when they must be decoded.
func (h *handle) rowsAtHand(i int) *chunk.Columns {
	if h.kept == nil || h.broken.Load() {
		return nil
	}
	k, ok := slices.BinarySearch(h.series, i)
	switch {
	case !ok:
		return nil
	case h.kept.of[k].none:
		return &chunk.Columns{}
	}
	return h.kept.of[k].cols
}

// rolledRows decodes rolled rows of a series, or takes them from those that are held. It returns the number of rows that
// were read.
func (h *handle) rolledRows(i int, mint, maxt int64, want chunk.Mask, into *chunk.Columns) (*chunk.Columns, int, error) {
	keep := h.kept != nil && want == h.want && h.kept.mint <= mint && maxt <= h.kept.maxt
	if keep {
		if c := h.rowsAtHand(i); c != nil {
			return c, c.Rows(), nil
		}
		// All that the query wants of the chunk is decoded at once, so that it is found together the next time.
		mint, maxt = h.kept.mint, h.kept.maxt
	}
	first, last, any := h.x.Parts(i, mint, maxt)
	// Parts of one chunk share its decoder, and the engine may read series in parallel.
	h.mu.Lock()
	rows, err := h.decoder().Series(i, mint, maxt, want, into)
	h.mu.Unlock()
	// Rows that are read only once are not worth a copy, so only those are kept whose blocks were cached already.
	// Histograms would share their buckets with the decoder's memory.
	if err == nil && any && keep && h.warm && !h.once && !into.Has(chunk.HistogramColumns) {
		h.q.r.rolled.Put(h.rowsKey(i, first, last), into.Clone(), int64(8*into.Columns()*into.Rows())+rolledOverhead)
	}
	return into, rows, err
}

// Rows says which resolutions may be read instead of samples.
type Rows struct {
	// Resolution is also read where samples exist; timegrid.Raw reads the samples themselves.
	Resolution timegrid.Resolution
	// Expired are the resolutions that stand in for expired samples: the first that has all of an hour is used.
	Expired []timegrid.Resolution
	// Want are the columns that will be read of them.
	Want chunk.Mask
	// Nearly allows buckets that are not those of the range, and leaves out hours of which nothing is left.
	// Reduced then reports them.
	Nearly bool
}

// SelectRolled returns the matching series with rows instead of raw samples: for each shard's hour whose block of
// the resolution was made from the same plan as the raw one, except in hours for which raw is true; and for hours
// whose samples have expired. ok is false, before any row is read, when no block can stand in, when a series has a
// type that takes refuses, or when several series of one such hour have the same labels.
func (q *Query) SelectRolled(ctx context.Context, r Rows, mint, maxt int64, raw func(timegrid.Hour) bool, takes func(series.Type) bool, ms ...*labels.Matcher) (out []Rolled, ok bool, err error) {
	from, to, any := q.span(mint, maxt)
	if !any {
		return nil, false, nil
	}
	if err := q.pin(ctx, from, to); err != nil {
		return nil, false, err
	}
	instead := q.standIns(from, to, r.Expired)
	// Only an approximate answer may leave out hours; the caller falls back to Select, which notes them.
	if instead.missing() && !r.Nearly {
		return nil, false, nil
	}
	rest := q.chooseRolled(&instead, r.Resolution, from, to, raw)
	if len(instead.blocks) == 0 {
		return nil, false, nil
	}
	before, known := q.foundBefore(r, instead, mint, maxt, ms)
	if before != nil {
		// Only the samples beside them are left to be found.
		clear(instead.blocks)
	}
	rows, samples, err := q.seekRolled(ctx, r.Want, instead, rest, mint, maxt, ms)
	if err != nil {
		return nil, false, err
	}
	if slices.ContainsFunc(before, func(s Rolled) bool { return !takesAll(&s, takes) }) {
		return nil, false, nil
	}
	// Checked before any block is fetched, since the caller then reads the samples instead.
	for _, ob := range rows {
		if slices.ContainsFunc(ob.series, func(i int) bool { return !takes(ob.x.meta(i).typ) }) {
			return nil, false, nil
		}
	}
	if err := q.load(ctx, append(slices.Clone(rows), samples...), mint, maxt); err != nil {
		return nil, false, err
	}
	if before == nil {
		if before, ok = q.rolledOf(gather(rows)); !ok {
			return nil, false, nil
		}
		if kept := q.keepFound(known, before); kept != nil {
			before = kept
		}
	}
	if out, ok = joinRolled(before, gather(samples)); !ok {
		return nil, false, nil
	}
	// Exact answers lack nothing, although their samples have expired.
	if r.Nearly {
		q.reduceFound(instead, rows)
	}
	return out, true, nil
}

// chooseRolled adds the blocks of a resolution that were made from the same plan as their raw ones, and returns
// the raw blocks that must be read themselves: those without such a block, and those of hours for which raw is
// true.
func (q *Query) chooseRolled(instead *standIns, res timegrid.Resolution, from, to timegrid.Hour, raw func(timegrid.Hour) bool) (rest []*catalog.Block) {
	for h := from; h <= to; h++ {
		late, v := q.lateBlocks(h), q.view(h)
		rest = append(rest, late...)
		rolled := v.Rolled(h, res)
		for i, s := range v.Blocks(h, timegrid.Raw) {
			// Rolled rows and late samples of one hour can't be added up.
			if slices.ContainsFunc(late, func(l *catalog.Block) bool { return l.Name.Shard == s.Name.Shard }) {
				rest = append(rest, s)
				continue
			}
			if rolled == nil || rolled[i] == nil || raw(h) {
				rest = append(rest, s)
				continue
			}
			instead.blocks[res] = append(instead.blocks[res], rolled[i])
		}
	}
	return rest
}

// seekRolled reads, in parallel, the indexes of rows and of the raw samples that are needed beside them.
func (q *Query) seekRolled(ctx context.Context, want chunk.Mask, instead standIns, rest []*catalog.Block, mint, maxt int64, ms []*labels.Matcher) (rows, samples []*object, err error) {
	reads := group{ctx: ctx, limit: q.r.cfg.Parallel}
	var ofRows []*handle
	for _, res := range instead.resolutions() {
		more, err := q.seek(&reads, res, instead.blocks[res], mint, maxt, ms)
		if err != nil {
			return nil, nil, err
		}
		for _, h := range more {
			h.want = want
		}
		ofRows = append(ofRows, more...)
	}
	ofSamples, err := q.seek(&reads, timegrid.Raw, rest, mint, maxt, ms)
	if err != nil {
		return nil, nil, err
	}
	if err := reads.Wait(); err != nil {
		return nil, nil, err
	}
	return expand(ofRows, mint, maxt), expand(ofSamples, mint, maxt), nil
}

// rolledOf makes series of rows. It is false if an hour has several series with one label set.
func (q *Query) rolledOf(ofRows []Series) (out []Rolled, ok bool) {
	out = make([]Rolled, 0, len(ofRows))
	for i := range ofRows {
		s := &ofRows[i]
		for k := 1; k < len(s.pieces); k++ {
			// Rows of two series in one hour can't be merged: their buckets are results, not samples.
			if s.pieces[k].ob.hour == s.pieces[k-1].ob.hour {
				return nil, false
			}
		}
		out = append(out, Rolled{Labels: s.Labels, rows: partsOf(s.pieces), q: q})
	}
	return out, true
}

// joinRolled joins rows and samples of equal label sets. It is false if an hour has both rows and samples of one.
func joinRolled(out []Rolled, ofSamples []Series) ([]Rolled, bool) {
	if len(ofSamples) == 0 {
		return out, true
	}
	at := make(map[uint64][]int, len(out))
	for i := range out {
		h := out[i].Labels.Hash()
		at[h] = append(at[h], i)
	}
	for i := range ofSamples {
		s := &ofSamples[i]
		same := at[s.Labels.Hash()]
		k := slices.IndexFunc(same, func(k int) bool { return labels.Equal(out[k].Labels, s.Labels) })
		if k < 0 {
			out = append(out, Rolled{Labels: s.Labels, Raw: s})
			continue
		}
		if overlaps(out[same[k]].rows, s.pieces) {
			return nil, false
		}
		out[same[k]].Raw = s
	}
	return out, true
}

// overlaps reports rows and samples of the same hour, which come from two shards and can't be joined.
func overlaps(a []part, b []piece) bool {
	for _, p := range a {
		if slices.ContainsFunc(b, func(o piece) bool { return o.ob.hour >= p.from && o.ob.hour <= p.to }) {
			return true
		}
	}
	return false
}

// MayRoll reports whether SelectRolled could find rows that stand in for samples, without reading any object. The range
// must have been pinned.
func (q *Query) MayRoll(r Rows, mint, maxt int64) bool {
	from, to, any := q.span(mint, maxt)
	if !any {
		return false
	}
	instead := q.standIns(from, to, r.Expired)
	for h := from; h <= to && len(instead.blocks) == 0; h++ {
		// Most hours tell without a look at each of their blocks.
		if q.view(h).Rolled(h, r.Resolution) == nil {
			continue
		}
		q.chooseRolled(&instead, r.Resolution, h, h, func(timegrid.Hour) bool { return false })
	}
	return len(instead.blocks) > 0
}

// Used counts a selector that was answered from the resolution.
func (q *Query) Used(res timegrid.Resolution) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.resolutions == nil {
		q.resolutions = map[string]int{}
	}
	q.resolutions[res.String()]++
}

// Mark remembers how many problems there were, for Undo.
type Mark struct{ problems, more, gone int }

// Mark begins an attempt that may be undone.
func (q *Query) Mark() Mark {
	q.mu.Lock()
	defer q.mu.Unlock()
	return Mark{len(q.problems), q.more, len(q.gone)}
}

// Undo forgets the problems of objects since the mark, as the answer does not need them. Problems of the views
// stay.
func (q *Query) Undo(m Mark) {
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := slices.DeleteFunc(slices.Clone(q.problems[m.problems:]), func(p Problem) bool { return !p.view })
	q.problems = append(q.problems[:m.problems], kept...)
	q.more, q.gone = m.more, q.gone[:m.gone]
}

// Failed reports problems of objects since the mark.
func (q *Query) Failed(m Mark) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.more > m.more || slices.ContainsFunc(q.problems[m.problems:], func(p Problem) bool { return !p.view })
}
