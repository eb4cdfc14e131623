//go:build !unix

package s3

import (
	"errors"
	"net"
)

// canCheckIdle is false where a socket can't be asked without waiting; Go's transport is used there.
const canCheckIdle = false

type idleCheck struct{}

func newIdleCheck(net.Conn) (idleCheck, error) { return idleCheck{}, errors.ErrUnsupported }

func (idleCheck) quiet() bool { return false }
