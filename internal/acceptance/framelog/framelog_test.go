package framelog

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func batch(start, end uint64) identity.Batch {
	return identity.Batch{Agent: "a", Boot: "b", SeqStart: start, SeqEnd: end}
}

func frameOf(id identity.Batch) Frame {
	d := identity.Sum([]byte(id.String()))
	return Frame{Identity: id, FrameSHA256: d, FrameBytes: 9, Keys: []string{layout.Blob(d, 0)}}
}

func write(t *testing.T, s objstore.Store, at int64, ids ...identity.Batch) string {
	t.Helper()
	l := Log{AuthorityID: "auth", By: "test", Before: 1, RemovedAt: at}
	for _, id := range ids {
		l.Frames = append(l.Frames, frameOf(id))
	}
	b, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Parse(b); err != nil || got.Frames[0].Identity != ids[0] {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := s.Create(t.Context(), l.Key(b), b, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	return l.Key(b)
}

func removed(t *testing.T, x *Index, id identity.Batch) bool {
	t.Helper()
	ok, err := x.Removed(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestALogThatCameSinceIsSeen(t *testing.T) {
	s := mem.New(time.Now)
	x := NewIndex(s, "auth")
	if removed(t, x, batch(0, 9)) {
		t.Error("nothing was removed")
	}
	write(t, s, 5e9, batch(0, 9), batch(10, 19))
	write(t, s, 4e9, batch(20, 29)) // by a clock that lags
	for _, id := range []identity.Batch{batch(0, 9), batch(10, 19), batch(20, 29)} {
		if !removed(t, x, id) {
			t.Errorf("%s was removed", id)
		}
	}
	for _, id := range []identity.Batch{batch(0, 19), batch(5, 14), batch(30, 39), {Agent: "a", Boot: "c", SeqStart: 0, SeqEnd: 9}} {
		if removed(t, x, id) {
			t.Errorf("%s was not removed", id)
		}
	}
	if removed(t, NewIndex(s, "other"), batch(0, 9)) {
		t.Error("the log of another authority counts")
	}
}

func TestAnUnreadableLogRemovesNothing(t *testing.T) {
	s := mem.New(time.Now)
	key := write(t, s, 1e9, batch(0, 9))
	b, _, _ := s.Get(t.Context(), key, objstore.GetOptions{})
	if _, err := s.Put(t.Context(), key, append([]byte(" "), b...), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	x := NewIndex(s, "")
	if removed(t, x, batch(0, 9)) || len(x.Unread()) != 1 || !errors.Is(x.Unread()[0].Err, record.ErrCorrupt) {
		t.Errorf("unread %v", x.Unread())
	}
}

// A store that can't be asked is an error, and no answer.
func TestAFailingStoreIsAnError(t *testing.T) {
	s := mem.New(time.Now)
	write(t, s, 1e9, batch(0, 9))
	x := NewIndex(fault.New(s, 1, fault.Refused("list", layout.FrameLogsPrefix, objstore.ErrUnavailable)), "")
	if _, err := x.Removed(t.Context(), batch(0, 9)); !errors.Is(err, objstore.ErrUnavailable) {
		t.Error(err)
	}
}

// Runs know exactly the batches that were added, whatever overlaps and in any order.
func TestRunsAreExact(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		x := NewIndex(mem.New(time.Now), "")
		in := map[identity.Batch]bool{}
		for range r.IntN(60) {
			n := uint64(1 + r.IntN(3))
			start := uint64(r.IntN(40))
			if r.IntN(2) == 0 {
				start = start / n * n
			}
			id := batch(start, start+n-1)
			x.add(id)
			in[id] = true
		}
		for start := range uint64(42) {
			for n := range uint64(4) {
				if id := batch(start, start+n); x.covers(id) != in[id] {
					t.Fatalf("%s: %v, runs %v", id, in[id], x.boots)
				}
			}
		}
	}
}

func TestEqualBatchesInARowAreOneRun(t *testing.T) {
	x := NewIndex(mem.New(time.Now), "")
	for i := range uint64(1000) {
		x.add(batch(i*10, i*10+9))
		x.add(batch(i*10, i*10+9))
	}
	if n := len(x.boots[batch(0, 0).BootOf()]); n != 1 {
		t.Errorf("%d runs", n)
	}
}
