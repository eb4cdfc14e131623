// Package overlaps finds the accepted batches of one boot whose record numbers overlap. A number
// counts once, for the batch that was accepted first, so every hour that has one of them as an
// input must have all of them, in whatever hours the others lie and however long ago they were
// accepted.
//
// An ordinary batch begins behind everything that its boot has sent, which costs no request: for
// each boot the highest number is remembered. What begins below it, and the first batch
// of a boot that a new owner meets, costs one listing of the boot's identity manifests around it. Of
// two batches that overlap one comes later, and its listing shows the other: a manifest is
// there before its batch comes.
//
// The package decides and reads, and starts nothing: no goroutines, no clock.
package overlaps

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Manifests are the identity manifests of accepted batches.
type Manifests interface {
	objstore.Getter
	objstore.Lister
}

// Pair are two accepted batches of one boot that share record numbers. Batch is one that Find was asked for.
type Pair struct{ Batch, With accepted.Batch }

// Finder finds the batches that overlap those of one shard. It is not for concurrent use.
type Finder struct {
	Manifests Manifests
	// Fan lists several boots; nil is one after the other.
	Fan journal.Fan
	// Listed is called for each boot whose manifests are listed, and Damaged with the error of a manifest that can't be
	// read, whose batch is left out of pairs. Both may be nil, and are called side by side when Fan does so.
	Listed  func()
	Damaged func(error)
	// Counts reports whether a batch counts whose manifest has no claim's stamp; nil: it does. In a bucket that became one of
	// several regions' the manifest alone does not say so: its collector may have died before anybody was answered, and then the
	// linearizer decides. It is called side by side, too.
	Counts func(context.Context, accepted.Batch) (bool, error)

	// Two generations of boots, so that those that send nothing any more are forgotten.
	boots, older map[identity.Boot]*boot
	// expected is about how many batches those of boots expect.
	expected int
}

// boot is what is known of one boot.
type boot struct {
	// high is the highest number of all batches that were accepted when the boot was listed first, or have come since.
	high uint64
	// expected are batches that the listing showed, that overlap none that it showed, and that have not come yet,
	// in the order of their numbers.
	expected []identity.Batch
}

const (
	// maxBoots bounds the boots of one generation.
	maxBoots = 100_000
	// maxExpected bounds what is expected of one boot, and maxExpectedOfAll of the boots of one generation. What is left
	// out costs a listing when it comes.
	maxExpected      = 10_000
	maxExpectedOfAll = 500_000
)

// Find gives the pairs of each batch with every accepted batch that overlaps it, as far as one of both has not been
// found by a call before. After an error it remembers nothing, and the same call may be made again.
func (f *Finder) Find(ctx context.Context, batches []accepted.Batch) ([]Pair, error) {
	batches = slices.Clone(batches)
	slices.SortStableFunc(batches, func(x, y accepted.Batch) int { return x.Identity.Compare(y.Identity) })
	batches = slices.CompactFunc(batches, func(x, y accepted.Batch) bool { return x.Identity == y.Identity })
	var all, listings []*arrival
	for len(batches) > 0 {
		n := 1
		for n < len(batches) && batches[n].BootOf() == batches[0].BootOf() {
			n++
		}
		a := f.arrival(batches[:n])
		if all = append(all, a); len(a.irregular) > 0 {
			listings = append(listings, a)
		}
		batches = batches[n:]
	}
	fan := f.Fan
	if fan == nil {
		fan = journal.OneByOne
	}
	if err := fan(ctx, len(listings), func(ctx context.Context, i int) error { return f.search(ctx, listings[i]) }); err != nil {
		return nil, err
	}
	var pairs []Pair
	for _, a := range all {
		f.remember(a)
		pairs = append(pairs, a.pairs...)
	}
	return pairs, nil
}

// arrival are batches of one boot that have come, in the order of their numbers.
type arrival struct {
	id      identity.Boot
	known   *boot // nil: the boot is met for the first time
	batches []accepted.Batch
	// irregular are those that begin below a number that was there before.
	irregular []accepted.Batch
	high      uint64
	listed    []identity.Batch
	pairs     []Pair
}

// arrival compares batches with what is known of their boot.
func (f *Finder) arrival(batches []accepted.Batch) *arrival {
	a := &arrival{id: batches[0].BootOf(), batches: batches}
	if a.known = f.known(a.id); a.known == nil {
		a.irregular = batches
		return a
	}
	a.high = a.known.high
	for _, e := range batches {
		_, expected := slices.BinarySearchFunc(a.known.expected, e.Identity, identity.Batch.Compare)
		if e.SeqStart <= a.high && !expected {
			a.irregular = append(a.irregular, e)
		}
		a.high = max(a.high, e.SeqEnd)
	}
	return a
}

// search lists the manifests around irregular batches, and finds their pairs.
func (f *Finder) search(ctx context.Context, a *arrival) (err error) {
	if a.listed, err = f.list(ctx, a.id, a.irregular, a.known == nil); err != nil {
		return err
	}
	for _, l := range a.listed {
		a.high = max(a.high, l.SeqEnd)
	}
	a.pairs, err = f.pair(ctx, a.batches, a.irregular, a.listed)
	return err
}

func (f *Finder) known(id identity.Boot) *boot {
	if b := f.boots[id]; b != nil {
		return b
	}
	return f.older[id]
}

// remember notes that the batches have come, and what the first listing of the boot showed.
func (f *Finder) remember(a *arrival) {
	b := a.known
	if b == nil {
		b = &boot{}
		last, end := a.batches[len(a.batches)-1].SeqStart, uint64(0)
		for i, l := range a.listed {
			// One that overlaps another is listed once more when it comes, which finds that.
			alone := (i == 0 || end < l.SeqStart) && (i+1 == len(a.listed) || a.listed[i+1].SeqStart > l.SeqEnd)
			end = max(end, l.SeqEnd)
			if l.SeqStart > last && alone && len(b.expected) < min(maxExpected, maxExpectedOfAll-f.expected) {
				b.expected = append(b.expected, l)
			}
		}
	}
	before := len(b.expected)
	for _, e := range a.batches {
		a.high = max(a.high, e.SeqEnd)
		if i, ok := slices.BinarySearchFunc(b.expected, e.Identity, identity.Batch.Compare); ok {
			b.expected = slices.Delete(b.expected, i, i+1)
		}
	}
	b.high = a.high
	if f.boots == nil || len(f.boots) >= maxBoots {
		f.older, f.boots, f.expected = f.boots, map[identity.Boot]*boot{}, 0
	}
	if f.boots[a.id] == nil {
		before = 0
	}
	f.boots[a.id], f.expected = b, f.expected+len(b.expected)-before
}

// list gives the accepted batches of the boot that can overlap the given ones, in the order of their numbers; with all,
// also everything behind them.
func (f *Finder) list(ctx context.Context, id identity.Boot, batches []accepted.Batch, all bool) ([]identity.Batch, error) {
	prefix, end := layout.AcceptedBoot(id), uint64(0)
	for _, e := range batches {
		end = max(end, e.SeqEnd)
	}
	// A batch that begins earlier overlaps only if it has that many records, and no batch has
	// more than the limit of a frame. So the listing can begin that far below.
	from := batches[0].SeqStart - min(batches[0].SeqStart, uint64(frame.DefaultLimits().Records))
	if f.Listed != nil {
		f.Listed()
	}
	var out []identity.Batch
	for i, err := range objstore.List(ctx, f.Manifests, objstore.ListOptions{Prefix: prefix, StartAfter: prefix + layout.SeqName(from, 0)}) {
		if err != nil {
			return nil, fmt.Errorf("list %q: %w", prefix, err)
		}
		got, err := layout.ParseAccepted(i.Key)
		if err != nil || got.BootOf() != id {
			continue // a foreign key
		}
		got.Agent, got.Boot = id.Agent, id.Boot // so that the key's memory is freed
		if got.SeqStart > end && !all {
			break
		}
		out = append(out, got)
	}
	return out, nil
}

// pair reads what overlaps the irregular batches; batches are all that have come.
func (f *Finder) pair(ctx context.Context, batches, irregular []accepted.Batch, listed []identity.Batch) (pairs []Pair, err error) {
	ends := make([]uint64, len(listed)) // the highest number of a batch and all before it
	for i, l := range listed {
		ends[i] = l.SeqEnd
		if i > 0 {
			ends[i] = max(ends[i], ends[i-1])
		}
	}
	for _, e := range irregular {
		// Nothing before this place reaches up to the batch.
		from, _ := slices.BinarySearch(ends, e.SeqStart)
		for _, l := range listed[from:] {
			if l.SeqStart > e.SeqEnd {
				break
			}
			if l == e.Identity || !l.Intersects(e.Identity) {
				continue
			}
			with, ok, err := f.batch(ctx, batches, l)
			if err != nil {
				return nil, err
			}
			if ok {
				pairs = append(pairs, Pair{e, with})
			}
		}
	}
	return pairs, nil
}

// batch gives what is known of an accepted batch, by its manifest unless it has come.
func (f *Finder) batch(ctx context.Context, batches []accepted.Batch, id identity.Batch) (accepted.Batch, bool, error) {
	if i, ok := slices.BinarySearchFunc(batches, id, func(e accepted.Batch, id identity.Batch) int { return e.Identity.Compare(id) }); ok {
		return batches[i], true, nil
	}
	m, err := accept.ReadManifest(ctx, f.Manifests, id)
	switch {
	// Of batches that share numbers the linearizer of several regions lets one count, and here that is the one that has
	// come through the journal. The other lost, or is another region's: it was left behind by a claim that moved on.
	case err == nil && !m.Stamp().IsZero():
		return accepted.Batch{}, false, nil
	case err == nil && f.Counts == nil:
		return m.Batch(), true, nil
	case err == nil:
		// One that comes later is paired then: its listing shows the batches of now.
		counts, err := f.Counts(ctx, m.Batch())
		return m.Batch(), counts, err
	case errors.Is(err, record.ErrCorrupt):
		// When it was accepted nobody knows any more, so it can't be decided which of both counts.
		if f.Damaged != nil {
			f.Damaged(err)
		}
		return accepted.Batch{}, false, nil
	case errors.Is(err, objstore.ErrNotFound):
		return accepted.Batch{}, false, nil
	}
	return accepted.Batch{}, false, err
}

// InBlock gives the inputs of a block that share record numbers with id, but id itself.
func InBlock(in catalog.Inputs, id identity.Batch) (out []identity.Batch) {
	for _, b := range in.Boots() {
		if b.Agent != id.Agent || b.Boot != id.Boot {
			continue
		}
		for _, r := range b.Runs {
			// A run is batches of equal length, one behind the other, so the first one that can
			// overlap is computed: an hour has thousands, of which one or two overlap.
			first := uint64(0)
			if id.SeqStart > r.Start {
				first = (id.SeqStart - r.Start) / r.Records
			}
			for k := first; k < r.Batches; k++ {
				at := r.Start + k*r.Records
				o := identity.Batch{Agent: id.Agent, Boot: id.Boot, SeqStart: at, SeqEnd: at + (r.Records - 1)}
				if at > id.SeqEnd {
					break
				}
				if o != id && o.Intersects(id) {
					out = append(out, o)
				}
			}
		}
	}
	return out
}
