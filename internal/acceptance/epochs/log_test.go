package epochs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func frame(n int) identity.Digest { return identity.Sum(fmt.Append(nil, n)) }

// counted counts requests, and loses the answer to some creates.
type counted struct {
	objstore.Store
	gets, creates int
	lose          bool
	// before is called before a create.
	before func()
}

func (c *counted) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	c.gets++
	return c.Store.Get(ctx, key, o)
}

func (c *counted) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if f := c.before; f != nil {
		c.before = nil
		f()
	}
	c.creates++
	i, err := c.Store.Create(ctx, key, b, o)
	if c.lose {
		c.lose = false
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrUnknown}
	}
	return i, err
}

func by(s Store) Writer { return Writer{Store: s, By: "test", At: 1} }

func name(t *testing.T, l *Log, s Store, frames ...identity.Digest) uint64 {
	t.Helper()
	n, err := l.Name(t.Context(), by(s), frames)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func held(t *testing.T, s objstore.Getter) *Set {
	t.Helper()
	l := NewLog(s, "authority")
	if err := l.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	set, reading := l.Held()
	if set != nil && reading != 1 {
		t.Errorf("as of reading %d", reading)
	}
	return set
}

func TestTheFirstEpochHasWhatWasCondemnedBefore(t *testing.T) {
	s := &counted{Store: mem.New(nil)}
	l := NewLog(s, "authority")
	if begun, err := l.Begun(t.Context()); begun || err != nil {
		t.Fatal(begun, err)
	}
	if held(t, s) != nil {
		t.Error("a log that has not begun")
	}
	for _, key := range []string{layout.Condemned(frame(1), 0), layout.Condemned(frame(2), 7), layout.CondemnedHour(9)} {
		if _, err := s.Create(t.Context(), key, []byte("{}"), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // twice is as good
		if err := l.Begin(t.Context(), by(s)); err != nil {
			t.Fatal(err)
		}
	}
	if begun, err := l.Begun(t.Context()); !begun || err != nil {
		t.Fatal(begun, err)
	}
	if held(t, s) != nil {
		t.Error("a log without its first epoch names nothing")
	}
	if n := name(t, l, s, frame(3)); n != 1 {
		t.Errorf("epoch %d", n)
	}
	set := held(t, s)
	for n, want := range map[int]bool{1: true, 2: true, 3: true, 4: false} {
		if set.Has(frame(n)) != want {
			t.Errorf("frame %d", n)
		}
	}
	// What is named is named once, by whomever.
	if n := name(t, NewLog(s, "authority"), s, frame(2), frame(3)); n != 1 {
		t.Errorf("epoch %d", n)
	}
	if n := name(t, l, s, frame(4), frame(3)); n != 2 || !held(t, s).Has(frame(4)) {
		t.Errorf("epoch %d", n)
	}
}

func TestManyEpochsAreReadFromTheLastWholeOne(t *testing.T) {
	s := &counted{Store: mem.New(nil)}
	l := NewLog(s, "authority")
	if err := l.Begin(t.Context(), by(s)); err != nil {
		t.Fatal(err)
	}
	const n = 5*WholeEvery + 7
	for i := range n {
		if at := name(t, l, s, frame(i)); at != uint64(i+1) {
			t.Fatalf("epoch %d of frame %d", at, i)
		}
	}
	s.gets = 0
	set := held(t, s)
	// 1, 2, 4, 8 and then 6, 5 of the whole ones, that one and the 7 behind it, and the one that is not there.
	if s.gets > 16 {
		t.Errorf("%d reads", s.gets)
	}
	if set.Epoch() != n || set.Len() != n {
		t.Errorf("epoch %d with %d names", set.Epoch(), set.Len())
	}
	for i := range n {
		if !set.Has(frame(i)) {
			t.Fatalf("frame %d is not named", i)
		}
	}
	s.gets = 0
	if err := l.Read(t.Context()); err != nil || s.gets != 1 {
		t.Errorf("%d reads, where there is nothing new: %v", s.gets, err)
	}
}

func TestTwoCollectionsAppend(t *testing.T) {
	s := &counted{Store: mem.New(nil)}
	a, b := NewLog(s, "authority"), NewLog(s, "authority")
	name(t, a, s)
	s.before = func() { name(t, b, s, frame(2)) }
	if n := name(t, a, s, frame(1)); n != 3 {
		t.Errorf("epoch %d", n)
	}
	s.lose = true
	if n := name(t, b, s, frame(3)); n != 4 {
		t.Errorf("epoch %d: its create was applied, and the answer lost", n)
	}
	for i := 1; i <= 3; i++ {
		if !held(t, s).Has(frame(i)) {
			t.Errorf("frame %d", i)
		}
	}
	s.Store = denied{s.Store}
	if _, err := a.Name(t.Context(), by(s), []identity.Digest{frame(9)}); !errors.Is(err, objstore.ErrDenied) {
		t.Errorf("denied: %v", err)
	}
}

type denied struct{ objstore.Store }

func (d denied) Create(context.Context, string, []byte, objstore.PutOptions) (objstore.Info, error) {
	return objstore.Info{}, objstore.ErrDenied
}

func TestTooManyNames(t *testing.T) {
	s := mem.New(nil)
	l := NewLog(s, "authority")
	name(t, l, s)
	set, _ := l.Held()
	full := make([]uint64, MaxNames)
	for i := range full {
		full[i] = uint64(i)
	}
	l.set = &Set{epoch: set.epoch, names: full}
	n := name(t, l, s, frame(1))
	got := held(t, s)
	if n != 2 || !got.Everything() || !got.Has(frame(77)) {
		t.Errorf("epoch %d, everything %v", n, got.Everything())
	}
	if n := name(t, l, s, frame(5)); n != 2 {
		t.Errorf("epoch %d: everything is named", n)
	}
	// The set at the bound fits into a record.
	e := Epoch{AuthorityID: "authority", Number: WholeEvery, By: "x", Whole: true}
	e.set(full)
	if b := e.Marshal(); len(b) > Kind.MaxBytes {
		t.Errorf("%d bytes", len(b))
	} else if _, names, err := Parse(e.Key(), b); err != nil || !slices.Equal(names, full) {
		t.Error(err)
	}
}

// listing lists keys that are in order.
type listing []string

func (l listing) List(_ context.Context, o objstore.ListOptions) (p objstore.Page, err error) {
	from, found := slices.BinarySearch(l, o.StartAfter)
	if found {
		from++
	}
	to := min(from+1000, len(l))
	for _, key := range l[from:to] {
		p.Objects = append(p.Objects, objstore.Info{Key: key})
	}
	if to < len(l) {
		p.Next = l[to-1]
	}
	return p, nil
}

// TestMarkersOfManyGenerations: what counts against the bound is frames, and none is left out below it.
func TestMarkersOfManyGenerations(t *testing.T) {
	for frames, everything := range map[int]bool{MaxNames - 1: false, MaxNames + 100: true} {
		var keys listing
		for i := range frames {
			var d identity.Digest
			binary.BigEndian.PutUint64(d[:], uint64(i+1)<<20)
			for gen := range uint32(3) {
				keys = append(keys, layout.Condemned(d, gen))
			}
		}
		names, err := condemned(t.Context(), keys, []uint64{7})
		if err != nil || everything != (len(names) > MaxNames) || !everything && len(names) != frames+1 {
			t.Errorf("%d frames: %d names, %v", frames, len(names), err)
		}
	}
}

func TestEpochsThatCantBeUsed(t *testing.T) {
	for what, e := range map[string]Epoch{
		"another authority": {AuthorityID: "other", Number: 1, By: "x", Whole: true},
		"another number":    {AuthorityID: "authority", Number: 2, By: "x"},
		"not whole":         {AuthorityID: "authority", Number: 1, By: "x"},
		"names":             {AuthorityID: "authority", Number: 1, By: "x", Whole: true, Names: "AAAA"},
		"order":             {AuthorityID: "authority", Number: 1, By: "x", Whole: true, Names: "AAAAAAAAAAIAAAAAAAAAAQ=="},
		"both":              {AuthorityID: "authority", Number: 1, By: "x", Whole: true, Everything: true, Names: "AAAAAAAAAAI="},
	} {
		s := mem.New(nil)
		if _, err := s.Create(t.Context(), layout.CondemnedEpoch(1), e.Marshal(), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		l := NewLog(s, "authority")
		if err := l.Read(t.Context()); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
		if set, reading := l.Held(); set != nil || reading != 0 {
			t.Errorf("%s: epoch %d as of %d", what, set.Epoch(), reading)
		}
	}
}

// TestTheEndIsOfAReadingThatBeganLater: who asks how many readings have begun, and then finds a set as of a later one, knows that all of its
// requests came after.
func TestTheEndIsOfAReadingThatBeganLater(t *testing.T) {
	s := &counted{Store: mem.New(nil)}
	l := NewLog(s, "authority")
	name(t, l, s, frame(1))
	before := l.Readings()
	if _, asOf := l.Held(); asOf > before {
		t.Errorf("as of %d, %d have begun", asOf, before)
	}
	if err := l.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, asOf := l.Held(); asOf != before+1 {
		t.Errorf("as of %d, %d had begun", asOf, before)
	}
	// One that fails found no end.
	failing := &counted{Store: unavailable{s.Store}}
	l.store = failing
	if err := l.Read(t.Context()); err == nil {
		t.Error("no error")
	}
	if _, asOf := l.Held(); asOf != before+1 || l.Readings() != before+2 {
		t.Errorf("as of %d, %d have begun", asOf, l.Readings())
	}
}

type unavailable struct{ objstore.Store }

func (unavailable) Get(context.Context, string, objstore.GetOptions) ([]byte, objstore.Info, error) {
	return nil, objstore.Info{}, objstore.ErrUnavailable
}
