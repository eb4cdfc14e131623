package netns

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Enter moves the calling thread into the namespace of this file. The caller has locked
// its goroutine to the thread and either goes back or never unlocks it.
func Enter(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("netns: enter: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("netns: enter %s: %w", path, err)
	}
	return nil
}

// do runs fn on a thread of the host. The sockets that fn makes stay the host's.
func (h *Host) do(fn func() error) error {
	done := make(chan error, 1)
	// A goroutine that ends locked takes its thread with it: nothing of ours runs there later.
	go func() {
		runtime.LockOSThread()
		err := Enter(h.Path)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// DialContext connects from the host, to an address without a name.
func (h *Host) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = h.do(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Listen listens on the host.
func (h *Host) Listen(network, address string) (l net.Listener, err error) {
	err = h.do(func() (err error) {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// ListenPacket listens on the host.
func (h *Host) ListenPacket(network, address string) (c net.PacketConn, err error) {
	err = h.do(func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}
