package ledger

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/record"
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
	if f, ok := l.Frontier(0); !ok || f != top {
		t.Errorf("frontier %d", f)
	}
	if from, _ := l.ListFrom(0, 0); from != top {
		t.Errorf("list from %d", from)
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

func TestFrontier(t *testing.T) {
	l := New(testBoot)
	for _, e := range []Entry{{0, 9, 10}, {10, 19, 11}, {30, 39, 50}, {60, 69, 90}} {
		l.Add(e)
	}
	for _, c := range []struct {
		settled  int64
		frontier uint64
	}{{0, 19}, {50, 19}, {51, 39}, {90, 39}, {91, 69}} {
		if f, _ := l.Frontier(c.settled); f != c.frontier {
			t.Errorf("settled before %d: frontier %d, want %d", c.settled, f, c.frontier)
		}
	}
	for _, c := range []struct {
		back int
		from uint64
	}{{0, 20}, {1, 10}, {2, 0}, {9, 0}} {
		if f, _ := l.ListFrom(0, c.back); f != c.from {
			t.Errorf("back %d: list from %d, want %d", c.back, f, c.from)
		}
	}
}

// The first identity that was seen need not be the first: what is below it may come yet.
func TestFrontierBelowTheFirst(t *testing.T) {
	l := New(testBoot)
	l.Add(Entry{10, 19, 50})
	if f, ok := l.ListFrom(50, 4); ok {
		t.Errorf("lists from %d: never sees what comes before 10", f)
	}
	if f, ok := l.Frontier(51); !ok || f != 19 {
		t.Errorf("settled: frontier %d %v", f, ok)
	}
	l.Add(Entry{0, 9, 60})
	if f, ok := l.Frontier(0); !ok || f != 19 {
		t.Errorf("filled: frontier %d %v", f, ok)
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
	if l.OverlapsDropped() == 0 {
		t.Error("what found no room was not counted")
	}
	if _, err := marshalParse(l); err != nil {
		t.Error(err)
	}
}

func marshalParse(l *Ledger) (*Ledger, error) {
	return Parse(l.Marshal())
}

func TestParseRefuses(t *testing.T) {
	good := `{"schema":"lightmetrics.ledger.v1","agent_id":"a","boot_id":"b","batch_count":2,"last_accepted_at_unix_ns":7,"intervals":[[0,19,5]],"folded":[[0,9,5]],"recent":[[10,19,7]],"overlapping":[],"overlaps":[]}`
	if _, err := Parse([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string][2]string{
		"schema":       {"ledger.v1", "ledgers.v1"},
		"boot":         {`"boot_id":"b"`, `"boot_id":""`},
		"reversed":     {"[[10,19,7]]", "[[19,10,7]]"},
		"touching":     {"[[0,9,5]]", "[[0,4,5],[5,9,5]]"},
		"not a union":  {"[[0,19,5]]", "[[0,18,5]]"},
		"two numbers":  {"[[0,9,5]]", "[[0,9]]"},
		"negative":     {"[[0,9,5]]", "[[-1,9,5]]"},
		"too large":    {"[[10,19,7]]", "[[10,18446744073709551616,7]]"},
		"count":        {`"batch_count":2`, `"batch_count":0`},
		"overlap":      {`"overlaps":[]`, `"overlaps":[[30,31,0]]`},
		"overlapping":  {`"overlapping":[]`, `"overlapping":[[15,25,1]]`},
		"cut":          {`"overlaps":[]}`, ``},
		"wrong object": {"[[0,9,5]]", "{}"},
	} {
		bad := strings.Replace(good, r[0], r[1], 1)
		if bad == good {
			t.Fatalf("%s: nothing replaced", name)
		}
		if _, err := Parse([]byte(bad)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	l := New(testBoot)
	for _, e := range []Entry{{0, 9, 1}, {5, 14, 2}, {20, 29, 3}, {top - 1, top, 4}} {
		l.Add(e)
	}
	f.Add(l.Marshal())
	f.Add([]byte(`{"schema":"lightmetrics.ledger.v1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Parse(b)
		if err != nil {
			if !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrNewerVersion) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		again, err := marshalParse(l)
		if err != nil {
			t.Fatalf("what was read can't be written and read: %v", err)
		}
		x, y := l.Marshal(), again.Marshal()
		if string(x) != string(y) {
			t.Fatalf("%s\n%s", x, y)
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
