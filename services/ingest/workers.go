package ingest

import "sync/atomic"

// mostIdleWorkers bounds the goroutines that wait for a batch; each has a stack of some 16 KiB.
const mostIdleWorkers = 128

// workers decide the batches of streams, each on a goroutine of its own. A goroutine that is done waits for
// another batch: a new one would first grow its stack, by copies, to the size that a decision needs.
type workers struct {
	decide func(streamBatch)
	next   chan streamBatch
	end    <-chan struct{} // nobody waits any longer
	idle   atomic.Int64
}

// streamBatch is an admitted frame of a stream.
type streamBatch struct {
	stream *stream
	frame  []byte
}

func newWorkers(end <-chan struct{}) *workers {
	return &workers{decide: func(b streamBatch) { b.stream.batch(b.frame) }, next: make(chan streamBatch), end: end}
}

// start begins to decide a frame. It does not wait.
func (w *workers) start(st *stream, frame []byte) {
	b := streamBatch{st, frame}
	select {
	case w.next <- b:
	default:
		go w.run(b)
	}
}

// run decides one batch after the other, until enough others wait for more.
func (w *workers) run(b streamBatch) {
	for {
		w.decide(b)
		b = streamBatch{} // a goroutine that waits keeps no stream
		if w.idle.Add(1) > mostIdleWorkers {
			w.idle.Add(-1)
			return
		}
		select {
		case b = <-w.next:
			w.idle.Add(-1)
		case <-w.end:
			return
		}
	}
}
