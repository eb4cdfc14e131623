package send_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
)

// cutProxy passes connections on to a collector, and cuts the first one after so many bytes
// of what the collector sends, wherever in a message that is.
func cutProxy(t *testing.T, to string, after int64) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	running.Go(func() {
		for n := 0; ; n++ {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			end := sync.OnceFunc(func() { _ = in.Close(); _ = out.Close() })
			running.Go(func() { defer end(); _, _ = io.Copy(out, in) })
			running.Go(func() {
				defer end()
				from := io.Reader(out)
				if n == 0 {
					from = io.LimitReader(out, after)
				}
				_, _ = io.Copy(in, from)
			})
		}
	})
	return l.Addr().String()
}

// TestCutAnywhere: a connection that ends in the middle of an answer, or between two, has
// answered only what came whole. The rest is sent again at once, on another connection.
func TestCutAnywhere(t *testing.T) {
	for after := int64(0); after < 1200; after += 37 {
		f := newFixture(t)
		f.cfg.AnswerTimeout, f.cfg.ConnectTimeout = time.Hour, time.Hour
		es := f.append(10)
		c := &sendtest.Collector{Store: f.store}
		to, err := c.Start("")
		if err != nil {
			t.Fatal(err)
		}
		f.cfg.Collectors = []string{cutProxy(t, to, after)}
		stop := f.run()
		f.drained()
		f.checkAccepted(es)
		if n := f.answers("accepted") + f.answers("duplicate"); n != float64(len(es)) {
			t.Errorf("cut after %d bytes: %v batches were answered, want each once", after, n)
		}
		stop()
		c.Stop()
		if t.Failed() {
			t.Fatalf("cut after %d bytes", after)
		}
	}
}
