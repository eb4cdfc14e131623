package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
)

// ceilingEnv makes this program a bare server, so that its CPU can be told from the client's.
const ceilingEnv = "LIGHTMETRICS_BENCH_CEILING"

// serveCeiling answers every PUT once its body was read, until standard input ends.
func serveCeiling() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the parent's end closes it
		l.Close()
	}()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("ETag", `"none"`)
	})}
	if err := srv.Serve(l); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func startCeiling(ctx context.Context) (*peer, func(), error) {
	return startSelf(ctx, "bare server", ceilingEnv+"=1")
}

// startSelf runs this program with a variable that makes it a server, which prints its URL.
func startSelf(ctx context.Context, name, variable string) (*peer, func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), variable)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop := func() {
		in.Close()
		_ = cmd.Wait() // it may have been killed with ctx
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("%s did not start: %w", name, err)
	}
	return &peer{name: name, pid: cmd.Process.Pid, cfg: bucketAt(strings.TrimSpace(line), bucket, "", "bench", "bench")}, stop, nil
}
