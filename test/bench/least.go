package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// leastEnv makes this program the least server, over the directory that it names.
const leastEnv = "LIGHTMETRICS_BENCH_LEAST"

// leastServer does of a durable PUT only what no store can leave out: it reads the request, computes the two hashes that
// S3 asks for, and appends all bodies that came meanwhile to a file with one fdatasync. The client is on the same cores, so
// this is what group commit allows there.
type leastServer struct {
	file vfs.File
	off  int64
	puts chan leastPut
	buf  []byte
}

type leastPut struct {
	body []byte
	done chan error
}

// leastGroup bounds a group, as the store does.
const leastGroup = 1024

func startLeast(ctx context.Context, e *env) (*peer, func(), error) {
	dir := filepath.Join(e.dir, "least")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	return startSelf(ctx, "least server", leastEnv+"="+dir)
}

// serveLeast serves until standard input ends.
func serveLeast(dir string) error {
	f, err := vfs.Dir(dir).Create("log")
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the parent's end closes it
		l.Close()
	}()
	s := &leastServer{file: f, puts: make(chan leastPut, leastGroup)}
	go s.commit()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return f.Close()
		}
		if err != nil {
			return err
		}
		go s.serve(c)
	}
}

func (s *leastServer) commit() {
	for first := range s.puts {
		group := []leastPut{first}
		s.buf = append(s.buf[:0], first.body...)
		for more := true; more && len(group) < leastGroup; {
			select {
			case p := <-s.puts:
				group = append(group, p)
				s.buf = append(s.buf, p.body...)
			default:
				more = false
			}
		}
		_, err := s.file.WriteAt(s.buf, s.off)
		if err == nil {
			err = s.file.Sync()
		}
		s.off += int64(len(s.buf))
		for _, p := range group {
			p.done <- err
		}
	}
}

// serve answers the PUTs of a connection until one is not as expected.
func (s *leastServer) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReaderSize(c, 64<<10)
	done := make(chan error, 1)
	var body []byte
	for {
		n, err := readHead(in)
		if err != nil {
			return
		}
		if cap(body) < n {
			body = make([]byte, n)
		}
		body = body[:n]
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		sum := md5.Sum(body)
		payload := sha256.Sum256(body) // what the signature covers
		s.puts <- leastPut{body, done}
		if err := <-done; err != nil {
			fmt.Fprintln(os.Stderr, "bench: least server:", err)
			return
		}
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nETag: \"%x\"\r\nX-Sum: %x\r\nContent-Length: 0\r\n\r\n", sum, payload[:4]); err != nil {
			return
		}
	}
}

// readHead reads a request's head and gives the length of its body.
func readHead(in *bufio.Reader) (length int, err error) {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			return length, nil
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length:")); ok {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(v))); err != nil {
				return 0, err
			}
		}
	}
}
