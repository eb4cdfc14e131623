package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// codedFile is the file of a segment that is a body. Whoever reads a segment reads it as any other: records have
// their own checksums, which say that what the places have given is right.
type codedFile struct {
	readOnly
	of      *codedBodies
	stub    stub
	dropped func(id string) // called at the end, when the segment was dropped; set before its last reference is released
}

// ReadAt implements io.ReaderAt. An error that wraps body.ErrDamaged says that the bytes are lost, and body.ErrUnavailable that
// they cannot be read now; there are no others but io.EOF.
func (f *codedFile) ReadAt(p []byte, off int64) (int, error) {
	if off >= f.stub.length {
		return 0, io.EOF
	}
	part := p[:min(int64(len(p)), f.stub.length-off)]
	n, err := f.of.read(f.stub.body, part, off)
	if err == nil && len(part) < len(p) {
		err = io.EOF
	}
	return n, err
}

// Size implements vfs.File.
func (f *codedFile) Size() (int64, error) { return f.stub.length, nil }

// Close implements io.Closer.
func (f *codedFile) Close() error {
	f.of.forget(f.stub.body, nil)
	if f.dropped != nil {
		f.dropped(f.stub.body)
	}
	return nil
}

// readOnly is the half of a vfs.File that a body does not have: nothing is written to a closed segment.
type readOnly struct{}

var errCoded = fmt.Errorf("the segment is a body: %w", errors.ErrUnsupported)

// WriteAt implements vfs.File.
func (readOnly) WriteAt([]byte, int64) (int, error) { return 0, errCoded }

// Truncate implements vfs.File.
func (readOnly) Truncate(int64) error { return errCoded }

// Allocate implements vfs.File.
func (readOnly) Allocate(int64, int64) error { return errCoded }

// Sync implements vfs.File: the body was durable before it was named.
func (readOnly) Sync() error { return nil }

// randomOpener is a store of bodies that can be told how a body will be read: small pieces here and there.
type randomOpener interface {
	OpenRandom(id string) (body.Reader, error)
}

// codedBodies keeps bodies of segments open: opening one asks several places, and most records are small.
type codedBodies struct {
	store body.Store
	now   func() time.Time

	mu   sync.Mutex
	open map[string]*openBody
	uses int64
}

const (
	// mostOpen bodies are kept open.
	mostOpen = 64
	// openFor is how long a body is read as it was opened. A place that was away then may be back.
	openFor = time.Minute
)

// openBody is a body that is open, or is being opened.
type openBody struct {
	once sync.Once
	r    body.Reader
	err  error

	// Of codedBodies.mu:
	since time.Time
	used  int64 // number of the last use
	users int
	gone  bool // it is not among those that are open; its last user closes it
}

// read reads from a body. What fails is tried once more with what the places have now.
func (c *codedBodies) read(id string, p []byte, off int64) (int, error) {
	for try := 0; ; try++ {
		o := c.use(id)
		n, err := 0, o.err
		if err == nil {
			if n, err = o.r.ReadAt(p, off); n == len(p) {
				err = nil
			} else if err == nil || errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: it is cut off at byte %d", body.ErrDamaged, off+int64(n))
			}
		}
		if err != nil {
			c.forget(id, o)
		}
		c.done(o)
		if err == nil || try > 0 {
			return n, codedError(id, err)
		}
	}
}

// codedError tells what is lost from what may pass. Nothing else comes from reading a body of a segment: above all no
// fs.ErrNotExist, which would be that of an object, and no io.EOF, which would be that of the segment.
func codedError(id string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: body %s of a segment is missing", body.ErrDamaged, id)
	case errors.Is(err, body.ErrDamaged):
		return fmt.Errorf("body %s of a segment: %w", id, body.ErrDamaged)
	}
	return fmt.Errorf("body %s of a segment: %w: %v", id, body.ErrUnavailable, err)
}

// use gives a body that is open, or why it is not; done must follow.
func (c *codedBodies) use(id string) *openBody {
	c.mu.Lock()
	o := c.open[id]
	now := c.now()
	if o != nil && now.Sub(o.since) >= openFor {
		c.drop(id, o)
		o = nil
	}
	if o == nil {
		o = &openBody{since: now}
		if len(c.open) >= mostOpen {
			c.dropLeastUsed()
		}
		if c.open == nil {
			c.open = map[string]*openBody{}
		}
		c.open[id] = o
	}
	c.uses++
	o.used, o.users = c.uses, o.users+1
	c.mu.Unlock()
	o.once.Do(func() {
		if r, ok := c.store.(randomOpener); ok {
			o.r, o.err = r.OpenRandom(id)
		} else {
			o.r, o.err = c.store.Open(id)
		}
		if o.err != nil {
			o.r = nil // what is there may be an interface of nothing
		}
	})
	return o
}

func (c *codedBodies) done(o *openBody) {
	c.mu.Lock()
	o.users--
	last := o.gone && o.users == 0
	c.mu.Unlock()
	if last {
		o.close()
	}
}

func (o *openBody) close() {
	if o.r != nil {
		_ = o.r.Close()
	}
}

// drop takes a body out of those that are open; mu is held. Nobody may use it: it is closed.
func (c *codedBodies) drop(id string, o *openBody) {
	delete(c.open, id)
	if o.gone = true; o.users == 0 {
		o.close()
	}
}

func (c *codedBodies) dropLeastUsed() {
	least := ""
	for id, o := range c.open {
		if least == "" || o.used < c.open[least].used {
			least = id
		}
	}
	c.drop(least, c.open[least])
}

// forget makes the next use open the body again; where o is given, only if that is the one that is open.
func (c *codedBodies) forget(id string, o *openBody) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.open[id]; have != nil && (o == nil || have == o) {
		c.drop(id, have)
	}
}

// close closes all that is open.
func (c *codedBodies) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, o := range c.open {
		c.drop(id, o)
	}
}
