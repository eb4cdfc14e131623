package ingest

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// held is how many places are taken.
func (s *slots) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// connected makes a connection of a sender behind the gate; read takes what comes.
func connected(g *gate, sender string) (*gateConn, net.Conn, chan int, chan error) {
	c, from := gated(g)
	c.sender = sender
	got, failed := read(c)
	return c, from, got, failed
}

// TestHalfSentMessagesLeaveRoomForOthers: 200 connections of one sender begin a large
// message and never end it. Another sender's message need not wait for any of them.
func TestHalfSentMessagesLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(6)
		var open []net.Conn
		for range 200 {
			c, from, _, _ := connected(g, "address 192.0.2.1")
			open = append(open, c, from)
			go from.Write(make([]byte, gateThreshold+1<<10))
		}
		synctest.Wait()
		if held := g.slots.held(); held != 4 {
			t.Errorf("one sender has %d of 6 slots", held)
		}
		b, from, got, _ := connected(g, "address 192.0.2.2")
		go from.Write(make([]byte, 4<<20))
		synctest.Wait() // and no time passes
		if n := total(got); n != 4<<20 {
			t.Errorf("the other sender's message: %d bytes received", n)
		}
		for _, c := range append(open, b, from) {
			_ = c.Close()
		}
		synctest.Wait()
		if g.slots.held() != 0 || g.waiting.Load() != 0 || len(g.slots.turns)+len(g.slots.waiting)+len(g.slots.by) != 0 {
			t.Errorf("%d slots are held, %d wait, %+v", g.slots.held(), g.waiting.Load(), &g.slots)
		}
	})
}

// TestHalfSentMessagesOfTheSameSenderEnd: behind its own 199 stalled connections, the
// 200th of a sender has its turn within two minutes; the stall allowed shrinks as more wait.
func TestHalfSentMessagesOfTheSameSenderEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(6)
		var open []net.Conn
		for range 199 {
			c, from, _, failed := connected(g, "address 192.0.2.1")
			open = append(open, c, from)
			go func() { // as the transport does
				<-failed
				_ = c.Close()
			}()
			go from.Write(make([]byte, gateThreshold+1<<10))
		}
		synctest.Wait()
		b, from, got, _ := connected(g, "address 192.0.2.1")
		go from.Write(make([]byte, 4<<20))
		time.Sleep(2 * time.Minute)
		if n := total(got); n != 4<<20 {
			t.Errorf("%d bytes received", n)
		}
		for _, c := range append(open, b, from) {
			_ = c.Close()
		}
	})
}

// TestStrangersGetNoSlot: without an authenticated call a connection ends soon.
func TestStrangersGetNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		c, from := gated(g)
		c.known = false
		got, failed := read(c)
		go io.Copy(from, endless{})
		if err := <-failed; !errors.Is(err, errUnauthenticated) {
			t.Errorf("failed with %v", err)
		}
		if n := total(got); n < gateUnauthenticated || n > gateUnauthenticated+64<<10 || g.slots.held() != 0 {
			t.Errorf("%d bytes received, %d slots held", n, g.slots.held())
		}
		_, _ = c.Close(), from.Close()
	})
}

// TestSlotsGoRound: a free place goes to each sender who waits in its turn, and no one has
// more than its share; whoever goes away passes its place on.
func TestSlotsGoRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(3) // 2 for one sender
		order := make(chan string, 16)
		for range 3 {
			if !s.take("z", nil) {
				t.Fatal("no place")
			}
			if s.by["z"] == s.most {
				break
			}
		}
		if !s.take("y", nil) {
			t.Fatal("no place")
		}
		gone := make(chan struct{})
		for _, sender := range []string{"a", "a", "a", "b", "z", "c"} {
			go func() {
				if s.take(sender, nil) {
					order <- sender
				}
			}()
			synctest.Wait()
		}
		left := make(chan bool)
		go func() { left <- s.take("b", gone) }()
		synctest.Wait()
		close(gone)
		if <-left {
			t.Error("a place for one who is gone")
		}
		s.give("y")
		want := []string{"a", "b", "c", "a", "a"} // z has its share
		var got []string
		for range want {
			sender := <-order
			got = append(got, sender)
			s.give(sender)
		}
		synctest.Wait()
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("order %v, want %v", got, want)
				break
			}
		}
		s.give("z")
		if z := <-order; z != "z" {
			t.Errorf("then %s", z)
		}
	})
}
