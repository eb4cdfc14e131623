package promapi

import (
	"io"
	"sync"

	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
)

// head is the begin of every answer that succeeded.
const head = `{"status":"success","data":`

// body is an answer in the making. Its memory is part of limits.memory until it is sent,
// also while a client is slow to read it. Release it.
type body struct {
	b    []byte   // the last piece, which grows
	full [][]byte // those before it
	held int64
	size int64 // of the memory of the full ones
	r    *answer.Reservation
	// written: a write of it has begun and did not succeed. What it wrote may then still be read, so it is not used again.
	written bool
}

const (
	// pieceBytes is how long a piece gets until the next one begins: a long answer is never copied to make room for more of
	// it.
	pieceBytes = 64 << 10
	// keptPiece is the largest piece whose memory later answers use.
	keptPiece = 2 * pieceBytes
)

// pieces are the memory of answers that were sent. Growing each from nothing would leave more garbage than the reading of
// its samples does.
var pieces = sync.Pool{New: func() any { return &piece{make([]byte, 0, pieceBytes+pieceBytes/4)} }}

type piece struct{ b []byte }

func (a *API) body() *body {
	return &body{b: append(newPiece(), head...), r: a.eval.Reserve()}
}

func newPiece() []byte { return pieces.Get().(*piece).b[:0] }

func (o *body) freePiece(b []byte) {
	if cap(b) <= keptPiece && !o.written {
		pieces.Put(&piece{b})
	}
}

// restart begins again.
func (o *body) restart() {
	o.free()
	o.b = append(o.b[:0], head...)
}

func (o *body) free() {
	for _, b := range o.full {
		o.freePiece(b)
	}
	o.full, o.size = nil, 0
}

// grown reserves what the answer takes by now. To be called between elements.
func (o *body) grown() error {
	if len(o.b) >= pieceBytes {
		o.full, o.size = append(o.full, o.b), o.size+int64(cap(o.b))
		o.b = newPiece()
	}
	// The capacity and not the length: it is allocated already.
	more := o.size + int64(cap(o.b)) - o.held
	if more <= 0 {
		return nil
	}
	if err := o.r.Grow(more); err != nil {
		return err
	}
	o.held += more
	return nil
}

func (o *body) len() int {
	n := len(o.b)
	for _, b := range o.full {
		n += len(b)
	}
	return n
}

// WriteTo writes the answer. A Write of HTTP/2 that fails, as the client went away or is slow, may return while its bytes are
// still on their way to the connection.
func (o *body) WriteTo(w io.Writer) (n int64, err error) {
	o.written = true // also after a panic
	for _, b := range append(o.full, o.b) {
		k, err := w.Write(b)
		if n += int64(k); err != nil {
			return n, err
		}
	}
	o.written = false
	return n, nil
}

// release gives the memory back: nothing of the answer may be in use any more.
func (o *body) release() {
	o.r.Release()
	o.free()
	o.freePiece(o.b)
	o.b = nil
}
