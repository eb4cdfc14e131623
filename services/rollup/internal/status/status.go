// Package status is where a worker's shards stand: for operators, for its metrics, and for
// the decisions that need to know of all shards at once.
package status

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
)

// Shard is what a worker says of a shard that it owns.
type Shard struct {
	Shard string `json:"shard"`
	Fence uint64 `json:"fence"`
	// PendingBatches are not covered by blocks, PendingHours what they lie in: the first MaxHours.
	PendingBatches int      `json:"pending_batches"`
	PendingHours   []string `json:"pending_hours"`
	// Unreadable are pending batches whose frames can't be read, Failing those of hours that
	// fail for good, Evicted those that were forgotten to make room, until the journal is read again.
	Unreadable int `json:"unreadable"`
	Failing    int `json:"failing"`
	Evicted    int `json:"evicted"`
	// DeferredBatches can't be taken now. Behind: something may be accepted that the owner does not know of yet.
	DeferredBatches int  `json:"deferred_batches"`
	Behind          bool `json:"behind"`
	// JournalHead and JournalRuns are how far the journal was read for plans that are made now: the number of its head, and in
	// how many runs. Both are 0 where plans say nothing of that.
	JournalHead uint64 `json:"journal_head"`
	JournalRuns int    `json:"journal_runs"`
	// SetAside are pending batches of agents that are set aside for an hour of theirs, AgentHours
	// is the number of those hours.
	SetAside   int `json:"set_aside"`
	AgentHours int `json:"agent_hours_set_aside"`

	id  shard.ID
	lag time.Duration
}

// MaxHours of one shard that its status names.
const MaxHours = 100

// Of makes the status of a shard, whose numbers the caller fills in. lag is the time since the
// end of its oldest pending hour.
func Of(id shard.ID, fence uint64, lag time.Duration, hours []string) Shard {
	slices.Sort(hours)
	return Shard{Shard: id.String(), Fence: fence, id: id, lag: max(lag, 0), PendingHours: append([]string{}, hours[:min(len(hours), MaxHours)]...)}
}

// Board has the status of every shard that the worker owns. It is safe for concurrent use.
type Board struct {
	m *metrics.Metrics
	// maxPending is the bound of pending batches of all shards together.
	maxPending int

	mu sync.Mutex
	of map[shard.ID]Shard
}

// NewBoard has no shards.
func NewBoard(m *metrics.Metrics, maxPending int) *Board {
	return &Board{m: m, maxPending: maxPending, of: map[shard.ID]Shard{}}
}

// Enter begins with a shard.
func (b *Board) Enter(s Shard) {
	b.m.Shards.Inc()
	b.Note(s)
}

// Leave ends with a shard.
func (b *Board) Leave(id shard.ID) {
	b.m.Shards.Dec()
	b.m.ForgetShard(id)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.of, id)
}

// Note shows where a shard stands.
func (b *Board) Note(s Shard) {
	for why, n := range map[string]int{"unreadable": s.Unreadable, "failing": s.Failing, "evicted": s.Evicted, "deferred": s.DeferredBatches, "set_aside": s.SetAside} {
		b.m.Deferred.WithLabelValues(s.Shard, why).Set(float64(n))
	}
	b.m.AgentHours.WithLabelValues(s.Shard).Set(float64(s.AgentHours))
	b.m.Pending.WithLabelValues(s.Shard).Set(float64(s.PendingBatches))
	b.m.Lag.WithLabelValues(s.Shard).Set(s.lag.Seconds())
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of[s.id] = s
}

// Shards in their order.
func (b *Board) Shards() []Shard {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Shard, 0, len(b.of))
	for _, s := range b.of {
		out = append(out, s)
	}
	slices.SortFunc(out, func(x, y Shard) int { return cmp.Compare(x.id, y.id) })
	return out
}

// Owns reports whether the shard is this worker's now.
func (b *Board) Owns(id shard.ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.of[id]
	return ok
}

// Fences of the shards that are this worker's now.
func (b *Board) Fences() map[shard.ID]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[shard.ID]uint64, len(b.of))
	for id, s := range b.of {
		out[id] = s.Fence
	}
	return out
}

// Room is how many more batches a shard with so many pending ones may remember: while all shards of the worker together
// have room, and up to its share of the bound in any case, so that no shard waits for ever behind others.
func (b *Board) Room(id shard.ID, pending int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The caller's own number is newer than the one on the board.
	all := pending
	for other, s := range b.of {
		if other != id {
			all += s.PendingBatches
		}
	}
	return max(b.maxPending-all, b.maxPending/max(1, len(b.of))-pending, 0)
}
