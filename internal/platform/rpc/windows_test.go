package rpc

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// written counts the writes to a connection.
type written struct {
	net.Conn
	n *atomic.Int64
}

func (w written) Write(b []byte) (int, error) {
	w.n.Add(1)
	return w.Conn.Write(b)
}

// countingListener counts the writes to the connections that it accepts.
type countingListener struct {
	net.Listener
	n *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return written{c, l.n}, err
}

// TestOneWriteForAMessage: a stream of single messages costs each end one write for each. With gRPC's estimation of windows
// it would be three: the message, a window update with a ping, and the acknowledgement of the other end's ping.
func TestOneWriteForAMessage(t *testing.T) {
	var client, server atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := serveOn(t, countingListener{l, &server}, ServerTLS{}, AuthConfig{Mode: AuthNone})
	conn, err := Dial(addr, ClientConfig{}, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		return written{c, &client}, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const messages, pause = 50, time.Millisecond
	ask := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	for range messages {
		if err := s.Send(ask); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause) // a ping would be on its way by itself
	}
	// Besides there are preface, settings and header.
	if c, s := client.Load(), server.Load(); c > messages+10 || s > messages+10 {
		t.Errorf("%d messages and their answers took %d writes of the client and %d of the server", messages, c, s)
	}
}
