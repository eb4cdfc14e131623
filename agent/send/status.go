package send

import (
	"time"
)

// Status is the state of the sender at one time.
type Status struct {
	// Collectors are the preferred ones, then those of the fallback.
	Collectors []CollectorStatus `json:"collectors"`
	// List is that of the collector in use, or of the last one, and ListSince when it became so.
	List      List      `json:"list"`
	ListSince time.Time `json:"list_since"`
	// Return is how far going back to the preferred list is; absent while that is in use.
	Return          *ReturnStatus `json:"return,omitempty"`
	InFlight        int           `json:"in_flight"`
	AuthorityID     string        `json:"authority_id,omitempty"`
	Retrying        bool          `json:"retrying"`
	LastRetryReason string        `json:"last_retry_reason,omitempty"`
	LastAccepted    *time.Time    `json:"last_accepted_at,omitempty"`
	Drain           *DrainStatus  `json:"drain,omitempty"`
	LastErrors      []ErrorStatus `json:"last_errors,omitempty"`
	// DisconnectedSince is when the last stream ended, or the sender began; absent while one is open.
	DisconnectedSince *time.Time `json:"disconnected_since,omitempty"`
	// ClockOffsetSeconds is how far the collectors' clock is ahead of this machine's, by the
	// times of the last accepted batch; below 0 it is behind. 0 when they can be the same.
	ClockOffsetSeconds float64 `json:"clock_offset_seconds"`
}

// State of a collector.
type State string

// States of a collector.
const (
	Connected State = "connected"
	// Standby: not in use; the last attempt to use it did not fail.
	Standby State = "standby"
	// Failing: the last attempt to use it failed.
	Failing State = "failing"
)

// CollectorStatus is one collector as this agent sees it.
type CollectorStatus struct {
	Address     string     `json:"address"`
	List        List       `json:"list"`
	Connected   bool       `json:"connected"`
	State       State      `json:"state"`
	Fault       Fault      `json:"fault,omitempty"`
	CollectorID string     `json:"collector_id,omitempty"`
	Since       *time.Time `json:"since,omitempty"`
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`
}

// ReturnStatus is how far going back is.
type ReturnStatus struct {
	// SteadySince is since when a preferred collector welcomes this agent each time that it is asked; absent while none does.
	SteadySince *time.Time `json:"steady_since,omitempty"`
	// TryAt is when a batch is tried there if that goes on.
	TryAt *time.Time `json:"try_at,omitempty"`
}

// DrainStatus is the work on a backlog.
type DrainStatus struct {
	Since            time.Time `json:"since"`
	RemainingBatches int       `json:"remaining_batches"`
	RemainingBytes   int64     `json:"remaining_bytes"`
	Done             int       `json:"done_batches"`
}

// ErrorStatus is an error that may interest an operator.
type ErrorStatus struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// keptErrors bounds LastErrors.
const keptErrors = 20

// Status of now.
func (s *Sender) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Collectors = nil
	for _, l := range []*targets{&s.preferred, &s.fallback} {
		for _, t := range l.all {
			st.Collectors = append(st.Collectors, t.status)
		}
	}
	st.LastErrors = append([]ErrorStatus(nil), s.status.LastErrors...)
	return st
}

func (s *Sender) update(fn func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(&s.status)
}

func (s *Sender) noteError(text string) {
	now := s.now()
	s.update(func(st *Status) {
		st.LastErrors = append(st.LastErrors, ErrorStatus{At: now, Text: text})
		if n := len(st.LastErrors); n > keptErrors {
			st.LastErrors = append([]ErrorStatus(nil), st.LastErrors[n-keptErrors:]...)
		}
	})
}

func (s *Sender) noteConnected(t *target, collectorID string) {
	now := s.now()
	s.stopping.opened = true
	s.metrics.connected.WithLabelValues(t.address).Set(1)
	s.metrics.sessions.WithLabelValues(t.address).Inc()
	s.update(func(st *Status) {
		t.status = CollectorStatus{Address: t.address, List: t.list, Connected: true, State: Connected, CollectorID: collectorID, Since: &now}
		st.DisconnectedSince = nil
	})
	s.log.Info("connected", "collector", t.address, "collector_id", collectorID, "list", t.list)
	// A welcome of a preferred collector is no answer yet: one that accepts nothing welcomes senders, too.
	if t.list == Fallback || s.returning {
		s.noteList(t.list)
	}
}

// noteList notes that a collector of the list is used.
func (s *Sender) noteList(list List) {
	now := s.now()
	if list == Preferred {
		s.returning = false
		s.preferred.clearFailed()
		s.prefer.answered()
	}
	if list == s.prefer.list() {
		return
	}
	if list == Fallback {
		s.prefer.leave(now)
		s.log.Warn("no preferred collector gives answers: the fallback is used")
		s.noteError("no preferred collector gives answers: the fallback is used")
	} else {
		s.prefer.arrive(now)
		s.log.Info("preferred collectors are used again")
	}
	s.metrics.moves.WithLabelValues(string(list)).Inc()
	s.publishList()
}

// publishList has the status say which list is used.
func (s *Sender) publishList() {
	s.update(func(st *Status) {
		if list := s.prefer.list(); list != st.List {
			st.List, st.ListSince = list, s.now()
		}
	})
	s.publishReturn()
}

// publishReturn has the status say how far going back is.
func (s *Sender) publishReturn() {
	var r *ReturnStatus
	if s.prefer.list() == Fallback {
		r = &ReturnStatus{}
		if at, until := s.prefer.steady, s.prefer.steadyUntil; s.prefer.isSteady() {
			r.SteadySince, r.TryAt = &at, &until
		}
	}
	s.update(func(st *Status) { st.Return = r })
}

// onFallback is for how many seconds the fallback is used.
func (s *Sender) onFallback() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.List != Fallback {
		return 0
	}
	return max(0, s.now().Sub(s.status.ListSince).Seconds())
}

// noteDisconnected notes the end of a session, with err and fault when it failed. failed is false
// when the agent stops, another boot is next, or another collector is used.
func (s *Sender) noteDisconnected(t *target, err error, failed bool, fault Fault) {
	now := s.now()
	s.metrics.connected.WithLabelValues(t.address).Set(0)
	s.metrics.inFlight.Set(0)
	s.update(func(st *Status) {
		c := &t.status
		c.Connected, c.Since, st.InFlight = false, nil, 0
		if st.DisconnectedSince == nil {
			st.DisconnectedSince = &now
		}
		switch {
		case failed:
			c.State, c.Fault, c.LastError, c.LastErrorAt = Failing, fault, err.Error(), &now
		case c.State == Connected:
			c.State = Standby
		}
	})
	if !failed {
		return
	}
	s.metrics.errors.WithLabelValues(t.address).Inc()
	s.noteError("collector " + t.address + ": " + err.Error())
	s.log.Warn("stream ended", "collector", t.address, "error", err, "fault", fault, "pending", s.queue.Stats().Pending)
}
