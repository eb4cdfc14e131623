package http1

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"
)

// body is the body of a request.
type body struct {
	c           *conn
	left        int64     // bytes that are due; -1: until the last chunk
	chunks      io.Reader // of a chunked body, from ahead
	ahead       *bufio.Reader
	continueDue bool // the client waits for 100 Continue
	closed      bool
}

func (b *body) begin(c *conn, length int64) { *b = body{c: c, left: length} }

// beginChunked begins a body in chunks. Its connection is not used again, so what is read ahead of its end is not lost
// to another request.
func (b *body) beginChunked(c *conn) {
	*b = body{c: c, left: -1}
	b.ahead = bufio.NewReader(readerFunc(c.read))
	b.chunks = httputil.NewChunkedReader(b.ahead)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// unread reports whether some of the body was not read. Of a chunked one that may be its last line break.
func (b *body) unread() bool { return b.left != 0 || b.chunks != nil }

// Read implements io.Reader. A body that ends early is io.ErrUnexpectedEOF.
func (b *body) Read(p []byte) (int, error) {
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case b.left == 0:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	if b.continueDue {
		if err := b.c.answer.sendContinue(); err != nil {
			return 0, err
		}
	}
	return b.read(p)
}

func (b *body) read(p []byte) (int, error) {
	if b.chunks != nil {
		n, err := b.chunks.Read(p)
		if errors.Is(err, io.EOF) {
			if terr := b.skipTrailer(); terr != nil {
				return n, terr
			}
			b.left = 0
		}
		return n, err
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.c.read(p)
	b.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// skipTrailer reads the fields behind the last chunk, which nobody asks for. They must be there up to the empty line:
// otherwise the body was cut off.
func (b *body) skipTrailer() error {
	for room := b.ahead.Size(); room > 0; {
		line, err := b.ahead.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case string(line) == "\r\n":
			return nil
		}
		text, ok := strings.CutSuffix(string(line), "\r\n")
		if !ok {
			return errors.New("a line of the trailer does not end with CRLF")
		}
		if _, _, err := parseField(text); err != nil {
			return err
		}
		room -= len(line)
	}
	return errors.New("the trailer is too long")
}

// Close implements io.Closer. What is left is read at the end of the answer.
func (b *body) Close() error {
	b.closed = true
	return nil
}

// skip reads what the handler has left of the body, if it is not much. It reports whether the next request follows.
func (b *body) skip() bool {
	if b.left == 0 {
		return true
	}
	b.closed = true // a handler that reads on must not take the end of what was dropped for that of the body
	// A client that waits for 100 Continue may send the body or not.
	if b.continueDue || b.left < 0 || b.left > maxUnread || b.c.nc.SetReadDeadline(time.Now().Add(b.c.server.timeouts.unread)) != nil {
		return false
	}
	// The bytes that were read ahead cost nothing to drop.
	n := min(int64(b.c.end-b.c.begin), b.left)
	b.c.begin += int(n)
	b.left -= n
	for b.left > 0 {
		var scrap [4 << 10]byte
		if _, err := b.read(scrap[:]); err != nil {
			return false
		}
	}
	return true
}
