package overlaps

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/backlog"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
)

func id(from, to uint64) identity.Batch {
	return identity.Batch{Agent: "a", Boot: "b", SeqStart: from, SeqEnd: to}
}

// InBlock gives what comparing with every input gives, for batches of all lengths in runs of
// all kinds.
func TestInBlock(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		seen := map[identity.Batch]bool{}
		for range 1 + rnd.IntN(40) {
			from, length := rnd.Uint64N(60), 1+rnd.Uint64N(6)
			b := id(from, from+length-1)
			if rnd.IntN(8) == 0 {
				b.Boot = "other"
			}
			seen[b] = true
		}
		var all []identity.Batch
		for b := range seen {
			all = append(all, b)
		}
		slices.SortFunc(all, identity.Batch.Compare)
		in, err := catalog.NewInputs(all)
		if err != nil {
			t.Fatal(err)
		}
		from := rnd.Uint64N(60)
		with := id(from, from+rnd.Uint64N(10))
		var want []identity.Batch
		for _, b := range all {
			if b != with && b.Intersects(with) {
				want = append(want, b)
			}
		}
		got := InBlock(in, with)
		slices.SortFunc(got, identity.Batch.Compare)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v overlaps %v, want %v", seed, with, got, want)
		}
	}
}

const h0 = timegrid.Hour(500_000)

var now = h0.End()

// entry is a batch of the hours from first to last.
func entry(b identity.Batch, first, last timegrid.Hour) accepted.Batch {
	return accepted.Batch{Identity: b, FrameSHA256: identity.Sum(fmt.Append(nil, b)), FrameBytes: 1, RawBlobKey: layout.Blob(identity.Sum(fmt.Append(nil, b)), 0), AcceptedAt: 1,
		MinTime: first.Start().Add(time.Minute).UnixNano(), MaxTime: last.Start().Add(time.Minute).UnixNano()}
}

// records has blocks of raw rows, and can damage them and their plans.
type records struct {
	of                  map[timegrid.Hour][]accepted.Batch
	badRecord, badPlan  bool
	noPlan, unavailable bool
}

var errDamaged = catalog.BlockKind.Corrupt("k", "damaged")

func (r *records) State(_ context.Context, h timegrid.Hour, _ shard.ID, _ []string) (*hour.State, error) {
	es := r.of[h]
	switch {
	case r.unavailable:
		return nil, objstore.ErrUnavailable
	case len(es) == 0:
		return &hour.State{}, nil
	case r.badRecord:
		return nil, errDamaged
	}
	var ids []identity.Batch
	for _, e := range es {
		ids = append(ids, e.Identity)
	}
	in, err := catalog.NewInputs(ids)
	return &hour.State{Blocks: map[timegrid.Resolution]*catalog.Block{timegrid.Raw: {Name: catalog.Name{Hour: h, Generation: 1}, Inputs: in}}}, err
}

func (r *records) Plan(_ context.Context, h timegrid.Hour, _ shard.ID, _ uint64) (*hour.Plan, error) {
	switch {
	case r.badPlan:
		return nil, rollup.PlanKind.Corrupt("k", "damaged")
	case r.noPlan:
		return nil, objstore.ErrNotFound
	}
	return &hour.Plan{Plan: &rollup.Plan{Inputs: r.of[h]}}, nil
}

// A pending batch and the published one that it overlaps in the hour before become inputs of each
// other's hours, whatever of that hour can be read.
func TestFind(t *testing.T) {
	old, apart, late := entry(id(10, 19), h0-1, h0-1), entry(id(40, 49), h0-1, h0-1), entry(id(15, 24), h0, h0)
	for name, r := range map[string]*records{"by block and plan": {}, "by manifests, the plan is damaged": {badPlan: true}, "by manifests, the block is damaged": {badRecord: true}} {
		r.of = map[timegrid.Hour][]accepted.Batch{h0 - 1: {old, apart}}
		store := mem.New(time.Now)
		for _, e := range []accepted.Batch{old, apart, late} {
			m := accept.Manifest{AuthorityID: "authority", Identity: e.Identity, FrameSHA256: e.FrameSHA256, FrameBytes: e.FrameBytes, RawBlobKey: e.RawBlobKey,
				AcceptedAt: e.AcceptedAt, CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
				RecordCount: e.Identity.Count(), MinTime: e.MinTime, MaxTime: e.MaxTime}
			if _, err := store.Put(t.Context(), layout.Accepted(e.Identity), m.Marshal(), objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		var damaged []error
		b := backlog.New()
		b.AddSegment("s", []accepted.Batch{late}, func(accepted.Batch) []timegrid.Hour { return []timegrid.Hour{h0} }, now)
		f := Finder{Backlog: b, Deltas: deltas(nil), Records: r, Manifests: store, Damaged: func(err error) { damaged = append(damaged, err) }}
		if err := f.Find(t.Context(), h0, now); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if in := b.Inputs(h0); !slices.Equal(in, []accepted.Batch{old, late}) {
			t.Errorf("%s: inputs of the hour: %+v", name, in)
		}
		if in := b.Inputs(h0 - 1); !slices.Equal(in, []accepted.Batch{late}) {
			t.Errorf("%s: inputs of the hour before: %+v", name, in)
		}
		if (len(damaged) > 0) != (r.badPlan || r.badRecord) {
			t.Errorf("%s: damage reported: %v", name, damaged)
		}
	}
}

// deltas have late batches.
type deltas []delta.Batch

func (d deltas) Overlapping(b identity.Batch) (out []delta.Batch) {
	for _, e := range d {
		if e.Identity != b && e.Identity.Intersects(b) {
			out = append(out, e)
		}
	}
	return out
}

// A pending batch and one in a delta that it overlaps, of hours far apart, become inputs of each other's hours.
func TestFindInDeltas(t *testing.T) {
	held, apart, late := entry(id(10, 19), h0-50, h0-40), entry(id(40, 49), h0-50, h0-50), entry(id(15, 24), h0, h0)
	b := backlog.New()
	b.AddSegment("s", []accepted.Batch{late}, func(accepted.Batch) []timegrid.Hour { return []timegrid.Hour{h0} }, now)
	f := Finder{Backlog: b, Deltas: deltas{{Batch: held, Hours: []timegrid.Hour{h0 - 50, h0 - 40}}, {Batch: apart, Hours: []timegrid.Hour{h0 - 50}}}, Records: &records{}, Manifests: mem.New(time.Now)}
	if err := f.Find(t.Context(), h0, now); err != nil {
		t.Fatal(err)
	}
	if in := b.Inputs(h0); !slices.Equal(in, []accepted.Batch{held, late}) {
		t.Errorf("inputs of the hour: %+v", in)
	}
	for _, h := range []timegrid.Hour{h0 - 50, h0 - 40} {
		if in := b.Inputs(h); !slices.Equal(in, []accepted.Batch{late}) {
			t.Errorf("inputs of %s: %+v", h, in)
		}
	}
}

// A plan that is gone is too old to matter; a store that is down is an error.
func TestFindWithoutPlanOrStore(t *testing.T) {
	old, late := entry(id(10, 19), h0-1, h0-1), entry(id(15, 24), h0, h0)
	b := backlog.New()
	b.AddSegment("s", []accepted.Batch{late}, func(accepted.Batch) []timegrid.Hour { return []timegrid.Hour{h0} }, now)
	r := &records{of: map[timegrid.Hour][]accepted.Batch{h0 - 1: {old}}, noPlan: true}
	f := Finder{Backlog: b, Deltas: deltas(nil), Records: r, Manifests: mem.New(time.Now), Damaged: func(error) { t.Error("damage was reported") }}
	if err := f.Find(t.Context(), h0, now); err != nil || len(b.Inputs(h0)) != 1 {
		t.Errorf("without a plan: %v, %+v", err, b.Inputs(h0))
	}
	r.unavailable = true
	if err := f.Find(t.Context(), h0, now); !errors.Is(err, objstore.ErrUnavailable) || record.Unreadable(err) {
		t.Errorf("without the store: %v", err)
	}
}
