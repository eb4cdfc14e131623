package spread

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs/vfstest"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
)

// refused opens the store without some places, and gives the error.
func (r *rig) refused(names ...string) error {
	r.t.Helper()
	r.stop()
	s, err := Open(context.Background(), Options{FS: vfstest.Sub(r.fs, "main"), Slots: slotsOf(r.fsys(), names...), AckCopies: 1})
	if err == nil {
		r.check(s.Close())
	}
	return err
}

func (r *rig) stateOf(name string) State {
	for _, p := range r.Stats(context.Background()).Places {
		if p.Name == name {
			return p.State
		}
	}
	r.t.Fatalf("no place %s", name)
	return ""
}

// TestPlacesLeave: a place that is being emptied takes no new file and is read from; only an empty one may be left out, and is not
// taken back with its old identity.
func TestPlacesLeave(t *testing.T) {
	r := newRig(t, 3, 1)
	b := bytesOf(100_000)
	for i := range 8 {
		r.check(r.put(id(i), b))
	}
	var missing *MissingError
	if err := r.refused("a", "b"); !errors.As(err, &missing) || !slices.Equal(missing.Places, []string{"c"}) {
		t.Fatal(err)
	}
	r.start()

	// A writer that has begun before is waited for, and ends as it likes.
	w, err := r.copyTo("c", id(100))
	r.check(err)
	r.check(r.SetState("c", Draining))
	if n := r.Writing("c"); n != 1 {
		t.Errorf("%d files are being written", n)
	}
	r.check(w.Finish())
	if n := r.Writing("c"); n != 0 {
		t.Errorf("%d files are being written", n)
	}
	r.check(r.RemoveFile(context.Background(), Located{"c", erasure.CopyOf(id(100))}))
	if _, err := r.copyTo("c", id(101)); !errors.Is(err, ErrLeaving) {
		t.Error(err)
	}
	if _, err := r.Heal(context.Background(), Located{"c", erasure.CopyOf(id(0))}, Coding{}); err != nil && !errors.Is(err, ErrLeaving) {
		t.Error(err)
	}
	before := r.filesOf("c")
	for i := 8; i < 16; i++ {
		r.check(r.put(id(i), b))
	}
	for i := range 16 {
		r.want(id(i), b)
	}
	if now := r.filesOf("c"); len(now) != len(before) {
		t.Errorf("%d files on a place that takes none, %d before", len(now), len(before))
	}
	if err := r.refused("a", "b"); !errors.As(err, &missing) {
		t.Fatal(err)
	}
	r.start()
	if r.stateOf("c") != Draining {
		t.Errorf("after a restart it is %q", r.stateOf("c"))
	}

	var bad *StateError
	for name, to := range map[string]State{"c": Draining, "a": Drained, "b": InUse, "x": Lost} {
		if err := r.SetState(name, to); !errors.As(err, &bad) || bad.Known != (name != "x") || err.Error() == "" {
			t.Errorf("%s to %q: %v", name, to, err)
		}
	}
	// Empty it, as the keeper does.
	for _, l := range r.filesOf("c") {
		for _, other := range []string{"a", "b"} {
			if _, err := r.Heal(context.Background(), Located{other, l.Fragment}, Coding{}); err != nil {
				t.Fatal(err)
			}
		}
		r.check(r.RemoveFile(context.Background(), l))
	}
	r.check(r.SetState("c", Drained))
	r.stop()
	r.names = []string{"a", "b"}
	r.start()
	for i := range 16 {
		r.want(id(i), b)
	}
	r.names = []string{"a", "b", "c"}
	r.start()
	if err := r.outBecause("c"); err == nil || !strings.Contains(err.Error(), "has left") {
		t.Error(err)
	}
	r.stop()
}

// TestLostPlaceIsNone: of a place that was given up nothing is expected: what is nowhere else is absent and not away, and the settings
// may leave it out. A drive of its name may come by Replace.
func TestLostPlaceIsNone(t *testing.T) {
	r := newRig(t, 3, 1)
	b := bytesOf(50_000)
	r.check(r.put(id(1), b))
	at := ""
	for _, n := range r.names {
		if len(r.filesOf(n)) > 0 {
			at = n
		}
	}
	r.check(r.fs.Rename(at, "gone"))
	r.stop()
	r.start()
	if _, err := r.Open(id(1)); !errors.Is(err, body.ErrUnavailable) {
		t.Error(err)
	}
	r.check(r.SetState(at, Lost))
	if _, err := r.Open(id(1)); errors.Is(err, body.ErrUnavailable) || err == nil {
		t.Errorf("of a place that will not return: %v", err)
	}
	if err := r.AllThere(); err != nil {
		t.Error(err)
	}
	r.check(r.fs.Rename("gone", at))
	r.start()
	if r.outBecause(at) == nil || r.stateOf(at) != Lost {
		t.Errorf("what is lost is used: %q", r.stateOf(at))
	}
	for _, to := range []State{InUse, Draining, Drained, Lost} {
		if err := r.SetState(at, to); err == nil {
			t.Errorf("what is lost became %q", to)
		}
	}
	r.stop()
	r.check(r.fs.Rename(at, "old"))
	r.check(r.fs.Mkdir(at))
	r.check(Replace(vfstest.Sub(r.fs, "main"), at))
	r.start()
	if err := r.outBecause(at); err != nil || r.stateOf(at) != InUse {
		t.Errorf("%v, %q", err, r.stateOf(at))
	}
	r.check(r.SetState(at, Lost))
	r.names = slices.DeleteFunc(r.names, func(n string) bool { return n == at })
	r.start()
	r.stop()
}

// TestSwappedDrivesDoNotLeave: the state belongs to a name, so the drive of another place must not leave under it.
func TestSwappedDrivesDoNotLeave(t *testing.T) {
	r := newRig(t, 2, 1)
	r.stop()
	r.check(r.fs.Rename("a", "x"))
	r.check(r.fs.Rename("b", "a"))
	r.check(r.fs.Rename("x", "b"))
	r.start()
	var bad *StateError
	if err := r.SetState("a", Draining); !errors.As(err, &bad) || !bad.Swapped {
		t.Error(err)
	}
}

// TestMovedDriveDoesNotLeave: a drive that is used under another name is not given up under its own, and one that has left is not used
// under another: the list would forget whose it is, and the next start would refuse a place with files.
func TestMovedDriveDoesNotLeave(t *testing.T) {
	r := newRig(t, 2, 1)
	r.stop()
	r.check(r.fs.Rename("b", "c"))
	r.names = append(r.names, "c")
	r.start()
	r.check(r.outBecause("c"))
	var bad *StateError
	for _, n := range []string{"b", "c"} {
		if err := r.SetState(n, Lost); !errors.As(err, &bad) || !bad.Swapped {
			t.Errorf("%s: %v", n, err)
		}
	}
	r.stop()
	r.check(r.fs.Rename("c", "b"))
	for _, to := range []State{Draining, Drained, Lost} {
		r.start()
		r.check(r.SetState("b", to))
		r.stop()
		r.check(r.fs.Rename("b", "c"))
		r.start()
		if err := r.outBecause("c"); err == nil || !strings.Contains(err.Error(), "where they belong") {
			t.Errorf("the drive of a place that is %s is used under another name: %v", to, err)
		}
		r.stop()
		r.check(r.fs.Rename("c", "b"))
	}
}

// TestLostWhileWritten: what is written to a place while it is declared lost is not acknowledged.
func TestLostWhileWritten(t *testing.T) {
	r := newRig(t, 2, 1)
	b := bytesOf(50_000)
	begun, err := r.copyTo("a", id(1))
	r.check(err)
	p, err := r.slot("a")
	r.check(err)
	var w body.Writer
	for i := 10; w == nil; i++ { // one that is written to a
		w, err = r.Create(id(i))
		r.check(err)
		if r.Writing("a") != 2 {
			w.Discard()
			w = nil
		}
	}
	_, err = w.Write(b)
	r.check(err)
	r.check(r.SetState("a", Lost))
	if err := begun.Finish(); err == nil {
		t.Error("a file was finished on a place that is lost")
	}
	if _, err := p.Create(context.Background(), erasure.CopyOf(id(3)).Name()); !errors.Is(err, ErrLeaving) {
		t.Errorf("a file was begun on a place that is lost: %v", err)
	}
	if err := w.Finish(); err == nil {
		t.Error("a body was written to nothing but a place that is lost")
	}
}

func (r *rig) filesOf(name string) (list []Located) {
	r.t.Helper()
	r.check(r.Files(context.Background(), name, "", func(l Located, _ int64) error {
		list = append(list, l)
		return nil
	}))
	return list
}

// copyTo begins a file on a place.
func (r *rig) copyTo(name, id string) (w interface{ Finish() error }, err error) {
	p, err := r.slot(name)
	if err != nil {
		return nil, err
	}
	return p.Create(context.Background(), erasure.CopyOf(id).Name())
}
