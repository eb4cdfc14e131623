//go:build !linux

package netns

import (
	"context"
	"net"
)

// Enter is for Linux.
func Enter(string) error { return ErrUnavailable }

// DialContext is for Linux.
func (h *Host) DialContext(context.Context, string, string) (net.Conn, error) {
	return nil, ErrUnavailable
}

// Listen is for Linux.
func (h *Host) Listen(string, string) (net.Listener, error) { return nil, ErrUnavailable }

// ListenPacket is for Linux.
func (h *Host) ListenPacket(string, string) (net.PacketConn, error) { return nil, ErrUnavailable }
