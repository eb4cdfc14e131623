package engine

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// countedBodies counts the bodies that are open.
type countedBodies struct {
	body.Store
	mu         sync.Mutex
	open, most int
}

type countedReader struct {
	body.Reader
	s *countedBodies
}

func (s *countedBodies) note(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open += n
	s.most = max(s.most, s.open)
}

func (s *countedBodies) Open(id string) (body.Reader, error) {
	r, err := s.Store.Open(id)
	if err != nil {
		return nil, err
	}
	s.note(1)
	return countedReader{r, s}, nil
}

func (r countedReader) Close() error {
	r.s.note(-1)
	return r.Reader.Close()
}

// uploaded makes an object of many parts and gives its bytes.
func (e *testEngine) uploaded(key string, parts int) (want []byte) {
	e.t.Helper()
	id := e.begin(key)
	for n := 1; n <= parts; n++ {
		b := fmt.Appendf(nil, "part %d of %s;", n, key)
		if err := e.part(key, id, n, b); err != nil {
			e.t.Fatal(err)
		}
		want = append(want, b...)
	}
	list := e.parts(key, id)
	if _, err := e.Complete(ctxUp, whole(key, list), id, list, Cond{}); err != nil {
		e.t.Fatal(err)
	}
	return want
}

// An object of many parts is read with few open bodies, also when it is replaced while it is read: its bodies go with
// the last reader, and not before.
func TestManyPartsAreOpenedOneByOne(t *testing.T) {
	bodies := &countedBodies{}
	opt := Options{Dir: t.TempDir()}
	e := openTest(t, opt)
	bodies.Store, e.bodies = e.bodies, bodies
	const parts = openAtOnce + 3
	want := e.uploaded("k", parts)
	readers := make([]*Handle, 3)
	for i := range readers {
		h, err := e.Get("bkt", "k")
		if err != nil {
			t.Fatal(err)
		}
		readers[i] = h
	}
	if bodies.most > len(readers) {
		t.Errorf("%d bodies were open for %d readers", bodies.most, len(readers))
	}
	var got bytes.Buffer
	if err := readers[0].Copy(&got, 0, int64(len(want))/2); err != nil {
		t.Fatal(err)
	}
	e.put("k", []byte("new"))
	if n := e.files(); n != parts {
		t.Errorf("%d of %d bodies are left while they are read", n, parts)
	}
	half := int64(got.Len())
	if err := readers[0].Copy(&got, half, int64(len(want))-half); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("read over a replacement: %v, %d of %d bytes", err, got.Len(), len(want))
	}
	for i, h := range readers {
		h.Close()
		h.Close() // a second one lets nothing else go
		if n := e.files(); (n == 0) != (i == len(readers)-1) || n%parts != 0 {
			t.Errorf("%d bodies are left after the end of reader %d", n, i)
		}
	}
	if bodies.open != 0 || bodies.most > len(readers)+1 || len(e.pins.held) != 0 || len(e.pins.doomed) != 0 {
		t.Errorf("%d bodies are open, at most %d were; pins %v %v", bodies.open, bodies.most, e.pins.held, e.pins.doomed)
	}
	// What a reader kept is gone after the next start, had it never come to its end.
	e.uploaded("k", parts)
	if _, err := e.Get("bkt", "k"); err != nil {
		t.Fatal(err)
	}
	if err := removeKey(ctxUp, e, "k"); err != nil {
		t.Fatal(err)
	}
	if n := e.files(); n != parts {
		t.Errorf("%d of %d bodies are left while they may be read", n, parts)
	}
	e.done()
	e = openTest(t, opt)
	if n := e.files(); n != 0 {
		t.Errorf("%d bodies of a deleted object are left after a restart", n)
	}
}

// A body that is missing is damage of the object, wherever among many it is.
func TestMissingPartOfMany(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	want := e.uploaded("k", openAtOnce+1)
	h, err := e.Get("bkt", "k")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := e.bodies.Remove(h.Object.Extents[openAtOnce].File); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := h.Copy(&got, 0, int64(len(want))); !errors.Is(err, ErrCorrupt) || !bytes.HasPrefix(want, got.Bytes()) {
		t.Errorf("%v after %d bytes", err, got.Len())
	}
	if d := e.Damages(); len(d) != 1 {
		t.Errorf("damages: %+v", d)
	}
}
