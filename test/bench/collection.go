package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

const (
	// acceptRequests of a batch, at the least: blob, manifest, marker.
	acceptRequests = 3
	// gcPoll and gcWeek are the defaults of gc.poll_interval and gc.sweep_interval.
	gcPoll = 5 * time.Minute
	gcWeek = 7 * 24 * time.Hour
	// Goals of the collection of orphans.
	goalShare, goalOfOrphan = 0.02, 8
)

// benchCollection counts the requests of the collection of orphan blobs, in process: the store is in memory and its clock is moved,
// so that a week passes at once. Requests do not depend on how fast any of it is.
func benchCollection(ctx context.Context, e *env) ([]Result, error) {
	n := 20_000
	if e.quick {
		n = 2000
	}
	var all []Result
	var x, sweeps []float64
	note, clean := "", map[int]float64{}
	for _, k := range growth {
		batches := int(k) * n
		got, _, err := collectedWeek(ctx, orchard{batches: batches})
		if err != nil {
			return all, err
		}
		x, sweeps = append(x, float64(batches)), append(sweeps, got.sweep)
		clean[batches] = got.sweep
		note += fmt.Sprintf("; %d batches: %.0f requests", batches, got.sweep)
	}
	last := len(x) - 1
	each := (sweeps[last] - sweeps[0]) / (x[last] - x[0])
	all = append(all, Result{Name: "collection/plan", Value: each * 1000, Unit: "requests/1,000 blobs", Goal: "<= 1.5", Pass: each*1000 <= 1.5,
		Note: "what a sweep of more blobs asks more, where none is an orphan: a LIST, and shares of the journal's files and of the plans' moves" + note})
	for _, k := range growth {
		batches := int(k) * n
		got, found, err := collectedWeek(ctx, orchard{batches: batches, orphans: batches / 100})
		if err != nil {
			return all, err
		}
		orphan := (got.sweep - clean[batches]) / float64(found)
		all = append(all, Result{Name: fmt.Sprintf("collection/sweep/%d-batches/1%%-orphans", batches), Value: orphan, Unit: "requests/orphan", Goal: fmt.Sprintf("<= %d", goalOfOrphan), Pass: orphan <= goalOfOrphan,
			Note: fmt.Sprintf("%.0f requests of the sweep, %.0f without orphans; %.4f of the requests of acceptance", got.sweep, clean[batches], got.sweep/float64(acceptRequests*batches))})
	}
	// A week of steady load: polls, reports of what was given up, and the sweep.
	for _, k := range growth {
		batches := int(k) * n
		o := orchard{batches: batches, reported: batches / 1000}
		got, _, err := collectedWeek(ctx, o)
		if err != nil {
			return all, err
		}
		share := (got.week + got.sweep) / float64(acceptRequests*batches)
		rate := float64(batches) / gcWeek.Seconds()
		has := int(k) == 16 && !e.quick
		goal := goalOf(has, goalShare)
		all = append(all, Result{Name: fmt.Sprintf("collection/week/%d-batches", batches), Value: share, Unit: "of acceptance's requests", Goal: goal, Pass: share <= goalShare || !has,
			Note: fmt.Sprintf("%.2g batches a second, each 1,000th left an orphan that is reported: %.0f requests of polls and reports, %.0f of the sweep; acceptance %d", rate, got.week, got.sweep, acceptRequests*batches)})
	}
	return all, nil
}

// orchard is a bucket with a week's batches, and what was left behind meanwhile.
type orchard struct {
	batches, orphans int
	// reported of the week, in reports of a day.
	reported int
}

// askedWeek are the requests of a week, and of the sweep at its end.
type askedWeek struct{ week, sweep float64 }

// collectedWeek collects over a week, and sweeps at its end. found is how many orphans the sweep has deleted.
func collectedWeek(ctx context.Context, o orchard) (got askedWeek, found int, err error) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	store := mem.New(func() time.Time { return now })
	if err := o.plant(ctx, store); err != nil {
		return got, 0, err
	}
	counted := storetest.Count(store)
	r, err := gc.NewRunner(gc.RunnerConfig{
		Store: counted, AuthorityID: cluster.Authority, By: "bench", Claim: "bench", Clock: unixZero{},
		Limits: gc.Limits{MinAge: gc.DefaultMinAge, Delay: gcPoll, Interval: gcWeek, Lease: 2 * gcPoll},
	})
	if err != nil {
		return got, 0, err
	}
	work := func() (st gc.State, err error) {
		for worked := true; worked && err == nil; {
			var p gc.Progress
			p, err = r.Step(ctx)
			worked, st = p.Worked, p.State
		}
		if err == nil && st.Holds() {
			err = fmt.Errorf("the breaker: %+v", *st.Breaker)
		}
		return st, err
	}
	// The first sweep, of a bucket that is younger than all of it, is not the week's.
	now = now.Add(-gc.DefaultMinAge)
	if _, err := work(); err != nil {
		return got, 0, err
	}
	now = now.Add(gc.DefaultMinAge)
	if _, err := work(); err != nil {
		return got, 0, err
	}
	counted.Reset()
	polls := int(gcWeek / gcPoll)
	for i := range polls {
		now = now.Add(gcPoll)
		if i == polls-1 {
			got.week = float64(counted.Of("", ""))
			counted.Reset()
		}
		if i%(polls/7) == 0 && o.reported > 0 {
			if err := o.report(ctx, store, i, o.reported/7); err != nil {
				return got, 0, err
			}
		}
		st, err := work()
		if err != nil {
			return got, 0, err
		}
		found = int(st.Last.Deleted)
	}
	got.sweep = float64(counted.Of("", ""))
	if found != o.orphans {
		return got, found, fmt.Errorf("%d orphans were collected, want %d", found, o.orphans)
	}
	return got, found, nil
}

// plant writes accepted batches without their bytes, which no plan reads, and orphans with theirs.
func (o orchard) plant(ctx context.Context, s *mem.Store) error {
	put := func(key string, b []byte) error {
		_, err := s.Put(ctx, key, b, objstore.PutOptions{})
		return err
	}
	entries := make([]journal.Entry, 0, o.batches)
	for i := range o.batches {
		id := identity.Batch{Agent: "host", Boot: fmt.Sprint(i / 1000), SeqStart: uint64(i), SeqEnd: uint64(i)}
		d := identity.Sum([]byte(id.String()))
		if err := put(layout.Blob(d, 0), nil); err != nil {
			return err
		}
		if err := put(layout.Accepted(id), nil); err != nil {
			return err
		}
		entries = append(entries, journal.Entry{ID: id, Outcome: journal.Accepted, SHA256: d, Bytes: 1, MinTime: 1, MaxTime: 1})
	}
	if err := journaltest.Complete(ctx, s, cluster.Authority); err != nil {
		return err
	}
	for part := range slices.Chunk(entries, 1000) {
		if err := journaltest.Append(ctx, s, cluster.Authority, part...); err != nil {
			return err
		}
	}
	if _, err := journaltest.Fold(ctx, s, cluster.Authority); err != nil {
		return err
	}
	for i := range o.orphans {
		b, err := orphanFrame(i)
		if err == nil {
			err = put(layout.Blob(identity.Sum(b), 0), b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// report writes n orphans and a collector's report of them; their hashes follow from the number of the report.
func (o orchard) report(ctx context.Context, s *mem.Store, number, n int) error {
	r := gc.OrphanReport{AuthorityID: cluster.Authority, CollectorID: "c", ReportedAt: int64(number), Submissions: uint64(o.batches / 7),
		Witness: layout.Accepted(identity.Batch{Agent: "host", Boot: "0"})}
	for i := range n {
		b, err := orphanFrame(number*1_000_000 + i + o.orphans)
		if err != nil {
			return err
		}
		d := identity.Sum(b)
		if _, err := s.Put(ctx, layout.Blob(d, 0), b, objstore.PutOptions{}); err != nil {
			return err
		}
		r.Frames = append(r.Frames, d)
	}
	if n == 0 {
		return nil
	}
	body, err := r.Marshal()
	if err != nil {
		return err
	}
	_, err = s.Put(ctx, r.Key(body), body, objstore.PutOptions{})
	return err
}

func orphanFrame(i int) ([]byte, error) {
	fb := frame.NewBuilder()
	m, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "m"}}, series.Gauge, "", 0)
	if err == nil {
		err = fb.Append(m, 1, float64(i))
	}
	if err != nil {
		return nil, err
	}
	batch, err := fb.Build(identity.Boot{Agent: "orphans", Boot: "b"}, uint64(i)+1)
	if err != nil {
		return nil, err
	}
	return frame.Encode(nil, batch)
}

// unixZero is a clock that stands: no decision of the collection depends on its clock.
type unixZero struct{}

func (unixZero) Now() time.Time { return time.Unix(0, 0) }

func (unixZero) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }
