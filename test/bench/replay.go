package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// requests are conditional creates or GETs, signed beforehand: the heads that internal/objstore/s3 would
// send, so that sending them costs the client next to nothing, whatever the server.
type requests struct {
	keys  []string
	heads [][]byte
	body  []byte // of all creates, but for a number in its first 8 bytes; nil for GETs
	again bool   // from the first one on when all were sent
}

// fill writes the body of request i.
func (p *requests) fill(i int, b []byte) []byte {
	b = append(b[:0], p.body...)
	if len(b) >= 8 {
		binary.BigEndian.PutUint64(b, uint64(i))
	}
	return b
}

// sum is the hash of the body of put i.
func (p *requests) sum(i int) identity.Digest { return identity.Sum(p.fill(i, nil)) }

// record signs one create for each of the keys, with bodies of size bytes.
func record(ctx context.Context, cfg s3.Config, keys []string, size int) (*requests, error) {
	rng := rand.New(rand.NewPCG(1, uint64(size)))
	p := &requests{keys: keys, heads: make([][]byte, len(keys)), body: make([]byte, size)}
	for i := range p.body {
		p.body[i] = byte(rng.Uint32())
	}
	return p, p.record(ctx, cfg)
}

// recordGets signs a GET of each of the keys.
func recordGets(ctx context.Context, cfg s3.Config, keys []string) (*requests, error) {
	p := &requests{keys: keys, heads: make([][]byte, len(keys)), again: true}
	return p, p.record(ctx, cfg)
}

func (p *requests) record(ctx context.Context, cfg s3.Config) error {
	workers := runtime.GOMAXPROCS(0)
	errs := make(chan error, workers)
	for w := range workers {
		go func() { errs <- p.recordPart(ctx, cfg, w, workers) }()
	}
	var all error
	for range workers {
		all = errors.Join(all, <-errs)
	}
	return all
}

func (p *requests) recordPart(ctx context.Context, cfg s3.Config, from, step int) error {
	tape := &tape{}
	store, err := s3.New(ctx, cfg, s3.Options{Transport: tape})
	if err != nil {
		return err
	}
	var body []byte
	for i := from; i < len(p.keys); i += step {
		if p.body == nil {
			_, _, err = store.Get(ctx, p.keys[i], objstore.GetOptions{})
		} else {
			body = p.fill(i, body)
			_, err = store.Create(ctx, p.keys[i], body, objstore.PutOptions{})
		}
		if err != nil {
			return err
		}
		p.heads[i] = tape.head
	}
	return nil
}

// tape keeps the head of the last request and answers that all is well.
type tape struct{ head []byte }

func (t *tape) RoundTrip(r *http.Request) (*http.Response, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", r.Method, r.URL.RequestURI(), r.Host, r.ContentLength)
	// A replay sends the body at once, and so must not ask whether it may.
	if err := r.Header.WriteSubset(&b, map[string]bool{"Content-Length": true, "Expect": true}); err != nil {
		return nil, err
	}
	b.WriteString("\r\n")
	t.head = b.Bytes()
	return &http.Response{StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Body: http.NoBody, Header: http.Header{"Etag": {`"tape"`}}}, nil
}

// replayed is what came of a replay.
type replayed struct {
	acked []int // numbers of the requests that were answered 200
	took  time.Duration
	times []time.Duration // of each, in no order
}

func (r replayed) rate() float64 { return float64(len(r.acked)) / r.took.Seconds() }

// replay sends requests over some connections, each one request after the other, for a
// time at most. Any answer but 200 is an error.
func (p *requests) replay(ctx context.Context, addr string, clients int, d time.Duration) (replayed, error) {
	conns := make([]*conn, clients)
	for i := range conns {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return replayed{}, err
		}
		defer c.Close()
		conns[i] = &conn{Conn: c, r: bufio.NewReaderSize(c, 64<<10)}
	}
	var next atomic.Int64
	var mu sync.Mutex
	var all replayed
	var failed error
	var wg sync.WaitGroup
	start := time.Now()
	for _, c := range conns {
		wg.Go(func() {
			var own replayed
			var body []byte
			var err error
			for ctx.Err() == nil && time.Since(start) < d {
				i := int(next.Add(1)) - 1
				if i >= len(p.heads) && !p.again {
					break
				}
				i %= len(p.heads)
				body = p.fill(i, body)
				began := time.Now()
				if err = c.exchange(p.heads[i], body); err != nil {
					err = fmt.Errorf("%s: %w", p.keys[i], err)
					break
				}
				own.acked, own.times = append(own.acked, i), append(own.times, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			if failed == nil {
				failed = err
			}
			all.acked, all.times = append(all.acked, own.acked...), append(all.times, own.times...)
		})
	}
	wg.Wait()
	all.took = time.Since(start)
	return all, errors.Join(failed, ctx.Err())
}

// conn is a bare HTTP/1.1 client on one connection.
type conn struct {
	net.Conn
	r   *bufio.Reader
	out []byte
}

const answerTimeout = 30 * time.Second

// exchange sends one request and reads its answer.
func (c *conn) exchange(head, body []byte) error {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	c.out = append(append(c.out[:0], head...), body...)
	if _, err := c.Write(c.out); err != nil {
		return err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if len(line) < 12 {
		return fmt.Errorf("answer %q", line)
	}
	status, length := string(line[9:12]), 0
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	if status == "200" {
		_, err = c.r.Discard(length)
		return err
	}
	rest, err := io.ReadAll(io.LimitReader(c.r, int64(length)))
	if err == nil {
		err = fmt.Errorf("status %s: %.300s", status, rest)
	}
	return err
}
