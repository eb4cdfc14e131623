//go:build unix

package s3

import (
	"errors"
	"net"
	"syscall"
)

const canCheckIdle = true

// socket is the socket of a connection, for what net.Conn can't do. One request at a time uses it.
type socket struct {
	raw syscall.RawConn
	// plain: what is written to the socket is what is written to the connection; not with TLS.
	plain bool

	peek  func(fd uintptr) bool // of quiet
	start func(fd uintptr) bool // of send
	came  error                 // what peek found: EAGAIN where nothing has come

	// Of the request that send writes. n is how many bytes of it the socket has taken.
	out     []byte
	n       int
	started bool
}

func newSocket(c net.Conn) (*socket, error) {
	s := &socket{plain: true}
	for {
		switch in := c.(type) {
		case interface{ NetConn() net.Conn }: // TLS
			c, s.plain = in.NetConn(), false
			continue
		case *conn:
			c = in.Conn
			continue
		case syscall.Conn:
			var err error
			if s.raw, err = in.SyscallConn(); err != nil {
				return nil, err
			}
			s.peek, s.start = s.peekOnce, s.sendOnce
			return s, nil
		}
		return nil, errors.New("s3: no socket")
	}
}

// quiet reports whether the server has neither closed the connection nor sent anything since its last answer.
func (s *socket) quiet() bool {
	return s.raw.Read(s.peek) == nil && s.nothingCame()
}

func (s *socket) nothingCame() bool {
	return errors.Is(s.came, syscall.EAGAIN) || errors.Is(s.came, syscall.EWOULDBLOCK)
}

func (s *socket) peekOnce(fd uintptr) bool {
	var one [1]byte
	n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	if err == nil {
		err = errors.New("closed")
		if n > 0 {
			err = errors.New("unasked bytes")
		}
	}
	s.came = err
	return true // never waits
}

// send writes a request and waits until there is something to read. A read right after the write would only find that there
// is nothing yet, by a system call of its own. It returns how many bytes the socket has taken; the rest is left to
// the caller, and then send has not waited. idle is false if something had come before, or the server had closed the
// connection; then nothing was written.
//
// The check stands in the same step as the write: what comes before the step begins, the wait would not notice.
func (s *socket) send(out []byte) (n int, idle bool, err error) {
	s.out, s.n, s.started, s.came = out, 0, false, syscall.EAGAIN
	err = s.raw.Read(s.start)
	s.out = nil
	return s.n, s.nothingCame(), err
}

func (s *socket) sendOnce(fd uintptr) bool {
	if s.started {
		return true
	}
	s.started = true
	if s.peekOnce(fd); !s.nothingCame() {
		return true
	}
	// The caller writes the rest, and meets the error again.
	n, err := syscall.Write(int(fd), s.out)
	s.n = max(n, 0)
	return err != nil || s.n < len(s.out)
}
