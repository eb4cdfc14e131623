package ledger

import (
	"fmt"
	"math"
	"reflect"
	"testing"
)

const top = uint64(math.MaxUint64)

func TestEnds(t *testing.T) {
	l := New(testBoot)
	if _, ok := l.AcceptedThrough(); ok || l.Gaps(0) != nil {
		t.Error("an empty ledger knows something")
	}
	l.Add(Entry{top - 4, top, 1})
	l.Add(Entry{0, 0, 2})
	if got, want := l.Gaps(0), []Range{{1, top - 5}}; !reflect.DeepEqual(got, want) {
		t.Errorf("gaps %v, want %v", got, want)
	}
	if c := l.Add(Entry{1, top - 5, 3}); c.Kind != Added || len(c.Overlap) != 0 {
		t.Errorf("fill: %+v", c)
	}
	if n := l.RecordCount(); n != top {
		t.Errorf("records %d: the count that does not fit must stop at the greatest", n)
	}
	if c := l.Add(Entry{5, 4, 1}); c.Kind != Invalid {
		t.Errorf("reversed: %v", c.Kind)
	}
}

// 10-20 and then 15-25: both are kept, the overlap is reported, each number counts once.
func TestOverlapOfTheDesign(t *testing.T) {
	l := New(testBoot)
	a, b := Entry{10, 20, 100}, Entry{15, 25, 101}
	l.Add(a)
	c := l.Add(b)
	if want := []Range{{15, 20}}; !reflect.DeepEqual(c.Overlap, want) || !reflect.DeepEqual(l.Overlaps(10), want) {
		t.Errorf("overlap %v and %v, want %v", c.Overlap, l.Overlaps(10), want)
	}
	if l.RecordCount() != 16 || l.BatchCount() != 2 || len(l.Overlapping()) != 2 {
		t.Errorf("%d records of %d batches, %d overlapping", l.RecordCount(), l.BatchCount(), len(l.Overlapping()))
	}
	if mine, exact := l.Own(b); !exact || !reflect.DeepEqual(mine, []Range{{21, 25}}) {
		t.Errorf("later one owns %v", mine)
	}
	if mine, _ := l.Own(a); !reflect.DeepEqual(mine, []Range{{10, 20}}) {
		t.Errorf("earlier one owns %v", mine)
	}
}

func TestLateOverlapWithFolded(t *testing.T) {
	l := New(testBoot)
	for i := range uint64(10 * Window) {
		l.Add(Entry{i * 10, i*10 + 9, int64(i)})
	}
	if len(l.recent) != Window || len(l.all) != 1 || len(l.folded) != 1 {
		t.Fatalf("%d recent, %d intervals, %d folded", len(l.recent), len(l.all), len(l.folded))
	}
	if c := l.Add(Entry{20, 29, 2}); c.Kind != Covered {
		t.Errorf("repeat of a folded identity: %v", c.Kind)
	}
	if c := l.Add(Entry{25, 34, 99}); c.Kind != Covered {
		t.Errorf("an overlap that lies in what is folded can't be told from a repeat: %v", c.Kind)
	}
	c := l.AddNew(Entry{25, 34, 99})
	if want := []Range{{25, 34}}; c.Kind != Added || !reflect.DeepEqual(c.Overlap, want) || !reflect.DeepEqual(l.Overlaps(0), want) {
		t.Errorf("known to be new: %+v", c)
	}
	if l.BatchCount() != 10*Window+1 || l.RecordCount() != 100*Window {
		t.Errorf("%d batches, %d records", l.BatchCount(), l.RecordCount())
	}
	if mine, exact := l.Own(Entry{31, 42, 7}); exact || mine != nil {
		t.Errorf("over folded identities: %v, exact %v", mine, exact)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	l := New(testBoot)
	// Every identity overlaps its neighbours, and there are many.
	for i := range uint64(4 * MaxOverlapping) {
		l.Add(Entry{i * 3, i*3 + 3, int64(i)})
	}
	if len(l.recent) > Window || len(l.overlapping) > MaxOverlapping || len(l.overlaps) > MaxOverlapping {
		t.Errorf("%d recent, %d overlapping, %d overlaps", len(l.recent), len(l.overlapping), len(l.overlaps))
	}
	if l.dropped == 0 {
		t.Error("what found no room was not counted")
	}
	if _, err := marshalParse(l); err != nil {
		t.Error(err)
	}
}

func marshalParse(l *Ledger) (*Ledger, error) {
	back, rest, err := ReadBinary(l.AppendBinary(nil))
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes follow", len(rest))
	}
	return back, err
}

// TestReadBinaryRefuses: of ledgers with a field that contradicts the others, and of ones that are cut, none is read.
func TestReadBinaryRefuses(t *testing.T) {
	good := func() *Ledger {
		l := New(testBoot)
		l.window = 1
		for _, e := range []Entry{{0, 9, 5}, {10, 19, 7}, {15, 24, 8}, {40, 49, 9}} {
			l.Add(e)
		}
		return l
	}
	b := good().AppendBinary(nil)
	for n := range b {
		if _, _, err := ReadBinary(b[:n]); err == nil {
			t.Errorf("the first %d of %d bytes are a ledger", n, len(b))
		}
	}
	for name, spoil := range map[string]func(*Ledger){
		"boot":        func(l *Ledger) { l.boot.Boot = "" },
		"reversed":    func(l *Ledger) { l.recent[0].Start, l.recent[0].End = 49, 40 },
		"touching":    func(l *Ledger) { l.folded = intervals{{0, 4}, {5, 24}} },
		"order":       func(l *Ledger) { l.folded = intervals{{30, 34}, {5, 24}} },
		"count":       func(l *Ledger) { l.batches = 0 },
		"overlap":     func(l *Ledger) { l.overlaps = intervals{{30, 31}} },
		"overlapping": func(l *Ledger) { l.overlapping = []Entry{{25, 35, 1}} },
		"too many":    func(l *Ledger) { l.recent = make([]Entry, Window+1) },
	} {
		l := good()
		spoil(l)
		if _, _, err := ReadBinary(l.AppendBinary(nil)); err == nil {
			t.Errorf("%s: it is read", name)
		}
	}
}

func FuzzReadBinary(f *testing.F) {
	l := New(testBoot)
	for _, e := range []Entry{{0, 9, 1}, {5, 14, 2}, {20, 29, 3}, {top - 1, top, 4}} {
		l.Add(e)
	}
	l.AddTime(-3)
	f.Add(l.AppendBinary(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, _, err := ReadBinary(b)
		if err != nil {
			return
		}
		again, err := marshalParse(l)
		if err != nil {
			t.Fatalf("what was read can't be written and read: %v", err)
		}
		if x, y := l.AppendBinary(nil), again.AppendBinary(nil); string(x) != string(y) {
			t.Fatalf("%x\n%x", x, y)
		}
		l.Add(Entry{3, 3, 3})
		l.Gaps(0)
	})
}

func BenchmarkAddInOrder(b *testing.B) {
	l := New(testBoot)
	b.ReportAllocs()
	for i := range b.N {
		s := uint64(i) * 100
		l.Add(Entry{s, s + 99, int64(i)})
	}
}
