package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func network(t *testing.T, names ...string) (*Net, []*Host) {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip(err)
	}
	n, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		out, err := exec.Command("ip", "netns", "list").Output()
		if _, serr := os.Stat("/sys/class/net/" + n.id); err != nil || strings.Contains(string(out), n.id) || serr == nil {
			t.Errorf("something of %s is left: %v %s", n.id, err, out)
		}
	})
	var hosts []*Host
	for _, name := range names {
		h, err := n.Add(name)
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	return n, hosts
}

// wire is UDP in one direction: what is sent either arrives or does not.
type wire struct {
	from, to net.PacketConn
	n        int
}

func newWire(t *testing.T, from, to *Host) *wire {
	t.Helper()
	open := func(h *Host) net.PacketConn {
		c, err := h.ListenPacket("udp4", h.Addr.String()+":0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	return &wire{from: open(from), to: open(to)}
}

// arrive sends packets and counts those that arrive, until all did or none comes for a
// while: a long one where all are wanted, so that neighbours can find each other.
func (w *wire) arrive(t *testing.T, packets, want int) (arrived int) {
	t.Helper()
	while := time.Second
	if want == packets {
		while = 20 * time.Second
	}
	w.n++
	for range packets {
		if _, err := w.from.WriteTo(fmt.Append(nil, w.n), w.to.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 100)
	for arrived < packets {
		_ = w.to.SetReadDeadline(time.Now().Add(while))
		k, _, err := w.to.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return arrived
		}
		if err != nil {
			t.Fatal(err)
		}
		if string(buf[:k]) == fmt.Sprint(w.n) { // not one that was held up before
			arrived++
		}
	}
	return arrived
}

func TestCutsAndLosses(t *testing.T) {
	n, h := network(t, "a", "b", "c")
	ab, ba, ac := newWire(t, h[0], h[1]), newWire(t, h[1], h[0]), newWire(t, h[0], h[2])
	const packets = 50
	all := func(when string, wantAB, wantBA, wantAC int) {
		t.Helper()
		for name, x := range map[string]struct {
			w    *wire
			want int
		}{"a to b": {ab, wantAB}, "b to a": {ba, wantBA}, "a to c": {ac, wantAC}} {
			if got := x.w.arrive(t, packets, x.want); got != x.want {
				t.Errorf("%s: %d of %d arrive %s, want %d", when, got, packets, name, x.want)
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	all("at first", packets, packets, packets)
	must(n.Cut(h[0], h[1]))
	all("with a to b cut", 0, packets, packets)
	must(n.Heal())
	all("healed", packets, packets, packets)
	must(n.CutBoth(h[0], h[1]))
	all("with both cut", 0, 0, packets)
	must(n.Heal())
	all("healed again", packets, packets, packets)
	if !n.CanLose() {
		t.Skip("nftables is missing: loss of packets is not tested")
	}
	must(n.Lose(h[0], h[1], 30))
	// 200 packets at 30 %: 140 arrive, with a standard deviation of 6.5.
	if got := ab.arrive(t, 200, 140); got < 95 || got > 185 {
		t.Errorf("%d of 200 arrive at a loss of 30 percent", got)
	}
	if got := ba.arrive(t, packets, packets); got != packets {
		t.Errorf("the other direction loses too: %d", got)
	}
	must(n.Heal())
	all("healed from losses", packets, packets, packets)
}

func TestThisProcessReachesEveryHost(t *testing.T) {
	_, h := network(t, "a", "b")
	l, err := h[0].Listen("tcp4", h[0].Addr.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"this": (&net.Dialer{}).DialContext, "b": h[1].DialContext,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		c, err := dial(ctx, "tcp4", l.Addr().String())
		if err != nil {
			t.Errorf("from %s: %v", name, err)
			continue
		}
		from := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr()
		if (from == h[1].Addr) != (name == "b") {
			t.Errorf("from %s: the connection comes from %s", name, from)
		}
		c.Close()
	}
}

func TestNamesAreChecked(t *testing.T) {
	n, _ := network(t, "a")
	for _, name := range []string{"", "a", "this", "br0", "A", "x y", "../x", "sixteen-letters-"} {
		if _, err := n.Add(name); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}
