package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body/bodytest"
)

// memBodies keeps bodies in memory: a body.Store that has no files.
type memBodies struct {
	mu              sync.Mutex
	bodies, setAway map[string][]byte
	failed          error // of Finish
}

func newMemBodies() *memBodies {
	return &memBodies{bodies: map[string][]byte{}, setAway: map[string][]byte{}}
}

func (m *memBodies) Recover() error { return nil }

func (m *memBodies) Create(id string) (body.Writer, error) { return &memWriter{m: m, id: id}, nil }

func (m *memBodies) Open(id string) (body.Reader, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.bodies[id]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return memReader{bytes.NewReader(b)}, nil
}

func (m *memBodies) Remove(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.bodies[id]; !ok {
		return fs.ErrNotExist
	}
	delete(m.bodies, id)
	return nil
}

func (m *memBodies) ids() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.bodies))
}

func (m *memBodies) List(fn func(id string) error) error {
	for _, id := range m.ids() {
		if err := fn(id); err != nil {
			return err
		}
	}
	return nil
}

func (m *memBodies) SetAside(id string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.bodies[id]
	if !ok {
		return "", nil
	}
	delete(m.bodies, id)
	m.setAway[id] = b
	return "memory/" + id, nil
}

type memWriter struct {
	m  *memBodies
	id string
	b  []byte
}

func (w *memWriter) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}

func (w *memWriter) Finish() error {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.m.failed == nil {
		w.m.bodies[w.id] = w.b
	}
	return w.m.failed
}

func (w *memWriter) Discard() { _ = w.m.Remove(w.id) }

type memReader struct{ *bytes.Reader }

func (memReader) Close() error { return nil }

func TestMemBodies(t *testing.T) {
	bodytest.Run(t, func(*testing.T) func() body.Store {
		m := newMemBodies()
		return func() body.Store { return m }
	})
}

// TestBodiesElsewhere: the engine reaches large bodies through its body.Store alone, and
// the log says which of them count.
func TestBodiesElsewhere(t *testing.T) {
	m := newMemBodies()
	opt := Options{Dir: t.TempDir(), Bodies: m}
	e := openTest(t, opt)
	large := pattern(2*BlockSize+100, 3)
	for i := range 4 {
		e.putFile(fmt.Sprint("k/", i), large)
	}
	e.putFile("k/0", large[:BlockSize+1]) // the body of the first one goes
	if err := removeKey(context.Background(), e, "k/1"); err != nil {
		t.Fatal(err)
	}
	if n := len(m.ids()); n != 3 {
		t.Errorf("%d bodies for 3 objects", n)
	}
	e.done()
	m.bodies["ff000000000000000000000000000000"] = []byte("no record names it")
	e = openTest(t, opt)
	e.want("k/0", large[:BlockSize+1])
	e.want("k/2", large)
	if n := len(m.ids()); n != 3 {
		t.Errorf("%d bodies after a start, of 3 objects", n)
	}

	// Damage in a body, and one that is gone, are found by the record.
	for i, id := range m.ids() {
		switch i {
		case 0:
			m.bodies[id][5] ^= 1
		case 1:
			delete(m.bodies, id)
		}
	}
	v, err := e.Verify(context.Background())
	if err != nil || len(v.Lost) != 2 || len(v.Damages) != 2 {
		t.Fatalf("%+v, %v", v, err)
	}
	r, err := e.Repair(context.Background())
	if err != nil || len(r.Lost) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if len(m.setAway) != 1 || len(m.ids()) != 1 || !slices.ContainsFunc(r.Files, func(f string) bool { return f[:7] == "memory/" }) {
		t.Errorf("set aside %d, left %d, reported %v", len(m.setAway), len(m.ids()), r.Files)
	}
	e.done()
}

// TestBodyThatMayNotBeDurable: after a failed sync of a body nothing is written any more;
// after a full disk writing goes on.
func TestBodyThatMayNotBeDurable(t *testing.T) {
	m := newMemBodies()
	e := openTest(t, Options{Dir: t.TempDir(), Bodies: m})
	defer e.done()
	finish := func(failed error) error {
		m.failed = failed
		b, err := e.NewBlob("bkt", "k")
		if err != nil {
			return err
		}
		defer b.Discard()
		_, err = io.Copy(b, bytes.NewReader(pattern(BlockSize, 1)))
		if err == nil {
			_, err = b.Finish()
		}
		return err
	}
	lost := errors.New("a shard is lost")
	if err := finish(lost); !errors.Is(err, lost) || errors.Is(err, ErrPoisoned) || e.Err() != nil {
		t.Errorf("a body that is not there: %v, %v", err, e.Err())
	}
	if err := finish(nil); err != nil {
		t.Errorf("the next one: %v", err)
	}
	if err := finish(fmt.Errorf("%w: %w", body.ErrUnsynced, lost)); !errors.Is(err, ErrPoisoned) || e.Err() == nil {
		t.Errorf("a body that may be there: %v, %v", err, e.Err())
	}
}
