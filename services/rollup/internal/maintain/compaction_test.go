package maintain

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/status"
)

func reaching(t *testing.T) *Compaction {
	t.Helper()
	c := &Compaction{cfg: DefaultCompactConfig(), scans: map[timegrid.Resolution]scan{}}
	var err error
	if c.settings, err = c.cfg.settings(); err != nil {
		t.Fatal(err)
	}
	return c
}

// scanned notes a scan as Compact does.
func (c *Compaction) scanned(res timegrid.Resolution, now time.Time, full bool, next scan) {
	next.at, next.full = now, c.scans[res].full
	if full {
		next.full = now
	}
	c.scans[res] = next
}

// TestReachOfScans: for sixty days every span is scanned whole soon after it is due, late batches are found by a full scan,
// and all that costs few listings: each of a page for 1,000 of 32 shards' blocks.
func TestReachOfScans(t *testing.T) {
	const days, slots = 60, 32 * 4
	c, groups := reaching(t), map[shard.ID]uint64{0: 1}
	begin := time.Date(2026, 3, 1, 0, 5, 0, 0, time.UTC)
	lists, fulls := map[timegrid.Resolution]int{}, map[timegrid.Resolution]int{}
	for now := begin; now.Before(begin.AddDate(0, 0, days)); now = now.Add(time.Minute) {
		for _, res := range timegrid.Resolutions() {
			last := c.scans[res]
			from, full, ok := c.reach(res, groups, now)
			spans := c.settings.Spans[res]
			if !ok {
				first, due := c.settings.DueSince(res, last.at, now)
				if due && now.Sub(last.at) >= c.wait(spans[0]) {
					t.Fatalf("%s: %s: the span from %s is due and not scanned", now, res, first)
				}
				continue
			}
			to := timegrid.HourOf(now.Add(-c.settings.After).UnixMilli())
			lists[res] += 1 + int(to-from+1)*slots/1000
			for _, span := range spans { // what became due since the last scan
				n := timegrid.Hour(span)
				for start := to - to%n - 2*n; start <= to; start += n {
					at := (start + n - 1).End().Add(c.settings.After)
					if at.After(last.at) && !at.After(now) && !last.at.IsZero() && from > start {
						t.Fatalf("%s: %s: scanned from %s, a span of %d h from %s is due since %s", now, res, from, span, start, at)
					}
				}
			}
			if full {
				fulls[res]++
				longest := timegrid.Hour(spans[len(spans)-1])
				if want := timegrid.HourOf(now.UnixMilli()) - 3*longest; from > want {
					t.Fatalf("%s: a full scan from %s, not %s", res, from, want)
				}
			}
			c.scanned(res, now, full, scan{groups: groups})
		}
	}
	total := 0
	for _, res := range timegrid.Resolutions() {
		t.Logf("%s: %.1f LISTs a day, %d full scans in %d days", res, float64(lists[res])/days, fulls[res], days)
		total += lists[res]
	}
	if a := float64(total) / days; a > 300 {
		t.Errorf("%.0f LISTs a day", a)
	}
	if fulls[timegrid.OneHour] < 12 || fulls[timegrid.Raw] < 6*days {
		t.Errorf("full scans: %v", fulls)
	}
}

// TestWhatIsScannedInFull: what is left over, and a group that was another worker's, need a full scan; nothing is scanned
// before its time, or by a worker that owns no group.
func TestWhatIsScannedInFull(t *testing.T) {
	c := reaching(t)
	now := time.Date(2026, 3, 1, 12, 5, 0, 0, time.UTC)
	own := map[shard.ID]uint64{0: 1}
	if _, _, ok := c.reach(timegrid.Raw, nil, now); ok {
		t.Error("without a group")
	}
	for _, one := range []struct {
		what        string
		last        scan
		after       time.Duration
		groups      map[shard.ID]uint64
		ok, full    bool
		hoursAtMost timegrid.Hour
	}{
		{"at the start", scan{}, 0, own, true, true, 80},
		{"too soon", scan{groups: own, left: true}, 10 * time.Minute, own, false, false, 0},
		{"nothing is due", scan{groups: own}, 20 * time.Minute, own, false, false, 0},
		{"two hours are due", scan{groups: own}, 65 * time.Minute, own, true, false, 6},
		{"something is left", scan{groups: own, left: true}, 20 * time.Minute, own, true, true, 80},
		{"another fence", scan{groups: own}, 20 * time.Minute, map[shard.ID]uint64{0: 2}, false, false, 0},
		{"a group more", scan{groups: own}, 20 * time.Minute, map[shard.ID]uint64{0: 1, 32: 1}, true, true, 80},
	} {
		if one.what != "at the start" {
			c.scanned(timegrid.Raw, now, true, one.last)
		}
		at := now.Add(one.after)
		from, full, ok := c.reach(timegrid.Raw, one.groups, at)
		if ok != one.ok || full != one.full || ok && timegrid.HourOf(at.UnixMilli())-from > one.hoursAtMost {
			t.Errorf("%s: from %s, full %t, %t", one.what, from, full, ok)
		}
	}
}

// scanning owns shard 0 of a store that counts requests, and has a clock that stands still.
func scanning(t *testing.T) (*Compaction, *storetest.Counter) {
	t.Helper()
	c, store := reaching(t), storetest.Count(mem.New(time.Now))
	m := metrics.New(prometheus.NewRegistry())
	c.CompactionDeps = CompactionDeps{Store: store, Board: status.NewBoard(m, 1), Log: slog.New(slog.DiscardHandler), AuthorityID: "test"}
	c.Now = func() time.Time { return time.Date(2026, 3, 1, 12, 5, 0, 0, time.UTC) }
	c.scanners, c.released = map[timegrid.Resolution]*compact.Scanner{}, map[timegrid.Resolution]map[catalog.Name]bool{}
	c.Board.Enter(status.Of(0, 1, 0, nil))
	return c, store
}

// TestUnreadableRecordsAreScannedAgain: an hour that could not be read for a moment does not wait for the next full scan.
func TestUnreadableRecordsAreScannedAgain(t *testing.T) {
	c, store := scanning(t)
	n := catalog.Name{Hour: timegrid.HourOf(c.Now().UnixMilli()) - 20, Resolution: timegrid.Raw, Generation: 1}
	if _, err := store.Create(t.Context(), n.Key(), []byte("{"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Compact(t.Context()); err != nil || !c.scans[timegrid.Raw].left || c.scans[timegrid.OneMinute].left {
		t.Errorf("%v, %v: only what raw has is left over", err, c.scans)
	}
}

// TestRecordsBehindTheScansAreForgotten: what a worker remembers is bounded by how far its scans go back.
func TestRecordsBehindTheScansAreForgotten(t *testing.T) {
	c, store := scanning(t)
	now := time.Date(2026, 3, 1, 12, 5, 0, 0, time.UTC)
	c.Now = func() time.Time { return now }
	n := catalog.Name{Hour: timegrid.HourOf(now.UnixMilli()) - 20, Resolution: timegrid.Raw, Generation: 1}
	r := catalog.Record{Aborted: &catalog.Aborted{AuthorityID: "test", Name: n, Reason: "test", WorkerID: "w"}}
	if _, err := store.Create(t.Context(), n.Key(), r.Marshal(), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	reads := func() int { return store.Of("get", n.Key()) }
	scan := func() {
		t.Helper()
		if err := c.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	again := func() {
		t.Helper()
		if _, err := c.scanners[timegrid.Raw].Scan(t.Context(), timegrid.Raw, n.Hour, n.Hour, func(shard.ID) bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	if scan(); reads() != 1 {
		t.Fatalf("%v: the record is not read by the first scan", store.All())
	}
	if again(); reads() != 1 {
		t.Fatalf("%d reads of a record that is remembered", reads())
	}
	now = now.Add(10 * 24 * time.Hour)
	scan()
	if again(); reads() != 2 {
		t.Errorf("%d reads: a record behind the scans is still remembered", reads())
	}
}
