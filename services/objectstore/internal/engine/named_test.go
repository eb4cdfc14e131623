package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
)

// TestStateOf: a body is named from its record on and until its object goes, and the list has just those.
func TestStateOf(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	ids := func() []string {
		t.Helper()
		var all []string
		for after := ""; ; {
			list, err := e.BodiesAfter(after, 2)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) == 0 {
				break
			}
			all, after = append(all, list...), list[len(list)-1]
		}
		for _, id := range all {
			if is, err := e.StateOf(id); err != nil || is != BodyNamed {
				t.Errorf("%s is listed; state %d, %v", id, is, err)
			}
		}
		return all
	}
	b, err := e.NewBlob("bkt", "k")
	if err != nil {
		t.Fatal(err)
	}
	x, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if is, err := e.StateOf(x.File); err != nil || is != BodyAwaited {
		t.Errorf("a body without a record: state %d, %v", is, err)
	}
	b.Discard()
	if is, err := e.StateOf(x.File); err != nil || is != BodyDead {
		t.Errorf("a body that was discarded: state %d, %v", is, err)
	}
	for _, k := range []string{"a", "b", "c", "d", "e"} {
		e.putFile(k, bytes.Repeat([]byte(k), 100))
	}
	all := ids()
	if len(all) != 5 || !slices.IsSorted(all) {
		t.Fatal(all)
	}
	if _, err := e.Engine.Delete(context.Background(), "bkt", Deletion{Key: "c"}); err != nil {
		t.Fatal(err)
	}
	left := ids()
	if len(left) != 4 {
		t.Fatal(left)
	}
	for _, id := range all {
		want := BodyDead
		if slices.Contains(left, id) {
			want = BodyNamed
		}
		if is, err := e.StateOf(id); err != nil || is != want {
			t.Errorf("%s behind the delete: state %d, %v", id, is, err)
		}
	}
}

// TestBodiesAreAwaitedUntilTheyAreNamed: whenever somebody asks during writes, a body whose record follows is never dead, and when
// all writers have ended nothing is awaited.
func TestBodiesAreAwaitedUntilTheyAreNamed(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 25 {
				b, err := e.NewBlob("bkt", "k")
				if err != nil {
					t.Error(err)
					return
				}
				id := b.ext.File
				asked := make(chan struct{})
				stop := make(chan struct{})
				go func() {
					defer close(asked)
					for {
						if is, err := e.StateOf(id); err != nil || is != BodyAwaited && is != BodyNamed {
							t.Errorf("a body that is being written: state %d, %v", is, err)
							return
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				}()
				_, err = b.Write([]byte("x"))
				x, ferr := b.Finish()
				o := Object{Bucket: "bkt", Key: fmt.Sprintf("%d-%d", w, i), Size: 1, ETag: "e", Modified: epoch, Extents: []Extent{x}}
				_, perr := e.Put(context.Background(), o, nil, Cond{})
				if err := errors.Join(err, ferr, perr); err != nil {
					t.Error(err)
				}
				close(stop)
				<-asked
			}
		})
	}
	writers.Wait()
	if n := len(e.awaited.bodies); n != 0 {
		t.Errorf("%d bodies are awaited, and nobody writes", n)
	}
}

// TestRefusedBodiesAreDiscarded: a record that is refused leaves its body to the writer, whose Discard is the end of it.
func TestRefusedBodiesAreDiscarded(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	e.putFile("k", []byte("first"))
	b, err := e.NewBlob("bkt", "k")
	if err != nil {
		t.Fatal(err)
	}
	x, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Put(context.Background(), Object{Bucket: "bkt", Key: "k", Modified: epoch, Extents: []Extent{x}}, nil, Cond{Absent: true})
	if !errors.Is(err, ErrPrecondition) {
		t.Fatal(err)
	}
	if is, err := e.StateOf(x.File); err != nil || is != BodyAwaited {
		t.Errorf("a body whose writer has not ended: state %d, %v", is, err)
	}
	b.Discard()
	if is, err := e.StateOf(x.File); err != nil || is != BodyDead {
		t.Errorf("a body that was discarded: state %d, %v", is, err)
	}
}

// TestPinnedBodiesAreAwaited: a body that a reader will open is not dead when its object goes, until the reader ends.
func TestPinnedBodiesAreAwaited(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	e.uploaded("k", openAtOnce+1)
	h, err := e.Get("bkt", "k")
	if err != nil {
		t.Fatal(err)
	}
	is := func(want BodyState, when string) {
		t.Helper()
		for _, x := range h.Object.Extents {
			if got, err := e.StateOf(x.File); err != nil || got != want {
				t.Fatalf("%s: state %d, want %d, %v", when, got, want, err)
			}
		}
	}
	is(BodyNamed, "of an object")
	if _, err := e.Engine.Delete(context.Background(), "bkt", Deletion{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	is(BodyAwaited, "while it is read")
	h.Close()
	is(BodyDead, "when the reader has ended")
}
