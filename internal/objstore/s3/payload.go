package s3

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

var errDetached = errors.New("s3: the answer came before the body was sent")

// payload is the body of one request. The transport may continue to read a body after it has
// returned an answer or an error. detach ends that, so that the caller may reuse its bytes.
type payload struct {
	mu   sync.Mutex
	data []byte
}

func (p *payload) attach(req *http.Request) {
	req.ContentLength = int64(len(p.data))
	if len(p.data) == 0 {
		req.Body = http.NoBody
		return
	}
	// Taken now: detach may drop the bytes before GetBody is called.
	size := len(p.data)
	req.Body = &payloadReader{p: p, left: size}
	// The transport needs it to send a body again on a new connection, which it does only when no byte was
	// written on the old one.
	req.GetBody = func() (io.ReadCloser, error) { return &payloadReader{p: p, left: size}, nil }
}

func (p *payload) detach() {
	p.mu.Lock()
	p.data = nil
	p.mu.Unlock()
}

type payloadReader struct {
	p    *payload
	left int
}

func (r *payloadReader) Read(b []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF // also after a detach: the transport reads once more at the end of a body
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.p.data == nil {
		return 0, errDetached
	}
	n := copy(b, r.p.data[len(r.p.data)-r.left:])
	r.left -= n
	return n, nil
}

// Close has nothing to do.
func (r *payloadReader) Close() error { return nil }
