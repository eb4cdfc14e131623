//go:build unix

package s3

import (
	"errors"
	"net"
	"syscall"
)

const canCheckIdle = true

// idleCheck finds out whether an idle connection can be used.
type idleCheck struct {
	raw   syscall.RawConn
	check func(fd uintptr) bool
	err   *error
}

func newIdleCheck(c net.Conn) (idleCheck, error) {
	for {
		switch in := c.(type) {
		case interface{ NetConn() net.Conn }: // TLS
			c = in.NetConn()
			continue
		case *conn:
			c = in.Conn
			continue
		case syscall.Conn:
			raw, err := in.SyscallConn()
			if err != nil {
				return idleCheck{}, err
			}
			got := new(error)
			return idleCheck{raw: raw, err: got, check: func(fd uintptr) bool {
				var one [1]byte
				n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
				if err == nil {
					err = errors.New("closed")
					if n > 0 {
						err = errors.New("unasked bytes")
					}
				}
				*got = err
				return true // never waits
			}}, nil
		}
		return idleCheck{}, errors.New("s3: no socket")
	}
}

// quiet reports whether the server has neither closed the connection nor sent anything since its
// last answer.
func (c idleCheck) quiet() bool {
	if err := c.raw.Read(c.check); err != nil {
		return false
	}
	return errors.Is(*c.err, syscall.EAGAIN) || errors.Is(*c.err, syscall.EWOULDBLOCK)
}
