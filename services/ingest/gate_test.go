package ingest

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// gated makes a connection behind the gate and the sender's end of it.
func gated(g *gate) (*gateConn, net.Conn) {
	ours, theirs := net.Pipe()
	return &gateConn{Conn: ours, g: g, closed: make(chan struct{}), sender: "one", known: true}, theirs
}

// read takes everything from c until it fails.
func read(c net.Conn) (chan int, chan error) {
	got, failed := make(chan int, 1024), make(chan error, 1)
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			if err != nil {
				failed <- err
				return
			}
			got <- n
		}
	}()
	return got, failed
}

func total(c chan int) (n int) {
	for {
		select {
		case k := <-c:
			n += k
		default:
			return n
		}
	}
}

func TestGateHoldsBackTheSecondLargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		a, fromA := gated(g)
		b, fromB := gated(g)
		gotA, _ := read(a)
		gotB, _ := read(b)
		big := make([]byte, 1<<20)
		go fromA.Write(big)
		synctest.Wait()
		if n := total(gotA); n != len(big) {
			t.Errorf("the first received %d bytes", n)
		}
		go fromB.Write(big)
		synctest.Wait()
		if n := total(gotB); n < gateThreshold || n >= gateThreshold+64<<10 {
			t.Errorf("the second received %d bytes without a slot", n)
		}
		a.admitted()
		synctest.Wait()
		if n := total(gotB); n < len(big)-gateThreshold-64<<10 {
			t.Errorf("the second received %d bytes with a slot", n)
		}
		for _, c := range []net.Conn{a, b, fromA, fromB} {
			_ = c.Close()
		}
		synctest.Wait()
		if g.slots.held() != 0 || g.waiting.Load() != 0 {
			t.Errorf("%d slots are held, %d wait", g.slots.held(), g.waiting.Load())
		}
	})
}

func TestGateClosesAStalledConnectionOnlyWhenOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		a, fromA := gated(g)
		b, fromB := gated(g)
		gotA, failedA := read(a)
		gotB, _ := read(b)
		go fromA.Write(make([]byte, gateThreshold+1))
		time.Sleep(10 * gateStall) // nobody waits: it may take its time
		if n := total(gotA); n != gateThreshold+1 {
			t.Errorf("the slow one received %d bytes", n)
		}
		select {
		case err := <-failedA:
			t.Fatalf("closed without need: %v", err)
		default:
		}
		go fromB.Write(make([]byte, 1<<20))
		time.Sleep(2 * gateStall)
		select {
		case err := <-failedA:
			if !errors.Is(err, errStalled) {
				t.Errorf("the slow one failed with %v", err)
			}
		default:
			t.Error("the slow one still holds its slot")
		}
		_ = a.Close() // as the transport does after an error
		synctest.Wait()
		if n := total(gotB); n != 1<<20 {
			t.Errorf("the waiting one received %d bytes", n)
		}
		for _, c := range []net.Conn{b, fromA, fromB} {
			_ = c.Close()
		}
	})
}

func TestGateTakesTheSlotOfAPausedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		a, fromA := gated(g)
		b, fromB := gated(g)
		gotA, failedA := read(a)
		gotB, _ := read(b)
		resume := a.pause()
		go fromA.Write(make([]byte, gateThreshold+1))
		synctest.Wait()
		go fromB.Write(make([]byte, 1<<20))
		time.Sleep(2 * gateStall)
		if n := total(gotB); n != 1<<20 {
			t.Errorf("the waiting one received %d bytes", n)
		}
		select {
		case err := <-failedA:
			t.Errorf("the paused one was closed: %v", err)
		default:
		}
		resume()
		b.admitted()
		go fromA.Write(make([]byte, 1<<20))
		synctest.Wait()
		if n := total(gotA); n != gateThreshold+1+1<<20 {
			t.Errorf("the paused one received %d bytes", n)
		}
		for _, c := range []net.Conn{a, b, fromA, fromB} {
			_ = c.Close()
		}
		if n := g.pending.Load(); n != 0 {
			t.Errorf("%d bytes are pending", n)
		}
	})
}

func TestGateLowersItsThresholdForMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		g.slots.take("another", nil)
		g.pending.Store(gatePlenty + 1)
		c, from := gated(g)
		got, _ := read(c)
		for range 1000 { // pings are no message
			if _, err := from.Write(make([]byte, gateSmallRead)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if c.pending.Load() != 0 || g.waiting.Load() != 0 {
			t.Errorf("%d bytes are pending, %d wait", c.pending.Load(), g.waiting.Load())
		}
		total(got)
		go from.Write(make([]byte, 1<<20))
		synctest.Wait()
		if n := total(got); n < gateLow || n > gateLow+64<<10 {
			t.Errorf("received %d bytes", n)
		}
		_, _ = c.Close(), from.Close()
	})
}

func TestGateFreesWhoWaitsWhenClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		g.slots.take("another", nil)
		c, from := gated(g)
		_, failed := read(c)
		go io.Copy(from, endless{})
		synctest.Wait()
		if g.waiting.Load() != 1 {
			t.Fatalf("%d wait", g.waiting.Load())
		}
		_ = c.Close()
		if err := <-failed; err == nil {
			t.Error("no error")
		}
		_ = from.Close()
		if g.slots.held() != 1 {
			t.Errorf("%d slots are held", g.slots.held())
		}
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestRatesForgetTheOldestAgent(t *testing.T) {
	now := time.Unix(0, 0)
	r := newAgents(Limits{AgentBatchesPerSec: 1, AgentBatchesBurst: 1, AgentsTracked: 2}, func() time.Time { return now })
	take := func(agent string) bool { _, ok := r.takeBatch(agent); return ok }
	if !take("a") || !take("b") || take("a") {
		t.Error("burst of one")
	}
	if wait, ok := r.takeBatch("b"); ok || wait != time.Second {
		t.Errorf("wait %v, %v", wait, ok)
	}
	if !take("c") || r.recent.Len() != 2 {
		t.Errorf("%d agents are remembered", r.recent.Len())
	}
	now = now.Add(time.Second)
	if !take("b") {
		t.Error("a second later")
	}
	for range 10 {
		if wait, ok := newAgents(Limits{AgentsTracked: 1}, func() time.Time { return now }).takeBatch("x"); !ok || wait != 0 {
			t.Error("no limit is a limit")
		}
	}
}
