package send

import (
	"time"
)

// Status is the state of the sender at one time.
type Status struct {
	Collectors      []CollectorStatus `json:"collectors"`
	InFlight        int               `json:"in_flight"`
	AuthorityID     string            `json:"authority_id,omitempty"`
	Retrying        bool              `json:"retrying"`
	LastRetryReason string            `json:"last_retry_reason,omitempty"`
	LastAccepted    *time.Time        `json:"last_accepted_at,omitempty"`
	Drain           *DrainStatus      `json:"drain,omitempty"`
	LastErrors      []ErrorStatus     `json:"last_errors,omitempty"`
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
	Connected   bool       `json:"connected"`
	State       State      `json:"state"`
	Fault       Fault      `json:"fault,omitempty"`
	CollectorID string     `json:"collector_id,omitempty"`
	Since       *time.Time `json:"since,omitempty"`
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`
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
	st.Collectors = append([]CollectorStatus(nil), s.status.Collectors...)
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

func (s *Sender) noteConnected(i int, collectorID string) {
	now := s.now()
	s.stopping.opened = true
	address := s.targets[i].address
	s.metrics.connected.WithLabelValues(address).Set(1)
	s.metrics.sessions.WithLabelValues(address).Inc()
	s.update(func(st *Status) {
		c := &st.Collectors[i]
		*c = CollectorStatus{Address: address, Connected: true, State: Connected, CollectorID: collectorID, Since: &now}
		st.DisconnectedSince = nil
	})
	s.log.Info("connected", "collector", address, "collector_id", collectorID)
}

// noteDisconnected notes the end of a session, with err and fault when it failed. failed is false
// when the agent stops or another boot is next.
func (s *Sender) noteDisconnected(i int, err error, failed bool, fault Fault) {
	now, address := s.now(), s.targets[i].address
	s.metrics.connected.WithLabelValues(address).Set(0)
	s.metrics.inFlight.Set(0)
	s.update(func(st *Status) {
		c := &st.Collectors[i]
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
	s.metrics.errors.WithLabelValues(address).Inc()
	s.noteError("collector " + address + ": " + err.Error())
	s.log.Warn("stream ended", "collector", address, "error", err, "fault", fault, "pending", s.queue.Stats().Pending)
}
