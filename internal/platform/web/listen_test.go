package web

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
)

// knocks is a listener over connections of a test.
type knocks struct{ conns chan *knock }

func (k knocks) Accept() (net.Conn, error) {
	c, ok := <-k.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (knocks) Close() error   { return nil }
func (knocks) Addr() net.Addr { return &net.TCPAddr{} }

type knock struct {
	net.Conn
	from   string
	closed int
}

func (k *knock) RemoteAddr() net.Addr { a, _ := net.ResolveTCPAddr("tcp", k.from); return a }
func (k *knock) Close() error         { k.closed++; return nil }

// TestConnectionsAreBounded: of all, and of one address; those beyond are closed at once,
// and a place is free again when its connection ends, once.
func TestConnectionsAreBounded(t *testing.T) {
	k := knocks{conns: make(chan *knock, 100)}
	l := LimitConnections(k, 4)
	var all []*knock
	come := func(from string) {
		c := &knock{from: from}
		all = append(all, c)
		k.conns <- c
	}
	for i := range 3 {
		come("10.0.0.1:" + strconv.Itoa(1000+i)) // the third is beyond half
	}
	come("10.0.0.2:1")
	come("10.0.0.3:1")
	come("10.0.0.4:1") // beyond all
	close(k.conns)
	var served []net.Conn
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		served = append(served, c)
	}
	for i, want := range []int{0, 0, 1, 0, 0, 1} {
		if all[i].closed != want {
			t.Errorf("connection %d from %s: closed %d times", i, all[i].from, all[i].closed)
		}
	}
	if len(served) != 4 {
		t.Fatalf("%d are served", len(served))
	}
	_, _ = served[0].Close(), served[0].Close()
	k.conns = make(chan *knock, 3)
	l.(*limitedListener).Listener = k
	come("10.0.0.1:2000")
	come("10.0.0.5:1") // the place is taken again
	close(k.conns)
	if _, err := l.Accept(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("one too many: %v", err)
	}
}

// What is said to collide can't be opened twice, and everything else can.
func TestCollide(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:%d", "127.0.0.1:%d", true},
		{"localhost:%d", "127.0.0.1:%d", true},
		{":%d", "127.0.0.1:%d", true},
		{"127.0.0.1:%d", "0.0.0.0:%d", true},
		{"127.0.0.1:%d", "127.0.0.2:%d", false},
		{"127.0.0.1:0", "127.0.0.1:0", false},
	} {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := free.Addr().(*net.TCPAddr).Port
		free.Close()
		a, b := strings.ReplaceAll(c.a, "%d", fmt.Sprint(port)), strings.ReplaceAll(c.b, "%d", fmt.Sprint(port))
		first, err := net.Listen("tcp", a)
		if err != nil {
			t.Fatal(err)
		}
		second, err := net.Listen("tcp", b)
		first.Close()
		if err == nil {
			second.Close()
		}
		if got := Collide(a, b); got != c.want || got != (err != nil) {
			t.Errorf("%s and %s: %t, %v", a, b, got, err)
		}
	}
	if Collide("", "") || Collide("127.0.0.1:1", "127.0.0.1:2") || !Collide("Name:1", "name:1") {
		t.Error("no address, two ports, or one name")
	}
}
