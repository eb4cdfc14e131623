package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/job"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/late"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metadata"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
)

// DeltasConfig of the deltas of a shard.
type DeltasConfig struct {
	// RawKept is how long after their end the samples of an hour are kept, 0 for ever.
	RawKept time.Duration
	// Grace is how long a delta stays that nothing needs: queries may be reading it.
	Grace time.Duration
}

// deltas are those of one shard, in the store and in its book.
type deltas struct {
	DeltasConfig
	store     objstore.Store
	frames    *frames.Reader
	helps     *metadata.Helps
	log       *slog.Logger
	metrics   *metrics.Metrics
	now       func() time.Time
	recheck   time.Duration
	authority string
	shard     shard.ID
	shards    uint32
	policy    late.Policy
	owned     *job.Shard
	book      *late.Book // of owned
	records   hour.Records
	jobs      *job.Jobs
	// retryBase is the wait after what was not the hour's fault, retryWait that after the nth failure.
	retryBase time.Duration
	retryWait func(n int) time.Duration

	known    bool // they were listed once
	listed   time.Time
	deferred map[timegrid.Hour][]accepted.Batch
}

// list reads the headers of deltas that the book does not have: all of them at first, and from time to time those
// that a former owner wrote later.
func (d *deltas) list(ctx context.Context) error {
	if d.deferred == nil {
		d.deferred = map[timegrid.Hour][]accepted.Batch{}
	}
	now := d.now()
	if d.known && now.Sub(d.listed) < d.recheck && !d.listed.After(now) {
		return nil
	}
	for i, err := range objstore.List(ctx, d.store, objstore.ListOptions{Prefix: layout.RollupDeltas(d.shard)}) {
		if err != nil {
			return fmt.Errorf("list deltas: %w", err)
		}
		if _, err := layout.ParseRollupDelta(i.Key); err != nil || d.book.Knows(i.Key) {
			continue
		}
		got, err := delta.Read(ctx, d.store, d.authority, i.Key)
		switch {
		case errors.Is(err, objstore.ErrNotFound): // another owner deleted it
		case record.Opaque(err):
			// Its batches are in no block, so queries say that the hours are partial until they are repaired.
			d.metrics.Damage(err)
			d.log.Error("a delta can't be read and is left alone; lmctl rollup repair makes its hours again", "key", i.Key, "error", err)
		case err != nil:
			return err
		default:
			d.book.Add(got, now)
		}
	}
	d.known, d.listed = true, now
	return nil
}

// write writes the batches as a delta, with those of small ones that are there. What can't be read is left pending.
func (d *deltas) write(ctx context.Context, fresh []accepted.Batch, unreadable func(accepted.Batch, error)) error {
	var batches []delta.Batch
	var raw [][]byte
	bytes := uint64(0)
	add := func(b delta.Batch, frame []byte) {
		batches, raw = append(batches, b), append(raw, frame)
		bytes += b.FrameBytes
	}
	all, err := d.frames.All(ctx, fresh)
	if err != nil {
		return err
	}
	for i, e := range fresh {
		hours, err := d.hours(all[i], e)
		if err != nil {
			unreadable(e, err)
			continue
		}
		add(delta.Batch{Batch: e, Hours: hours}, all[i])
	}
	if len(batches) == 0 {
		return nil
	}
	var old []*delta.Delta
	for _, o := range d.book.Together(bytes) {
		of, err := o.ReadFrames(ctx, d.store)
		if record.Opaque(err) || errors.Is(err, objstore.ErrNotFound) {
			// Its batches have raw frames, of which their hours are folded.
			d.metrics.Damage(err)
			d.log.Error("a delta can't be read; its hours are folded now", "key", o.Key(), "error", err)
			d.book.FoldSoon(o)
			continue
		}
		if err != nil {
			return fmt.Errorf("read a delta to write it again: %w", err)
		}
		old = append(old, o)
		for _, b := range d.book.Open(o) {
			i := slices.IndexFunc(o.Batches, func(x delta.Batch) bool { return x.Identity == b.Identity })
			add(b, of[i])
		}
	}
	if err := d.create(ctx, batches, raw); err != nil {
		return err
	}
	d.book.Replaced(old, d.now())
	d.book.Crowd()
	return nil
}

// hours are those that the frame of a batch has samples in. A frame that is not what was accepted is an error.
func (d *deltas) hours(raw []byte, e accepted.Batch) ([]timegrid.Hour, error) {
	if raw == nil {
		return nil, errors.New("it can't be read")
	}
	f, err := d.frames.Decoder().Decode(raw)
	if err != nil {
		return nil, err
	}
	// Every record of the batch is in the delta, or nothing of it is.
	if f.Identity != e.Identity || f.Records() != e.Identity.Count() {
		return nil, fmt.Errorf("it has %d records of %s", f.Records(), f.Identity)
	}
	d.helps.Learn(e, f)
	var hours []timegrid.Hour
	for i := range f.Groups {
		for _, t := range f.Groups[i].Timestamps {
			if h := timegrid.HourOfNS(t); len(hours) == 0 || hours[len(hours)-1] != h {
				hours = append(hours, h)
			}
		}
	}
	slices.Sort(hours)
	return slices.Compact(hours), nil
}

// create puts a delta into the store. One that is there already is the same: its name is its content.
func (d *deltas) create(ctx context.Context, batches []delta.Batch, raw [][]byte) error {
	made, err := delta.New(d.authority, d.shard, d.shards, batches)
	if err != nil {
		return err
	}
	frames := make(map[identity.Batch][]byte, len(batches))
	for i := range batches {
		frames[batches[i].Identity] = raw[i]
	}
	ordered := make([][]byte, len(made.Batches))
	for i := range made.Batches {
		ordered[i] = frames[made.Batches[i].Identity]
	}
	body, err := made.Marshal(ordered)
	if err != nil {
		return err
	}
	// Once there is a delta, query nodes that start don't read the frames.
	if err := d.helps.Save(ctx); err != nil {
		return err
	}
	_, err = d.store.Create(ctx, made.Key(), body, objstore.PutOptions{SHA256: identity.Sum(body)})
	if err != nil && !errors.Is(err, objstore.ErrExists) {
		return fmt.Errorf("create %q: %w", made.Key(), err)
	}
	failpoint.Hit("rollup.delta.written.after")
	d.book.Add(made, d.now())
	d.metrics.Deltas.Inc()
	d.metrics.DeltaBytes.Add(float64(len(body)))
	d.log.Info("late batches are in a delta", "shard", d.shard, "key", made.Key(), "batches", len(made.Batches), "records", made.Records(), "bytes", len(body))
	return nil
}

// deleteSpent deletes deltas whose batches blocks have, or another delta.
func (d *deltas) deleteSpent(ctx context.Context) error {
	for _, key := range d.book.Spent(d.now(), d.Grace) {
		if err := d.store.Delete(ctx, key); err != nil {
			return fmt.Errorf("delete %q: %w", key, err)
		}
		d.book.Deleted(key)
	}
	return nil
}

// perDelta bounds the fresh batches of one delta, in bytes of their frames and in number.
const (
	perDeltaBytes   = delta.MaxFrameBytes / 2
	perDeltaBatches = delta.MaxBatches / 2
)

// deferHours writes what is late in the hours that were found due as deltas, and takes it off the backlog there.
func (d *deltas) deferHours(ctx context.Context) error {
	s := d.owned
	if len(d.deferred) == 0 {
		return nil
	}
	defer clear(d.deferred)
	var fresh []accepted.Batch
	seen := map[identity.Batch]bool{}
	for _, h := range slices.Sorted(hoursOf(d.deferred)) {
		for _, e := range d.deferred[h] {
			if !seen[e.Identity] && !d.book.Holds(e.Identity, h) {
				seen[e.Identity] = true
				fresh = append(fresh, e)
			}
		}
	}
	for len(fresh) > 0 {
		n, bytes := 0, uint64(0)
		for n < len(fresh) && n < perDeltaBatches && (n == 0 || bytes+fresh[n].FrameBytes <= perDeltaBytes) {
			bytes += fresh[n].FrameBytes
			n++
		}
		if err := s.Lost(); err != nil {
			return err // it would do no harm, but this worker's batches are another's now
		}
		err := d.write(ctx, fresh[:n], func(e accepted.Batch, err error) {
			d.metrics.Unreadable.Inc()
			d.log.Error("a late batch is left out until its frame is back", "batch", e.Identity, "shard", s.Shard, "error", err)
			s.Unreadable.Add(e.Identity, d.now())
		})
		if err != nil {
			return err
		}
		fresh = fresh[n:]
	}
	for h := range d.deferred {
		s.Backlog.Cover(h, func(id identity.Batch) bool { return d.book.Holds(id, h) })
	}
	return nil
}

// hoursOf gives the keys of m.
func hoursOf(m map[timegrid.Hour][]accepted.Batch) func(func(timegrid.Hour) bool) {
	return func(yield func(timegrid.Hour) bool) {
		for h := range m {
			if !yield(h) {
				return
			}
		}
	}
}

// foldHours makes the generations that have what is in deltas, of hours where that is due.
func (d *deltas) foldHours(ctx context.Context) (again bool, err error) {
	down := 0
	for i, w := range d.book.Due(d.policy.FoldAfter, d.now()) {
		if cerr := ctx.Err(); cerr != nil {
			return false, cerr
		}
		if i == HoursPerRound {
			return true, err
		}
		did, herr := d.foldHour(ctx, w)
		again = again || did
		if herr != nil {
			err = errors.Join(err, fmt.Errorf("fold hour %s: %w", w.Hour, herr))
		}
		if !isDown(herr) {
			down = 0
		} else if down++; down == hoursDown {
			break
		}
	}
	return again, err
}

// foldHour makes the next generation of an hour whose deltas are due. did: it was made, so that the hour should be
// considered again.
func (d *deltas) foldHour(ctx context.Context, w *late.Hour) (did bool, err error) {
	s, h := d.owned, w.Hour
	fail := func(err error) error {
		d.book.Wait(h, d.now().Add(d.retryWait(w.Failures+1)), true)
		return err
	}
	st, err := d.records.State(ctx, h, s.Shard, nil)
	if err != nil {
		d.metrics.Damage(err)
		return false, fail(err)
	}
	now := d.now()
	d.book.Cover(h, st.Covers, now)
	if d.book.Hour(h) == nil {
		return false, nil
	}
	in, next, err := s.Inputs(ctx, h, now)
	if err != nil {
		return false, fail(err)
	}
	if len(in) == 0 && !st.Unfinished() {
		d.book.Wait(h, next, false) // what is left can't be read, or is set aside
		return false, nil
	}
	switch _, err := d.jobs.Make(ctx, s, h, st.Next()); {
	case err == nil:
		d.metrics.Folded.Inc()
		d.book.Wait(h, now, false)
		return true, nil
	case ctx.Err() != nil || s.Lost() != nil: // not the hour's fault
		d.book.Wait(h, now.Add(d.retryBase), false)
		return false, err
	default:
		return false, fail(err)
	}
}
