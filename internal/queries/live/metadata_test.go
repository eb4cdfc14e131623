package live_test

import (
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// meant is a batch of a sample of the series m{i=…}, with a type and a unit.
func meant(t *testing.T, seq uint64, at time.Time, i string, typ series.Type, unit string) *modelBatch {
	t.Helper()
	b := frame.NewBuilder()
	id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "m"}, {Name: "i", Value: i}}, typ, unit, 0)
	if err == nil {
		err = b.Append(id, at.UnixNano(), 1)
	}
	if err == nil {
		err = b.SetHelp("m", "m's")
	}
	if err != nil {
		t.Fatal(err)
	}
	built, err := b.Build(boot, seq)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := frame.Encode(nil, built)
	if err != nil {
		t.Fatal(err)
	}
	a := &modelBatch{batch: &frame.Batch{}}
	if err := frame.Decode(raw, a.batch, frame.Limits{}); err != nil {
		t.Fatal(err)
	}
	a.Batch = accepted.Batch{Identity: a.batch.Identity, AcceptedAt: at.UnixNano(), MaxTime: at.UnixNano()}
	return a
}

func metadata(t *testing.T, snap *live.Snapshot) string {
	t.Helper()
	list, err := snap.Metadata(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(list)
}

// TestMetadataIsSorted: one entry for each type and unit of a name, all with its help.
func TestMetadataIsSorted(t *testing.T) {
	s := newStore(t, live.Config{})
	for i, m := range []struct {
		typ  series.Type
		unit string
	}{{series.Counter, "s"}, {series.Gauge, "s"}, {series.Gauge, "bytes"}, {series.Gauge, ""}, {series.Gauge, "s"}} {
		insert(t, s, meant(t, uint64(1+i), start, fmt.Sprint(i), m.typ, m.unit), start, live.Inserted)
	}
	snap := s.Snapshot(start)
	defer snap.Close()
	if got, want := metadata(t, snap), "[{m 1  m's} {m 1 bytes m's} {m 1 s m's} {m 2 s m's}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestMetadataOfTheNewestSample: a series that changed its type or its unit has those of its last
// sample, whatever the order in which batches came; of equal times always the same ones.
func TestMetadataOfTheNewestSample(t *testing.T) {
	batches := []*modelBatch{
		meant(t, 1, start.Add(time.Minute), "x", series.Gauge, "s"),
		meant(t, 2, start.Add(2*time.Minute), "x", series.Counter, "bytes"),
		meant(t, 3, start, "x", series.Info, ""),
		meant(t, 4, start.Add(2*time.Minute), "x", series.Counter, "a"),
	}
	for i := range 24 {
		s := newStore(t, live.Config{})
		var before *live.Snapshot
		for k, a := range permutation(batches, i) {
			insert(t, s, a, start, live.Inserted)
			if k == 0 {
				before = s.Snapshot(start)
				if got := metadata(t, before); got != fmt.Sprintf("[{m %d %s m's}]", a.batch.Groups[0].Series[0].Type, a.batch.Strings[a.batch.Groups[0].Series[0].Unit]) {
					t.Errorf("order %d: the first batch gives %s", i, got)
				}
			}
		}
		first := metadata(t, before)
		insert(t, s, meant(t, 10, start.Add(time.Hour), "x", series.Gauge, "late"), start, live.Inserted)
		if got := metadata(t, before); got != first {
			t.Errorf("order %d: an open snapshot has %s, had %s", i, got, first)
		}
		before.Close()
		snap := s.Snapshot(start)
		if got := metadata(t, snap); got != "[{m 1 late m's}]" {
			t.Errorf("order %d: %s", i, got)
		}
		snap.Close()
	}
	for i := range 24 {
		s := newStore(t, live.Config{})
		for _, a := range permutation(batches, i) {
			insert(t, s, a, start, live.Inserted)
		}
		snap := s.Snapshot(start)
		if got, want := metadata(t, snap), "[{m 2 bytes m's}]"; got != want {
			t.Errorf("order %d: %s, want %s", i, got, want)
		}
		snap.Close()
	}
}

// TestUnitsAreBounded: a fleet that makes up units does not fill the memory; what is beyond the
// bound is unknown.
func TestUnitsAreBounded(t *testing.T) {
	s := newStore(t, live.Config{})
	for i := range 1_010 {
		insert(t, s, meant(t, uint64(1+i), start, "x", series.Gauge, fmt.Sprint("u", i)), start, live.Inserted)
	}
	insert(t, s, meant(t, 20_000, start.Add(time.Second), "x", series.Counter, "another"), start, live.Inserted)
	snap := s.Snapshot(start)
	defer snap.Close()
	if got := metadata(t, snap); got != "[{m 2  m's}]" {
		t.Errorf("%s", got)
	}
}
