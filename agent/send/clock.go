package send

import "time"

// noteClock compares this clock with the collector's. The collector accepted the batch at accepted,
// Unix nanoseconds of its clock; 0 is unknown. If both clocks agree, that is between sent and now.
// The distance to that interval is the least by which the clocks differ.
func (s *Sender) noteClock(sent time.Time, accepted int64) {
	if accepted == 0 {
		return
	}
	at, now, offset := time.Unix(0, accepted), s.now(), time.Duration(0)
	switch {
	case at.After(now):
		offset = at.Sub(now)
	case at.Before(sent):
		offset = at.Sub(sent)
	}
	s.metrics.clockOffset.Set(offset.Seconds())
	s.update(func(st *Status) { st.ClockOffsetSeconds = offset.Seconds() })
}
