package proc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
)

// Port is a loopback port that is held until the process that will listen on it starts,
// so that two trees that start at the same time do not choose the same one.
type Port struct {
	Addr string
	l    net.Listener
}

// Reserve holds the wanted port, or another one where that is taken or want is 0.
func Reserve(want int) (*Port, error) {
	// Another port is better than a failure: tests read the address and do not assume it.
	for _, port := range []int{want, 0} {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return &Port{Addr: l.Addr().String(), l: l}, nil
		}
	}
	return nil, errors.New("no free loopback port")
}

// Release lets the port go; more than once is harmless.
func (p *Port) Release() { _ = p.l.Close() }

// FreePort gives a loopback address that is free now.
func FreePort(want int) (string, error) {
	p, err := Reserve(want)
	if err != nil {
		return "", err
	}
	p.Release()
	return p.Addr, nil
}

// Ports of Fixed lie below those that a kernel gives to who asks for any (Linux: from
// 32768 on; elsewhere from 49152 on). Processes begin spread apart from each other.
const (
	fixedFrom   = 10000
	fixedPorts  = 22000
	fixedSpread = 64
)

var fixed atomic.Uint32 // ports that were tried

// Fixed gives n loopback addresses to listen on more than once, or later: no other
// listener and no connection gets their ports by chance meanwhile. Each is given once.
func Fixed(n int) ([]string, error) {
	var addrs []string
	for range fixedPorts {
		if len(addrs) == n {
			return addrs, nil
		}
		// The process id spreads test binaries that run at the same time over the range.
		port := fixedFrom + (os.Getpid()*fixedSpread+int(fixed.Add(1)))%fixedPorts
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // someone's own
		}
		addrs = append(addrs, l.Addr().String())
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("no free loopback port")
}
