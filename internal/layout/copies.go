package layout

import (
	"time"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Day is a day of hours by their starts, UTC, counted from 1970.
type Day int64

const hoursOfDay = 24

// DayOf is the day in which the hour starts.
func DayOf(h timegrid.Hour) Day {
	d := Day(h / hoursOfDay)
	if h%hoursOfDay < 0 {
		d--
	}
	return d
}

// First is the day's first hour.
func (d Day) First() timegrid.Hour { return timegrid.Hour(d) * hoursOfDay }

// Last is the day's last hour.
func (d Day) Last() timegrid.Hour { return d.First() + hoursOfDay - 1 }

func (d Day) String() string { return d.First().Start().Format(time.DateOnly) }

// RollupCopies is the key of the copies of the records of a day's blocks.
func RollupCopies(d Day) string { return RollupPrefix + "copies/date=" + d.String() + ".lmcopies" }
