package shapes_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/series/shapes"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

type group struct {
	refs       []series.Ref
	histograms bool
}

type batch struct {
	series.Table
	groups []group
}

func (b *batch) Common() *series.Table { return &b.Table }

func (b *batch) Parts() int { return len(b.groups) }

func (b *batch) Part(i int) ([]series.Ref, bool) { return b.groups[i].refs, b.groups[i].histograms }

func example() *batch {
	ref := func(value, unit uint32, t series.Type) series.Ref {
		return series.Ref{Labels: []series.LabelRef{{Name: 1, Value: value}}, Type: t, Unit: unit, StartTime: 7}
	}
	return &batch{
		Table:  series.Table{Strings: []string{"", series.MetricName, "up", "load", "s"}, Resource: []series.LabelRef{{Name: 4, Value: 4}}},
		groups: []group{{[]series.Ref{ref(2, 0, series.Gauge), ref(3, 4, series.Counter)}, false}, {[]series.Ref{ref(2, 0, series.Unknown)}, true}},
	}
}

// Equal tables are one shape; whatever makes a place another series, or another kind of
// group, makes another one.
func TestFind(t *testing.T) {
	t.Run("digests", func(t *testing.T) { find(t, shapes.NewTable[string]()) })
	t.Run("keys", func(t *testing.T) { find(t, shapes.NewExactTable[string]()) })
}

func find(t *testing.T, table *shapes.Table[string]) {
	if table.Find("a", example()) != nil {
		t.Fatal("a shape that nobody entered")
	}
	first := "first"
	key := table.Enter(&first)
	for name, change := range map[string]func(b *batch){
		"nothing":    func(*batch) {},
		"start time": func(b *batch) { b.groups[0].refs[0].StartTime = 99 },
	} {
		b := example()
		if change(b); true {
			if table.Find("a", b) != &first {
				t.Errorf("%s: another shape", name)
			}
		}
	}
	for name, change := range map[string]func(b *batch){
		"string":      func(b *batch) { b.Strings[3] = "loads" },
		"border":      func(b *batch) { b.Strings[2], b.Strings[3] = "upl", "oad" },
		"resource":    func(b *batch) { b.Resource[0].Value = 2 },
		"no resource": func(b *batch) { b.Resource = nil },
		"label":       func(b *batch) { b.groups[0].refs[0].Labels[0].Value = 3 },
		"more labels": func(b *batch) {
			b.groups[0].refs[0].Labels = append(b.groups[0].refs[0].Labels, series.LabelRef{Name: 4, Value: 4})
		},
		"type":          func(b *batch) { b.groups[0].refs[0].Type = series.Counter },
		"unit":          func(b *batch) { b.groups[0].refs[0].Unit = 4 },
		"order":         func(b *batch) { r := b.groups[0].refs; r[0], r[1] = r[1], r[0] },
		"kind of group": func(b *batch) { b.groups[1].histograms = false },
		"fewer groups":  func(b *batch) { b.groups = b.groups[:1] },
		"another border": func(b *batch) {
			b.groups[0].refs, b.groups[1].refs = b.groups[0].refs[:1], append(b.groups[0].refs[1:], b.groups[1].refs...)
		},
	} {
		b := example()
		change(b)
		if table.Find("a", b) != nil {
			t.Errorf("%s: the same shape", name)
		}
	}
	if table.Find("b", example()) != nil {
		t.Error("another agent: the same shape")
	}
	if table.Len() != 1 {
		t.Errorf("%d shapes", table.Len())
	}
	if table.Drop(key); table.Len() != 0 {
		t.Error("still there")
	}
}

// Recognising a shape takes no memory for its series.
func TestFindDoesNotAllocatePerSeries(t *testing.T) {
	table := shapes.NewTable[string]()
	few, many := example(), example()
	for range 1000 {
		many.groups[0].refs = append(many.groups[0].refs, many.groups[0].refs[0])
	}
	count := func(b *batch) float64 {
		table.Find("a", b)
		return testing.AllocsPerRun(20, func() { table.Find("a", b) })
	}
	if a, b := count(many), count(few); a+b > 0 {
		t.Errorf("%v allocations for 1,000 series more, %v without", a, b)
	}
}
