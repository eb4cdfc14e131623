package promapi

import (
	"sync"

	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
)

// head is the begin of every answer that succeeded.
const head = `{"status":"success","data":`

// body is an answer in the making. Its memory is part of limits.memory until it is sent,
// also while a client is slow to read it. Release it.
type body struct {
	b    []byte
	held int64
	r    *answer.Reservation
}

// keptBody is the largest answer whose memory the next ones use: those that panels ask for again and again.
const keptBody = 1 << 20

// bodies are the memory of answers that were sent. Growing an answer from nothing would leave more garbage than reading its
// samples.
var bodies = sync.Pool{New: func() any { return &body{b: make([]byte, 0, 1024)} }}

func (a *API) body() *body {
	o := bodies.Get().(*body)
	o.b, o.held, o.r = append(o.b[:0], head...), 0, a.eval.Reserve()
	return o
}

// restart begins again.
func (o *body) restart() { o.b = o.b[:len(head)] }

// grown reserves what b takes by now. To be called between elements.
func (o *body) grown() error {
	// The capacity and not the length: append has allocated it already.
	more := int64(cap(o.b)) - o.held
	if more <= 0 {
		return nil
	}
	if err := o.r.Grow(more); err != nil {
		return err
	}
	o.held += more
	return nil
}

// release gives the memory back: nothing of the answer may be in use any more.
func (o *body) release() {
	o.r.Release()
	if o.r = nil; cap(o.b) <= keptBody {
		bodies.Put(o)
	}
}
