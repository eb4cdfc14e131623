package tsbs

import (
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Fill adds samples from up to from+rows of every series of the host to an empty
// Builder: the labels that all series share as the resource, gauges, nanoseconds.
func (h *Host) Fill(b *frame.Builder, from, rows int) error {
	shared := map[Label]int{}
	for i := range h.Series {
		for _, l := range h.Series[i].Labels {
			shared[l]++
		}
	}
	var resource, own []series.Label
	for _, l := range h.Series[0].Labels {
		if shared[l] == len(h.Series) {
			resource = append(resource, series.Label(l))
		}
	}
	if err := b.SetResource(resource...); err != nil {
		return err
	}
	for i := range h.Series {
		s := &h.Series[i]
		own = own[:0]
		for _, l := range s.Labels {
			if shared[l] < len(h.Series) {
				own = append(own, series.Label(l))
			}
		}
		id, err := b.AddSeries(own, series.Gauge, "", 0)
		if err != nil {
			return err
		}
		for k := from; k < from+rows; k++ {
			if err := b.Append(id, s.Timestamps[k]*1e6, s.Values[k]); err != nil {
				return err
			}
		}
	}
	return nil
}
