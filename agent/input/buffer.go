package input

import "sync/atomic"

// Buffer is the Offer side of a Sink: a bounded channel to the batcher that drops the
// newest batch when it is full.
type Buffer struct {
	c       chan Batch
	drop    func(samples int)
	dropped atomic.Uint64
}

// NewBuffer holds up to size batches; drop is called with the number of samples of each
// batch that is refused.
func NewBuffer(size int, drop func(samples int)) *Buffer {
	return &Buffer{c: make(chan Batch, size), drop: drop}
}

// Offer implements Sink.
func (b *Buffer) Offer(batch Batch) bool {
	if len(batch.Samples) == 0 {
		return true
	}
	select {
	case b.c <- batch:
		return true
	default:
		b.dropped.Add(uint64(len(batch.Samples)))
		b.drop(len(batch.Samples))
		return false
	}
}

// C is the receiving end.
func (b *Buffer) C() <-chan Batch { return b.c }

// TakeDropped gives the number of samples dropped since the last call. The batcher skips as many
// sequence numbers, so that the loss is a gap in the agent's ledger.
func (b *Buffer) TakeDropped() uint64 { return b.dropped.Swap(0) }
