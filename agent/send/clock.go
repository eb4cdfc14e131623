package send

import "time"

// noteClock compares the clocks: the collector accepted the batch at accepted, Unix nanoseconds
// of its own clock, which lies between sent and now if both clocks are right. What it
// lies outside of them is the least by which they differ. 0 is no time.
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
