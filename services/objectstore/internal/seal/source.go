package seal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

const (
	// maxSecretText bounds what a file or a command may give, bytes.
	maxSecretText = 4 << 10
	// CommandTimeout is how long a command may take to print a secret.
	CommandTimeout = 10 * time.Second
)

// Source is where the secret of a key version comes from: a file that nobody but its owner can read, or a command, such
// as a client of a key service, that prints it. Both have one line, as ParseSecret reads it.
type Source struct {
	ID      string
	File    string
	Command []string // the program and its arguments; no shell
}

// Load reads the secret. The error names the id and never has what was read.
func (s Source) Load(ctx context.Context) (*Key, error) {
	text, err := s.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("key %q: %w", s.ID, err)
	}
	secret, err := ParseSecret(string(text))
	if err != nil {
		return nil, fmt.Errorf("key %q: %w", s.ID, err)
	}
	return NewKey(s.ID, secret)
}

func (s Source) read(ctx context.Context) ([]byte, error) {
	if len(s.Command) > 0 {
		return runCommand(ctx, s.Command)
	}
	f, err := os.Open(s.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Of the open file, so that what is checked is what is read.
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", s.File)
	case st.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s has the mode %#o: others than its owner may read or write it; want 0600", s.File, st.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecretText+1))
	if err == nil && len(b) > maxSecretText {
		err = fmt.Errorf("%s has more than %d bytes", s.File, maxSecretText)
	}
	return b, err
}

// runCommand gives what a command prints. What it prints to its standard error is dropped: it may have a part of the
// secret.
func runCommand(ctx context.Context, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = time.Second // for a child of it that keeps the pipe open
	out := &limited{left: maxSecretText}
	cmd.Stdout = out
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the command %s did not end in %v", args[0], CommandTimeout)
	case errors.Is(err, errTooMuch) || out.over:
		return nil, fmt.Errorf("the command %s printed more than %d bytes", args[0], maxSecretText)
	case err != nil:
		return nil, fmt.Errorf("the command %s: %w", args[0], err)
	}
	return out.buf.Bytes(), nil
}

var errTooMuch = errors.New("too much output")

// limited keeps up to left bytes, and fails with more.
type limited struct {
	buf  bytes.Buffer // not embedded: its ReadFrom would go round the limit
	left int
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		l.over = true
		return 0, errTooMuch
	}
	l.left -= len(p)
	return l.buf.Write(p)
}
