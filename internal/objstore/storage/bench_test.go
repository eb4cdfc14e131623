package storage

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// BenchmarkBatch is the three requests of an accepted batch, through all decorators, over a loopback
// connection to a server that does nothing.
func BenchmarkBatch(b *testing.B) {
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.Region, cfg.PathStyle = answering(b), "metrics", "us-east-1", true
	cfg.AccessKeyID, cfg.SecretAccessKey = "key", config.Secret("secret")
	s, err := Open(b.Context(), cfg, Options{Process: "bench", Registry: prometheus.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	frame, manifest := bytes.Repeat([]byte("x"), 2000), bytes.Repeat([]byte("y"), 700)
	sum := identity.Sum(frame)
	blob, condemned := "raw-blobs/v1/sha256/ab/"+sum.String()+"/0", "condemned/v1/sha256/ab/"+sum.String()+"/0"
	before := cpu(b)
	b.ReportAllocs()
	for b.Loop() {
		_, err1 := s.Create(b.Context(), blob, frame, objstore.PutOptions{SHA256: sum, ContentType: "application/vnd.lightmetrics.batch"})
		_, err2 := s.Create(b.Context(), "accepted/v1/agent=6869/boot=626f6f74/00000000000000000001-00000000000000000606.json", manifest, objstore.PutOptions{ContentType: "application/json"})
		_, _, err3 := s.Get(b.Context(), condemned, objstore.GetOptions{})
		if err1 != nil || err2 != nil || !errors.Is(err3, objstore.ErrNotFound) {
			b.Fatal(err1, err2, err3)
		}
	}
	b.ReportMetric((cpu(b)-before)*1e6/float64(b.N), "cpu-us/op")
}

// cpu is the CPU time of this process, s.
func cpu(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// answering is the endpoint of a server that answers every PUT with success, and every GET with an absent key.
func answering(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	return "http://" + l.Addr().String()
}

const (
	created = "HTTP/1.1 200 OK\r\nX-Amz-Request-Id: 0123456789ABCDEF\r\nETag: \"9b2cf535f27731c974343645a3985328\"\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n"
	noKey   = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message><Resource>/metrics/key</Resource><RequestId>0123456789ABCDEF</RequestId></Error>"
)

func answer(c net.Conn) {
	defer c.Close()
	missing := "HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\nX-Amz-Request-Id: 0123456789ABCDEF\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: " + strconv.Itoa(len(noKey)) + "\r\n\r\n" + noKey
	r := bufio.NewReader(c)
	for {
		length, get := 0, false
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) <= 2 {
				break
			}
			get = get || bytes.HasPrefix(line, []byte("GET "))
			if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
				length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
			}
		}
		r.Discard(length)
		if get {
			io.WriteString(c, missing)
		} else {
			io.WriteString(c, created)
		}
	}
}
