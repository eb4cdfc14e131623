package answer

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// expire decides that the rows of a window are over through an hour, and removes a share
// of its blocks with their objects, as a worker that is on its way does.
func (l *lab) expire(through map[timegrid.Resolution]timegrid.Hour, share float64) {
	l.t.Helper()
	l.put(layout.RollupExpiryKey, catalog.Expiry{AuthorityID: "test", Through: through, WorkerID: "w"}.Marshal())
	var removed []*catalog.Block
	named := map[string]bool{}
	l.must(storetest.Each(l.t.Context(), l.store, layout.ManifestsPrefix, func(i objstore.Info) error {
		r, _, err := catalog.Read(l.t.Context(), l.store, "test", i.Key)
		if err != nil || r.Block == nil {
			return err
		}
		if last, ok := through[r.Block.Name.Resolution]; ok && r.Block.Name.Hour <= last && l.rnd.Float64() < share {
			removed = append(removed, r.Block)
			return nil
		}
		for _, key := range r.Block.Keys() {
			named[key] = true
		}
		return nil
	}))
	for _, s := range removed {
		l.put(s.Name.Key(), s.Remove(0, 1, "w").Marshal())
		for _, key := range s.Keys() {
			if !named[key] {
				l.must(l.store.Delete(l.t.Context(), key))
			}
		}
	}
}

// marked counts why an answer is partial. It may be nearly right, so it is only wanted to
// be one that hours without samples explain.
func (l *lab) marked(q question, c Completeness, got Result) {
	l.t.Helper()
	for _, r := range c.Reasons {
		l.reasons[r.Code]++
		if !slices.Contains([]string{ReasonDownsampled, ReasonBeforeHistory, ReasonNotRolledUp}, r.Code) {
			l.fail("%s: %v", q, c.Reasons)
		}
	}
	if len(flatten(got.Value)) > 0 {
		l.reasons["answers"]++
	}
}

// TestExpiredSamplesAreToldOrNotMissed: where samples have expired, wholly or half-way,
// every answer is what upstream gives over the samples, or says what it lacks. The rows
// that live on answer what is aligned with them exactly.
func TestExpiredSamplesAreToldOrNotMissed(t *testing.T) {
	const each = 150
	for name, x := range map[string]struct {
		seed    uint64
		through map[timegrid.Resolution]timegrid.Hour // hours after the first
		share   float64                               // of the blocks that are removed by now
		late    bool                                  // some batches are in memory alone
		wanted  []string                              // reasons that come up
		deltas  bool                                  // they are in deltas, and not in memory
	}{
		"raw":                         {1, map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: 2}, 1, false, []string{ReasonDownsampled}, false},
		"decided alone":               {2, map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: 2}, 0, false, []string{ReasonDownsampled}, false},
		"half-way":                    {3, map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: 2}, 0.3, false, []string{ReasonDownsampled}, false},
		"1m, too":                     {4, map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: 3, timegrid.OneMinute: 1}, 0.7, false, []string{ReasonDownsampled}, false},
		"all but 1h":                  {5, map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: 3, timegrid.OneMinute: 2, timegrid.FiveMinutes: 2}, 1, false, []string{ReasonDownsampled}, false},
		"everything":                  {6, map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: 2, timegrid.OneMinute: 2, timegrid.FiveMinutes: 2, timegrid.OneHour: 1}, 1, false, []string{ReasonDownsampled, ReasonBeforeHistory}, false},
		"late batches of these hours": {7, map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: 2}, 0.5, true, []string{ReasonDownsampled, ReasonNotRolledUp}, false},
		"late batches in deltas":      {8, map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: 2}, 0.5, true, []string{ReasonDownsampled, ReasonNotRolledUp}, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, x.seed)
			l.expired, l.reasons = true, map[string]int{}
			late := 0.0
			if x.late {
				late = 0.05
			}
			onTime, delayed := l.fill(l.tracks(), late)
			for _, h := range publishedtest.Hours(append(slices.Clone(onTime), delayed...)) {
				if h < timegrid.HourOf(l.now.UnixMilli()) {
					l.publishHour(h, 1, onTime)
				}
			}
			if x.deltas {
				l.putDeltas(delayed)
			}
			l.open()
			through := map[timegrid.Resolution]timegrid.Hour{}
			for res, h := range x.through {
				through[res] = l.first() + h
			}
			l.expire(through, x.share)
			l.must(l.keeper.Refresh(t.Context(), l.first()-10, l.first()+10))
			whole := 0
			for n := 0; n < each; {
				q := l.question()
				if !q.valid(l.eval.Parser) {
					continue
				}
				before := l.values
				l.ask(q)
				if n++; l.values > before {
					whole++
				}
			}
			t.Logf("%d of %d expressions answered exactly, calls answered from windows: %v; %v", whole, each, l.windows, l.reasons)
			for _, code := range x.wanted {
				if l.reasons[code] == 0 {
					t.Errorf("%s came up %d times", code, l.reasons[code])
				}
			}
			if whole < each/6 || l.reasons["answers"] < each/10 {
				t.Error("too little was compared")
			}
			l.aligned(x.through, x.late)
		})
	}
}

// aligned asks what the rows of the finest window that is left answer exactly.
func (l *lab) aligned(through map[timegrid.Resolution]timegrid.Hour, late bool) {
	l.t.Helper()
	for _, res := range []timegrid.Resolution{timegrid.OneMinute, timegrid.FiveMinutes, timegrid.OneHour} {
		if _, over := through[res]; over {
			continue
		}
		end := l.first().StartMS() + 3*timegrid.HourMS
		for _, expr := range []string{"count_over_time(g[3h])", "sum(increase(c_total[2h]))", "max_over_time(g[1h])", "rate(lat_bucket[3h])", "last_over_time(g[2h] offset 1h)",
			"abs(max_over_time((g[1h])))"} {
			s, err := l.eval.Open(l.t.Context())
			l.must(err)
			q := question{expr: expr, start: end, end: end}
			if _, err := s.Instant(l.t.Context(), expr, timeOf(end), Options{}); err != nil {
				l.fail("%s: %v", q, err)
			}
			if c := s.Completeness(); c.Partial != late {
				l.fail("%s of %s rows: %v", q, res, c.Reasons)
			}
			s.Close()
			l.ask(q)
		}
		return
	}
}

// TestNearlyRightAnswers: what stands in for samples is near them.
func TestNearlyRightAnswers(t *testing.T) {
	l := newLab(t, 11)
	l.expired, l.reasons = true, map[string]int{}
	onTime, _ := l.fill(l.tracks(), 0)
	for _, h := range publishedtest.Hours(onTime) {
		l.publishHour(h, 1, onTime)
	}
	l.open()
	l.expire(map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: l.first() + 4}, 1)
	l.must(l.keeper.Refresh(t.Context(), l.first()-10, l.first()+10))
	end := l.first().StartMS() + 4*timegrid.HourMS
	for _, x := range []struct {
		expr string
		at   int64
		off  float64 // share of the exact value that the answer may be off
	}{
		{"sum(count_over_time(g[2h]))", end + 1234, 0.02},
		{"sum(increase(c_total[2h]))", end + 1234, 0.05},
		{"max(max_over_time(g[2h]))", end - 31_000, 0.05},
		{"sum(sum_over_time(d[2h] @ " + "1795246200" + "))", end, 0.05},
		{"max(c_total)", end - 31_000, 0.2},
		{"count(g)", end, 0.3},
		{"sum(rate(h[2h1s]))", end, 0},
		{"sum(count_over_time(g[2h:1m]))", end, 0.2},
	} {
		exact := l.upstream(x.expr, x.at)
		s, err := l.eval.Open(t.Context())
		l.must(err)
		got, err := s.Instant(t.Context(), x.expr, timeOf(x.at), Options{})
		l.must(err)
		c := s.Completeness()
		if !c.Partial || len(c.Reasons) != 1 || c.Reasons[0].Code != ReasonDownsampled || !strings.Contains(c.Reasons[0].Text, "1m rows") {
			t.Errorf("%s: %v", x.expr, c.Reasons)
		}
		g, w := flatten(got.Value), flatten(exact)
		if len(g) != 1 || len(w) != 1 {
			t.Errorf("%s: %v, want %v", x.expr, g, w)
		}
		for k, want := range w {
			if have := g[k]; want.h == nil && math.Abs(have.v-want.v) > x.off*math.Abs(want.v) {
				t.Errorf("%s: %v, want nearly %v", x.expr, have.v, want.v)
			}
		}
		s.Close()
	}
}

func (l *lab) upstream(expr string, at int64) parser.Value {
	l.t.Helper()
	q, err := l.engine.NewInstantQuery(l.t.Context(), l.ref, nil, expr, timeOf(at))
	l.must(err)
	defer q.Close()
	res := q.Exec(l.t.Context())
	l.must(res.Err)
	return res.Value
}

func timeOf(ms int64) time.Time { return time.UnixMilli(ms) }
