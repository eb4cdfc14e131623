package send

import "time"

// progress logs the work on a backlog. Owned by the sender's loop.
type progress struct {
	since, logged time.Time
	done          int
}

// backlog is the number of pending batches from which draining them is reported.
const backlog = 10

// logProgress is called after each answer and at intervals while a stream is open.
func (s *Sender) logProgress(answered int) {
	p, now, st := &s.progress, s.now(), s.queue.Stats()
	switch {
	case p.since.IsZero() && st.Pending >= backlog:
		*p = progress{since: now, logged: now}
		s.log.Info("draining a backlog", "remaining_batches", st.Pending, "remaining_bytes", st.PendingBytes)
	case p.since.IsZero():
		return
	}
	p.done += answered
	if st.Pending == 0 {
		s.log.Info("backlog is drained", "batches", p.done, "took", now.Sub(p.since).Round(time.Millisecond))
		*p = progress{}
		s.update(func(s *Status) { s.Drain = nil })
		return
	}
	if now.Sub(p.logged) >= s.cfg.ProgressInterval {
		p.logged = now
		s.log.Info("draining a backlog", "remaining_batches", st.Pending, "remaining_bytes", st.PendingBytes,
			"done_batches", p.done, "since", now.Sub(p.since).Round(time.Second))
	}
	d := DrainStatus{Since: p.since, RemainingBatches: st.Pending, RemainingBytes: st.PendingBytes, Done: p.done}
	s.update(func(s *Status) { s.Drain = &d })
}
