//go:build unix

package objectstore_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BenchmarkCPU measures the CPU time of a request and not its duration: that of this process, with a client
// that only writes prepared bytes and reads the answer's length.
func BenchmarkCPU(b *testing.B) {
	s := start(b, testConfig(b.TempDir()))
	small, large := random(2<<10), random(1<<20)
	put(b, s.client(), "small", small)
	put(b, s.client(), "large", large)
	n := 0
	for _, op := range []struct {
		name string
		make func() []byte
	}{
		{"put", func() []byte {
			n++
			return wire(b, newSigner().request("PUT", fmt.Sprintf("%s/%s/cpu/%016d", s.url(), bucket, n), small, "If-None-Match", "*"), small)
		}},
		{"get", func() []byte { return wire(b, newSigner().request("GET", s.url()+"/"+bucket+"/small", nil), nil) }},
		{"get-absent", func() []byte { return wire(b, newSigner().request("GET", s.url()+"/"+bucket+"/absent", nil), nil) }},
		{"get-1MiB", func() []byte { return wire(b, newSigner().request("GET", s.url()+"/"+bucket+"/large", nil), nil) }},
		{"put-1MiB", func() []byte {
			n++
			return wire(b, newSigner().request("PUT", fmt.Sprintf("%s/%s/cpu/%d", s.url(), bucket, n%64), large), large)
		}},
	} {
		for _, clients := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/clients=%d", op.name, clients), func(b *testing.B) {
				requests := make([][]byte, b.N)
				for i := range requests {
					requests[i] = op.make()
					if len(requests[i]) > 1<<20 && i >= 64 {
						requests[i] = requests[i-64] // repeated, for the memory
					}
				}
				before := fsyncs(b, s)
				measureCPU(b, s.Addr(), requests, clients)
				if n := fsyncs(b, s) - before; n > 0 {
					b.ReportMetric(float64(b.N)/n, "puts/fsync")
				}
			})
		}
	}
}

func measureCPU(b *testing.B, addr string, requests [][]byte, clients int) {
	var wg sync.WaitGroup
	conns := make([]net.Conn, clients)
	for i := range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
	}
	runtime.GC()
	b.ReportAllocs()
	began := processCPU(b)
	b.ResetTimer()
	for i, c := range conns {
		wg.Go(func() {
			in := bufio.NewReaderSize(c, 64<<10)
			for j := i; j < len(requests); j += clients {
				if err := exchange(c, in, requests[j]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((processCPU(b)-began).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
}

// exchange sends a request and skips its answer, which must be 200 or 404.
func exchange(c net.Conn, in *bufio.Reader, request []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	length := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		switch {
		case err != nil:
			return err
		case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) && !bytes.HasPrefix(line, []byte("HTTP/1.1 404")):
			return fmt.Errorf("answer %q", line)
		case len(line) == 2:
			_, err := in.Discard(length)
			return err
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(strings.TrimSpace(string(v))); err != nil {
				return err
			}
		}
	}
}

// wire gives a request's bytes.
func wire(b *testing.B, r *http.Request, body []byte) []byte {
	var out bytes.Buffer
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if err := r.Write(&out); err != nil {
		b.Fatal(err)
	}
	return out.Bytes()
}

// fsyncs is the number of the store's fsyncs.
func fsyncs(b *testing.B, s *server) float64 {
	all, err := s.tel.Registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, m := range all {
		if m.GetName() == "lightmetrics_objectstore_fsyncs_total" {
			return m.GetMetric()[0].GetCounter().GetValue()
		}
	}
	b.Fatal("the store does not count its fsyncs")
	return 0
}

func processCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
