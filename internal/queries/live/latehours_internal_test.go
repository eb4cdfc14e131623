package live

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestLateHoursAreForgotten: the hours of late batches are as many as those that are late now.
func TestLateHoursAreForgotten(t *testing.T) {
	all, one, other := lateHours{}, &batch{hours: []timegrid.Hour{3, 4}}, &batch{hours: []timegrid.Hour{4}}
	all.add(one)
	all.add(other)
	all.remove(one)
	if len(all) != 1 || len(all[4]) != 1 {
		t.Errorf("%v", all)
	}
	all.remove(other)
	if len(all) != 0 {
		t.Errorf("%v", all)
	}
}
