//go:build !unix

package s3

import (
	"errors"
	"net"
)

// canCheckIdle is false where a socket can't be asked without waiting; Go's transport is used there.
const canCheckIdle = false

type socket struct{ plain bool }

func newSocket(net.Conn) (*socket, error) { return nil, errors.ErrUnsupported }

func (*socket) quiet() bool { return false }

func (*socket) send([]byte) (int, bool, error) { return 0, false, errors.ErrUnsupported }
