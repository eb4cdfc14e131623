package objectstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// drives asks the admin address. While the store is opened again nobody answers.
func (s *server) drives() (out objectstore.Drives) {
	s.t.Helper()
	resp, err := http.Get("http://" + s.AdminAddr() + "/drives")
	if err != nil {
		return out
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// waitInSync waits until so many drives have everything.
func (s *server) waitInSync(n int) {
	s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if s.drives().InSync == n {
			return
		}
	}
	s.t.Fatalf("never %d drives in sync: %+v", n, s.drives())
}

// refused gives why a service does not start.
func refused(t *testing.T, c objectstore.Config) string {
	t.Helper()
	s, err := objectstore.New(c, objectstore.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	if err = s.Run(ctx); err == nil {
		t.Fatal("the service starts")
	}
	return err.Error()
}

// movedTo reports whether one drive of three is out, and the index is on this one.
func movedTo(d objectstore.Drives, slot int) bool {
	return d.InSync == 2 && len(d.Drives) == 3 && d.Drives[slot].Index
}

func mirrored(t *testing.T, mirrors int) objectstore.Config {
	t.Helper()
	root := t.TempDir()
	c := testConfig(filepath.Join(root, "one"))
	for i := range mirrors {
		d := filepath.Join(root, fmt.Sprintf("mirror%d", i))
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		c.Mirrors = append(c.Mirrors, d)
	}
	return c
}

var mirroredBodies = map[string][]byte{"small": []byte("small"), "large": bytes.Repeat([]byte("0123456789"), 300_000), "empty": nil}

func putAll(t *testing.T, s *server) {
	t.Helper()
	for k, b := range mirroredBodies {
		put(t, s.client(), k, b)
	}
}

func wantAll(t *testing.T, s *server) {
	t.Helper()
	for k, b := range mirroredBodies {
		if got := get(t, s.client(), k); !bytes.Equal(got, b) {
			t.Errorf("%s has %d bytes, want %d", k, len(got), len(b))
		}
	}
}

// TestMirrorsReplaceDrive: of three drives one is lost while the store is down, the one with the index; the store starts
// from the others, and a new drive gets everything. Then another fails while it runs.
func TestMirrorsReplaceDrive(t *testing.T) {
	c := mirrored(t, 2)
	s := start(t, c)
	putAll(t, s)
	if d := s.drives(); d.InSync != 3 || !d.Drives[0].Index {
		t.Errorf("drives: %+v", d)
	}
	s.stop()
	if err := os.RemoveAll(c.Dir); err != nil {
		t.Fatal(err)
	}
	s = start(t, c)
	wantAll(t, s)
	s.waitInSync(3)
	if d := s.drives(); d.Drives[0].Index || !d.Drives[1].Index {
		t.Errorf("drives: %+v", d)
	}
	// The directory with the index goes away under the running store. Writes go on, and the index is made again elsewhere.
	if err := os.Rename(c.Mirrors[0], c.Mirrors[0]+".gone"); err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("x"), 3<<20)
	put(t, s.client(), "after", large)
	for end := time.Now().Add(patience); !movedTo(s.drives(), 0); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("drives: %+v", s.drives())
		}
	}
	wantAll(t, s)
	if got := get(t, s.client(), "after"); !bytes.Equal(got, large) {
		t.Errorf("%d bytes", len(got))
	}
	put(t, s.client(), "more", []byte("more"))
	s.stop()
	// It comes back late, with what it had.
	if err := os.RemoveAll(c.Mirrors[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.Mirrors[0]+".gone", c.Mirrors[0]); err != nil {
		t.Fatal(err)
	}
	s = start(t, c)
	s.waitInSync(3)
	s.stop()
	for _, lost := range []string{c.Dir, c.Mirrors[1]} {
		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
	}
	if why := refused(t, c); !strings.Contains(why, "too few of the drives") || !strings.Contains(why, c.Mirrors[0]) && !strings.Contains(why, "is missing") {
		t.Errorf("refused with %q", why)
	}
	list, err := objectstore.Members(append([]string{c.Dir}, c.Mirrors...)...)
	if err == nil || len(list) != 3 || list[1].Opinion != "in sync" || list[0].Opinion != "no record" {
		t.Errorf("members: %+v, %v", list, err)
	}
	if err := objectstore.GoOn(telemetry.Discard().Log, c.Mirrors[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(c.Mirrors[1], 0o700); err != nil {
		t.Fatal(err)
	}
	s = start(t, c)
	wantAll(t, s)
	s.waitInSync(3)
	s.stop()
}

// TestMirrorsAreNotForgotten: one of several drives is not opened as if it were the only one; a store without mirrors gets some, and
// check and repair know of them.
func TestMirrorsAreNotForgotten(t *testing.T) {
	c := mirrored(t, 1)
	alone := c
	alone.Mirrors = nil
	s := start(t, alone)
	putAll(t, s)
	if d := s.drives(); len(d.Drives) != 0 || d.InSync != 0 {
		t.Errorf("one drive alone: %+v", d)
	}
	s.stop()
	if _, err := os.Stat(filepath.Join(c.Dir, "MEMBER")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a store on one drive has a record of several: %v", err)
	}
	s = start(t, c)
	s.waitInSync(2)
	wantAll(t, s)
	s.stop()
	for _, dir := range []string{c.Dir, c.Mirrors[0]} {
		only := testConfig(dir)
		if why := refused(t, only); !strings.Contains(why, "too few of the drives") {
			t.Errorf("%s alone: %s", dir, why)
		}
		if _, err := objectstore.Repair(context.Background(), only, telemetry.Discard().Log); err == nil {
			t.Errorf("repairs %s alone", dir)
		}
		if v, err := objectstore.Check(context.Background(), only, telemetry.Discard().Log); err != nil || v.Objects != 3 || len(v.Damages) != 0 {
			t.Errorf("check of %s: %+v, %v", dir, v, err)
		}
	}
	r, err := objectstore.Repair(context.Background(), c, telemetry.Discard().Log)
	if err != nil || len(r.Lost) > 0 {
		t.Errorf("repair: %+v, %v", r, err)
	}
	s = start(t, c)
	wantAll(t, s)
	s.stop()
}
