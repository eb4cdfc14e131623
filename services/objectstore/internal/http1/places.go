package http1

import (
	"net"
	"sync/atomic"
	"time"
)

// admit gives a connection a place, if there is one or an idle connection has to give its own.
func (s *Server) admit(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.MaxConns > 0 && s.placed >= s.MaxConns && !s.displace() {
		return false
	}
	s.conns[c] = struct{}{}
	c.placed = true
	s.placed++
	return true
}

// displace closes the connection that has waited longest for a request; false where all have one. Who has opened many and
// sends nothing loses them first. mu is held.
func (s *Server) displace() bool {
	for {
		var oldest *conn
		for c := range s.conns {
			if c.placed && c.state.Load() == idle && (oldest == nil || c.since.Load() < oldest.since.Load()) {
				oldest = c
			}
		}
		if oldest == nil {
			return false
		}
		if !oldest.state.CompareAndSwap(idle, closed) {
			continue // it has got a request meanwhile
		}
		// Below TLS, which would wait for a client that reads nothing.
		_ = oldest.raw.Close()
		s.giveUp(oldest)
		if s.Displaced != nil {
			s.Displaced()
		}
		return true
	}
}

// giveUp takes a connection's place. mu is held.
func (s *Server) giveUp(c *conn) {
	if c.placed {
		c.placed = false
		s.placed--
	}
}

// leave forgets a connection that has ended.
func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveUp(c)
	delete(s.conns, c)
}

// Conns is the number of connections that have a place.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.placed
}

// maxRefusals bounds the refused connections that are kept for their clients to read the answer.
const maxRefusals = 64

// refusals counts them.
type refusals struct{ n atomic.Int32 }

func (r *refusals) begin() bool {
	if r.n.Add(1) <= maxRefusals {
		return true
	}
	r.n.Add(-1)
	return false
}

func (r *refusals) end() { r.n.Add(-1) }

// refuseConn answers a connection that has no place, and closes it.
func (s *Server) refuseConn(nc net.Conn) {
	if s.Refused != nil {
		s.Refused()
	}
	// What TLS would need for an answer costs more than what the bound is to save.
	if s.TLS != nil || len(s.Full) == 0 || !s.ends.begin() {
		_ = nc.Close()
		return
	}
	s.running.Go(func() {
		defer s.ends.end()
		defer nc.Close()
		if nc.SetDeadline(time.Now().Add(s.timeouts.linger)) != nil {
			return
		}
		if _, err := nc.Write(s.Full); err == nil {
			drain(nc)
		}
	})
}

// drain ends the answer's direction and reads what the client sends, until the deadline. A close at once would make the
// kernel reset the connection, and the client might lose the answer.
func drain(nc net.Conn) {
	half, ok := nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	var rest [512]byte
	for {
		if _, err := nc.Read(rest[:]); err != nil {
			return
		}
	}
}
