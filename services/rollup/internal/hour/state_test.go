package hour

import (
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func id(n uint64) identity.Batch {
	return identity.Batch{Agent: "a", Boot: "b", SeqStart: n, SeqEnd: n}
}

func inputs(t *testing.T, ns ...uint64) catalog.Inputs {
	t.Helper()
	var ids []identity.Batch
	for _, n := range ns {
		ids = append(ids, id(n))
	}
	in, err := catalog.NewInputs(ids)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// block is a committed one; each generation has a plan of its own.
func block(t *testing.T, res timegrid.Resolution, gen uint64, ns ...uint64) *catalog.Block {
	return &catalog.Block{Name: catalog.Name{Resolution: res, Generation: gen}, PlanSHA256: identity.Sum([]byte{byte(gen)}), Inputs: inputs(t, ns...)}
}

// published has the generation at the given resolutions.
func published(t *testing.T, gen uint64, at []timegrid.Resolution, ns ...uint64) *State {
	s := &State{Top: map[timegrid.Resolution]uint64{}, Blocks: map[timegrid.Resolution]*catalog.Block{}, Expired: map[timegrid.Resolution]catalog.Inputs{}}
	for _, res := range at {
		s.Top[res], s.Blocks[res] = gen, block(t, res, gen, ns...)
	}
	return s
}

func TestNothingIsPublished(t *testing.T) {
	for _, s := range []*State{{}, published(t, 0, nil)} {
		if s.Next() != 1 || s.Unfinished() || len(s.Undecided(1)) != 4 || s.Covers(id(1)) || s.Newest() != nil || s.CommittedAbove(0) || s.MayBeCommitted(1, timegrid.Resolutions()) {
			t.Errorf("%+v", s)
		}
	}
}

// A worker died after it had published some resolutions: that generation is finished first.
func TestAGenerationThatIsHalfDone(t *testing.T) {
	s := published(t, 1, timegrid.Resolutions(), 1, 2)
	s.Top[timegrid.Raw], s.Blocks[timegrid.Raw] = 2, block(t, timegrid.Raw, 2, 1, 2, 3)
	open := s.Undecided(2)
	if s.Next() != 2 || !s.Unfinished() || slices.Contains(open, timegrid.Raw) || len(open) != 3 {
		t.Errorf("next %d, open %v", s.Next(), open)
	}
	if s.Covers(id(3)) || !s.Covers(id(2)) {
		t.Error("a batch is covered when all resolutions have it")
	}
	if !s.MayBeCommitted(2, open) {
		t.Error("raw rows are committed")
	}
	if s.Newest().Name.Generation != 2 || s.Before(timegrid.Raw, 2) != 0 || s.Before(timegrid.OneHour, 2) != 1 {
		t.Errorf("newest %v", s.Newest().Name)
	}
	if s.CommittedAbove(1) || !s.CommittedAbove(0) {
		t.Error("three resolutions have generation 1")
	}
}

// An abort that was cut short: what is decided is aborted, so the rest may be aborted, too.
func TestAnAbortThatWasCutShort(t *testing.T) {
	s := published(t, 1, timegrid.Resolutions(), 1)
	s.Top[timegrid.OneHour] = 2
	open := s.Undecided(2)
	if s.Next() != 2 || len(open) != 3 || s.MayBeCommitted(2, open) {
		t.Errorf("next %d, open %v", s.Next(), open)
	}
	s.Damaged = []string{"a record of who knows what"}
	if !s.MayBeCommitted(2, open) {
		t.Error("a record that can't be read may be of a committed block")
	}
}

// Retention removed raw rows: what they covered stays covered, and the next generation has the
// inputs of the blocks that are left.
func TestExpiredBlocksCover(t *testing.T) {
	s := published(t, 3, timegrid.Resolutions(), 1, 2)
	delete(s.Blocks, timegrid.Raw)
	if s.Covers(id(1)) {
		t.Error("nobody knows what the raw block covered")
	}
	s.Expired[timegrid.Raw] = inputs(t, 1)
	if !s.Covers(id(1)) || s.Covers(id(2)) {
		t.Error("not by its inputs")
	}
	if s.Newest() == nil || s.Newest().Name.Generation != 3 || s.Next() != 4 || s.Unfinished() {
		t.Errorf("newest %+v, next %d", s.Newest(), s.Next())
	}
	if !s.MayBeCommitted(4, []timegrid.Resolution{timegrid.OneMinute, timegrid.FiveMinutes, timegrid.OneHour}) {
		t.Error("an expired generation was committed")
	}
}

// With what a job has just committed the state is the one that would be read.
func TestCommittedBlocksCover(t *testing.T) {
	s := published(t, 1, timegrid.Resolutions(), 1)
	delete(s.Blocks, timegrid.Raw)
	s.Expired[timegrid.Raw] = inputs(t, 1)
	var made []*catalog.Block
	for _, res := range timegrid.Resolutions() {
		made = append(made, block(t, res, 2, 1, 2))
	}
	if n := s.With(made[1:]); n.Covers(id(2)) || !n.Unfinished() || !n.Covers(id(1)) {
		t.Errorf("without a resolution: %+v", n)
	}
	n := s.With(made)
	if !n.Covers(id(2)) || n.Next() != 3 || n.Unfinished() || len(n.Expired) != 0 || n.Newest().Name.Generation != 2 {
		t.Errorf("%+v", n)
	}
	if s.Covers(id(2)) || s.Next() != 2 || len(s.Expired) != 1 {
		t.Errorf("the state before has changed: %+v", s)
	}
}
