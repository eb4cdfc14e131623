package promapi

import "lightmetrics.dev/lightmetrics/services/query/internal/answer"

// head is the begin of every answer that succeeded.
const head = `{"status":"success","data":`

// body is an answer in the making. Its memory is part of limits.memory until it is sent,
// also while a client is slow to read it. Release it.
type body struct {
	b    []byte
	held int64
	r    *answer.Reservation
}

func (a *API) body() *body {
	return &body{b: append(make([]byte, 0, 1024), head...), r: a.eval.Reserve()}
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

func (o *body) release() { o.r.Release() }
