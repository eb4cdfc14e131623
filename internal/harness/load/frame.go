// Package load drives a cluster as a fleet of careful senders would, with duplicates
// and conflicts on purpose, remembers every answer, and checks a cluster against what it remembers.
package load

import (
	"time"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// RowStep is the time between two rows of a frame: small, so that hours of sending do not reach into the future.
const RowStep = 20 * time.Millisecond

// Frame makes a frame of 2*rows records from seq on, of two series of the metric;
// their values are value, value+1, … and their times start, start+RowStep, ….
func Frame(boot identity.Boot, metric string, seq uint64, rows int, start time.Time, value float64) ([]byte, error) {
	b := frame.NewBuilder()
	for _, part := range []string{"a", "b"} {
		id, err := b.AddSeries([]series.Label{
			{Name: "__name__", Value: metric}, {Name: "host", Value: boot.Agent}, {Name: "part", Value: part},
		}, series.Gauge, "", 0)
		if err != nil {
			return nil, err
		}
		for r := range rows {
			if err := b.Append(id, start.Add(time.Duration(r)*RowStep).UnixNano(), value); err != nil {
				return nil, err
			}
			value++
		}
	}
	batch, err := b.Build(boot, seq)
	if err != nil {
		return nil, err
	}
	return frame.Encode(nil, batch)
}
