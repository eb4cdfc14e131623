package agent

import (
	"time"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
)

// Status is what /status answers.
type Status struct {
	Boot    BootStatus    `json:"boot"`
	Started time.Time     `json:"started_at"`
	Queue   QueueStatus   `json:"queue"`
	Sender  send.Status   `json:"sender"`
	Inputs  []InputStatus `json:"inputs"`
	// Parked batches wait for an operator. Both lists have at most maxListed entries, oldest first.
	Parked      []queue.HeldBatch `json:"parked"`
	DeadLetters []queue.HeldBatch `json:"dead_letters"`
	// Alerts are for people, and for the exit status of "lmctl agent status".
	Alerts []Alert `json:"alerts"`
}

// BootStatus is the current boot.
type BootStatus struct {
	AgentID string `json:"agent_id"`
	BootID  string `json:"boot_id"`
	SpoolID string `json:"spool_id"`
	NextSeq uint64 `json:"next_seq"`
}

// QueueStatus is the queue in numbers.
type QueueStatus struct {
	Pending          int     `json:"pending_batches"`
	PendingBytes     int64   `json:"pending_bytes"`
	Parked           int     `json:"parked_batches"`
	Dead             int     `json:"dead_batches"`
	DiskBytes        int64   `json:"disk_bytes"`
	MaxBytes         int64   `json:"max_bytes"`
	Policy           string  `json:"policy"`
	OldestPending    string  `json:"oldest_pending,omitempty"`
	OldestAgeSeconds float64 `json:"oldest_pending_age_seconds"`
	// SkippedRecords were dropped because they could not be queued; their numbers are a gap.
	SkippedRecords uint64 `json:"skipped_records"`
	// Refusing: the last batch was dropped so.
	Refusing bool `json:"refusing"`
}

// maxListed bounds the lists of a status.
const maxListed = 100

func (a *Agent) bootStatus() BootStatus {
	b, spool, next := a.queue.Boot()
	return BootStatus{AgentID: b.Agent, BootID: b.Boot, SpoolID: spool, NextSeq: next}
}

// Status of now.
func (a *Agent) Status() Status {
	st := a.queue.Stats()
	s := Status{
		Boot: a.bootStatus(), Started: a.started, Sender: a.sender.Status(),
		Queue: QueueStatus{Pending: st.Pending, PendingBytes: st.PendingBytes, Parked: st.Parked, Dead: st.Dead,
			DiskBytes: st.DiskBytes, MaxBytes: st.MaxBytes, Policy: a.cfg.Queue.Policy,
			SkippedRecords: st.Skipped, Refusing: st.Refusing},
		Parked: a.Conflicts(), DeadLetters: a.DeadLetters(),
	}
	if st.Oldest != nil {
		s.Queue.OldestPending = st.Oldest.Identity.String()
		s.Queue.OldestAgeSeconds = max(0, a.now().Sub(st.Oldest.Created).Seconds())
	}
	s.Inputs = a.sources.status()
	s.Alerts = append([]Alert{}, a.alerts(s, a.now())...)
	return s
}

func listed(list []queue.HeldBatch) []queue.HeldBatch {
	if len(list) == 0 {
		return []queue.HeldBatch{}
	}
	return list[:min(len(list), maxListed)]
}

// Conflicts lists the parked batches.
func (a *Agent) Conflicts() []queue.HeldBatch { return listed(a.queue.HeldBatches(queue.Parked)) }

// ResolveAcceptExisting drops a parked batch, so that only the batch that was accepted remains.
func (a *Agent) ResolveAcceptExisting(id string) error { return a.queue.RemoveHeld(queue.Parked, id) }

// DeadLetters lists the rejected batches.
func (a *Agent) DeadLetters() []queue.HeldBatch { return listed(a.queue.HeldBatches(queue.Dead)) }

// Requeue sends a rejected batch again, with its bytes and its identity.
func (a *Agent) Requeue(id string) error {
	_, err := a.queue.Requeue(id)
	return err
}

// DropDeadLetter deletes a rejected batch.
func (a *Agent) DropDeadLetter(id string) error { return a.queue.RemoveHeld(queue.Dead, id) }
