package objectstore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

func placesConfig(t *testing.T, names ...string) Config {
	c := DefaultConfig()
	root := t.TempDir()
	c.Dir = filepath.Join(root, "main")
	c.Users = []User{{Name: "u", AccessKeyID: "U", Secret: config.Secret("0123456789")}}
	for _, n := range append([]string{"main"}, names...) {
		if err := os.Mkdir(filepath.Join(root, n), 0o700); err != nil {
			t.Fatal(err)
		}
		if n != "main" {
			c.Places = append(c.Places, Place{Name: n, Dir: filepath.Join(root, n)})
		}
	}
	return c
}

// TestPoisonedPlacesStayOut: a place of which an fsync failed is not opened again by the same process, whatever it says by then.
func TestPoisonedPlacesStayOut(t *testing.T) {
	c := placesConfig(t, "good", "bad")
	s, err := New(c, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	var slots []spread.Slot
	for _, p := range c.Places {
		slots = append(slots, spread.Slot{Name: p.Name, Local: true, Open: func(context.Context) (place.Place, error) {
			dir := vfs.FS(vfs.Dir(p.Dir))
			if p.Name == "bad" {
				dir = errorfs.Wrap(dir, func(o errorfs.Op) errorfs.Fault {
					if o.Kind == errorfs.Sync && strings.HasPrefix(o.Name, "tmp/") {
						return errorfs.Fault{Err: errors.New("the drive is broken")}
					}
					return errorfs.Fault{}
				})
			}
			return place.OpenDirectory(p.Name, dir, nil)
		}})
	}
	st, err := spread.Open(t.Context(), spread.Options{FS: vfs.Dir(c.Dir), Slots: slots, AckCopies: 2, Old: body.NewFiles(vfs.Dir(c.Dir), nil)})
	if err == nil {
		err = st.Recover()
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := st.Create(strings.Repeat("0", 32))
	if err == nil {
		_, err = w.Write([]byte("body"))
		if err == nil && w.Finish() == nil {
			t.Error("a body was finished without an fsync")
		}
		w.Discard()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.closePlaces(st); err != nil {
		t.Fatal(err)
	}
	for _, again := range []bool{false, true} {
		if len(s.poisoned) != 1 || !errors.Is(s.poisoned["bad"], place.ErrPoisoned) {
			t.Fatalf("%v", s.poisoned)
		}
		st, err = c.openPlaces(t.Context(), nil, s.deps.Telemetry.Log, nil, false, nil, s.poisoned)
		if err == nil {
			err = st.Recover()
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range st.Stats(t.Context()).Places {
			if bad := p.Name == "bad"; bad != errors.Is(p.Err, place.ErrPoisoned) || !bad && p.Err != nil {
				t.Errorf("%s, the second time %t: %v", p.Name, again, p.Err)
			}
		}
		if err := s.closePlaces(st); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLinkedPlaces: a place that is in the directory of the store, or where another place is, is refused also by way of a link.
func TestLinkedPlaces(t *testing.T) {
	c := placesConfig(t, "one", "two")
	link := func(name, to string) string {
		at := filepath.Join(t.TempDir(), name)
		if err := os.Symlink(to, at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, dir := range map[string]string{
		"which is the store's own": filepath.Join(link("l", c.Dir), "below", "still", "to come"),
		"the same place as one":    link("l", c.Places[0].Dir),
		"the same place as dir":    link("l", c.Dir),
	} {
		bad := c
		bad.Places = []Place{c.Places[0], {Name: "two", Dir: dir}}
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	loop := filepath.Join(t.TempDir(), "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(loop); errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if got, err := resolved(filepath.Join(loop, "x")); err != nil || filepath.Base(got) != "x" {
		t.Errorf("%s, %v", got, err)
	}
}
