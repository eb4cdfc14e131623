package layout

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Days are those of the starts of hours, also before 1970.
func TestDays(t *testing.T) {
	for at, want := range map[string]string{
		"2026-11-21T00:00:00Z": "rollup/v1/copies/date=2026-11-21.lmcopies", "2026-11-21T23:00:00Z": "rollup/v1/copies/date=2026-11-21.lmcopies",
		"2026-11-22T00:00:00Z": "rollup/v1/copies/date=2026-11-22.lmcopies", "1969-12-31T23:00:00Z": "rollup/v1/copies/date=1969-12-31.lmcopies",
	} {
		at, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		h := timegrid.HourStarting(at)
		d := DayOf(h)
		if got := RollupCopies(d); got != want || h < d.First() || h > d.Last() || DayOf(d.First()-1) != d-1 || DayOf(d.Last()+1) != d+1 {
			t.Errorf("%s: %s, want %s; %s to %s", at, got, want, d.First(), d.Last())
		}
	}
}
