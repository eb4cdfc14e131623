package build

import (
	"fmt"
	"os"

	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// spill keeps the chunks of an hour that is built in parts until they are published: all parts
// together have more than a job may take of memory.
type spill struct {
	f  *os.File
	at int64
}

// newSpill makes a spill in dir; "" is the system's directory of temporary files.
func newSpill(dir string) (*spill, error) {
	f, err := os.CreateTemp(dir, "lightmetrics-rollup-*")
	if err != nil {
		return nil, fmt.Errorf("chunks of an hour in parts: %w", err)
	}
	// A file without a name goes with the process, however that ends, so a worker that is killed
	// over and over does not fill the disk.
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close() // the error that counts is the other
		return nil, fmt.Errorf("chunks of an hour in parts: %w", err)
	}
	return &spill{f: f}, nil
}

// keep writes b, which may be changed afterwards.
func (s *spill) keep(b []byte) (publish.Content, error) {
	at, n := s.at, len(b)
	if _, err := s.f.WriteAt(b, at); err != nil {
		return publish.Content{}, fmt.Errorf("chunks of an hour in parts: %w", err)
	}
	s.at += int64(n)
	// What is read back is not compared here: whoever stores it checks it by this hash.
	return publish.Stored(n, identity.Sum(b), func() ([]byte, error) {
		body := make([]byte, n)
		if _, err := s.f.ReadAt(body, at); err != nil {
			return nil, err
		}
		return body, nil
	}), nil
}

// close frees the space; a nil spill has none.
func (s *spill) close() error {
	if s == nil {
		return nil
	}
	return s.f.Close()
}
