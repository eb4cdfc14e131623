package answer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestBlocksThatChangeBetweenQueries: the same questions, each asked when nothing of it is cached and again when all of it
// is, give what the samples give, while generations, deltas and late batches come in between. Listings of series are those
// that have a sample in the range, to the millisecond.
func TestBlocksThatChangeBetweenQueries(t *testing.T) {
	l := newLab(t, 5)
	onTime, late := l.fill(l.tracks(), 0.12)
	half, rest := late[:len(late)/2], late[len(late)/2:]
	newest := timegrid.HourOf(l.now.UnixMilli())
	hours := publishedtest.Hours(append(slices.Clone(onTime), late...))
	hours = slices.DeleteFunc(hours, func(h timegrid.Hour) bool { return h >= newest })
	for _, h := range hours {
		l.publishHour(h, 1, onTime)
	}
	l.open()
	var questions []question
	for len(questions) < 40 {
		q := l.question()
		if q.expr = l.plain(pick(l.rnd, int64(60_000), 300_000, 300_000, 3600_000)); len(questions)%2 == 0 {
			q.expr = fmt.Sprintf("sum by (s, agent) (%s)", q.expr)
		}
		if q.valid(l.eval.Parser) {
			questions = append(questions, q)
		}
	}
	listed := 0
	check := func(what string) {
		t.Helper()
		l.must(l.keeper.Refresh(t.Context(), l.first()-10, l.first()+10))
		for _, q := range questions {
			for range 3 {
				l.ask(q)
			}
		}
		for range 60 {
			listed += l.list(what)
		}
	}
	check("first generations")
	for i, h := range hours {
		if i%2 == 0 {
			l.publishHour(h, 2, append(slices.Clone(onTime), half...))
		}
	}
	check("second generations")
	l.putDeltas(rest)
	l.open()
	check("deltas")
	for i, h := range hours {
		if i%3 == 0 {
			l.publishHour(h, 3, append(slices.Clone(onTime), late...))
		}
	}
	check("third generations")
	if t.Logf("%d expressions, %d values, %d series listed", l.asked, l.values, listed); l.values < 1000 || listed < 1000 {
		t.Error("too little was compared")
	}
}

// list compares a listing of a range, which often begins or ends with an hour, with the series that have a sample there.
func (l *lab) list(what string) int {
	l.t.Helper()
	mint := l.first().StartMS() + l.rnd.Int64N(7*timegrid.HourMS) - timegrid.HourMS/2
	if l.rnd.IntN(2) == 0 {
		mint = mint / timegrid.HourMS * timegrid.HourMS
	}
	maxt := mint + pick(l.rnd, 0, 1, 1000, 30_000, 60_000, timegrid.HourMS, l.rnd.Int64N(3*timegrid.HourMS))
	m := pick(l.rnd, labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".+"), labels.MustNewMatcher(labels.MatchEqual, "__name__", "h"), labels.MustNewMatcher(labels.MatchEqual, "agent", "a1"))
	s, err := l.eval.Open(l.t.Context())
	l.must(err)
	defer s.Close()
	q, err := s.Querier(mint, maxt)
	l.must(err)
	var want []string
	set := q.Select(l.t.Context(), true, nil, m)
	for set.Next() {
		if set.At().Iterator(nil).Next() != chunkenc.ValNone {
			want = append(want, set.At().Labels().String())
		}
	}
	l.must(set.Err())
	slices.Sort(want)
	for _, sorted := range []bool{true, false} {
		var got []string
		set := q.Select(l.t.Context(), sorted, &storage.SelectHints{Func: "series", DisableTrimming: true}, m)
		for set.Next() {
			got = append(got, set.At().Labels().String())
		}
		l.must(set.Err())
		if slices.Sort(got); !slices.Equal(got, want) {
			l.fail("%s: %s from %d to %d: %q, want %q", what, m, mint, maxt, got, want)
		}
	}
	return len(want)
}
