// Package placetest is the test that every place.Place must pass.
package placetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

// Run tests a place. empty makes an empty one and gives what opens it: each call of that is another
// process, which finds what the one before has left there.
func Run(t *testing.T, empty func(t *testing.T) (open func() place.Place)) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, open func() place.Place)
	}{
		{"identity", identity}, {"files", files}, {"names", names}, {"absent", absent}, {"once", once}, {"unfinished", unfinished}, {"tidy", tidy},
		{"list", list}, {"aside", aside}, {"restart", restart}, {"canceled", canceled},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, empty(t)) })
	}
}

var ctx = context.Background()

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: %v, want %v", what, err, target)
	}
}

// start opens a place that is claimed.
func start(t *testing.T, open func() place.Place) place.Place {
	t.Helper()
	p := open()
	if _, err := p.Identity(ctx); errors.Is(err, place.ErrBlank) {
		must(t, p.Claim(ctx, place.Identity{Store: place.NewID(), Place: place.NewID(), Name: p.Name()}))
	} else {
		must(t, err)
	}
	must(t, p.Recover(ctx))
	return p
}

func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// Put writes a file with the bytes of r.
func Put(ctx context.Context, p place.Place, name string, r io.Reader) error {
	w, err := p.Create(ctx, name)
	if err != nil {
		return err
	}
	if _, err = io.Copy(w, r); err == nil {
		err = w.Finish()
	}
	if err != nil {
		w.Discard()
	}
	return err
}

func put(p place.Place, name string, b []byte) error {
	return Put(ctx, p, name, bytes.NewReader(b))
}

func read(p place.Place, name string) ([]byte, error) {
	r, err := p.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.NewSectionReader(r, 0, r.Size()+10))
}

func listed(t *testing.T, p place.Place, prefix, after string) (names []string) {
	t.Helper()
	must(t, p.List(ctx, prefix, after, func(f place.File) error { names = append(names, f.Name); return nil }))
	return names
}

func identity(t *testing.T, open func() place.Place) {
	p := open()
	_, err := p.Identity(ctx)
	want(t, "a new place", err, place.ErrBlank)
	id := place.Identity{Store: place.NewID(), Place: place.NewID(), Name: "one"}
	must(t, p.Claim(ctx, id))
	for range 2 {
		got, err := p.Identity(ctx)
		if got.Format = 0; err != nil || got != id {
			t.Errorf("%+v, %v", got, err)
		}
		want(t, "claimed again", p.Claim(ctx, place.Identity{Store: id.Store, Place: place.NewID()}), fs.ErrExist)
		must(t, p.Recover(ctx))
		p = open()
	}
	must(t, p.Err())
}

func files(t *testing.T, open func() place.Place) {
	p := start(t, open)
	for i, n := range []int{0, 1, 1000, 64 << 10, 64<<10 + 1, 8 << 20, 17<<20 + 3} {
		name, b := fmt.Sprintf("%02x-size", i), content(n)
		must(t, put(p, name, b))
		got, err := read(p, name)
		if err != nil || !bytes.Equal(got, b) {
			t.Errorf("%d bytes: %d, %v", n, len(got), err)
		}
		st, err := p.Stat(ctx, name)
		if err != nil || st.Size != int64(n) || st.Name != name {
			t.Errorf("%d bytes: %+v, %v", n, st, err)
		}
		r, err := p.Open(ctx, name)
		must(t, err)
		for _, at := range []int{0, n / 3, n - 70_000, n - 10, n - 1} {
			if at < 0 {
				continue
			}
			buf := make([]byte, 5000)
			k, err := r.ReadAt(buf, int64(at))
			if !bytes.Equal(buf[:k], b[at:min(n, at+5000)]) || (err == io.EOF) != (k < 5000) || err != nil && err != io.EOF {
				t.Errorf("%d bytes from %d: %d, %v", n, at, k, err)
			}
		}
		if k, err := r.ReadAt(make([]byte, 5), int64(n)); k != 0 || err != io.EOF {
			t.Errorf("behind the end: %d, %v", k, err)
		}
		must(t, r.Close(), p.Remove(ctx, name))
		_, err = p.Open(ctx, name)
		want(t, "removed", err, fs.ErrNotExist)
	}
	if n, err := p.Free(ctx); err != nil || n < -1 {
		t.Errorf("free: %d, %v", n, err)
	}
}

func names(t *testing.T, open func() place.Place) {
	p := start(t, open)
	for _, bad := range []string{"", "a", "../x", "ab/c", ".a", "A1", "ab_c", "ab\x00", strings.Repeat("a", 201), "-ab"} {
		_, err := p.Create(ctx, bad)
		want(t, "create "+bad, err, fs.ErrInvalid)
		_, err = p.Open(ctx, bad)
		want(t, "open "+bad, err, fs.ErrInvalid)
		want(t, "remove "+bad, p.Remove(ctx, bad), fs.ErrInvalid)
	}
	long := strings.Repeat("a", 200)
	must(t, put(p, long, []byte("x")))
	if got := listed(t, p, "", ""); !slices.Equal(got, []string{long}) {
		t.Error(got)
	}
}

func absent(t *testing.T, open func() place.Place) {
	p := start(t, open)
	_, err := p.Open(ctx, "ab.x")
	want(t, "open", err, fs.ErrNotExist)
	_, err = p.Stat(ctx, "ab.x")
	want(t, "stat", err, fs.ErrNotExist)
	want(t, "remove", p.Remove(ctx, "ab.x"), fs.ErrNotExist)
	_, err = p.SetAside(ctx, "ab.x")
	want(t, "set aside", err, fs.ErrNotExist)
	if errors.Is(err, place.ErrOut) {
		t.Errorf("an absent file looks like an absent place: %v", err)
	}
	if got := listed(t, p, "", ""); len(got) > 0 {
		t.Error(got)
	}
}

// once: of many writers of one name exactly one succeeds, and its bytes are there.
func once(t *testing.T, open func() place.Place) {
	p := start(t, open)
	for _, size := range []int{100, 9 << 20} {
		var won atomic.Int64
		var wg sync.WaitGroup
		name := fmt.Sprintf("cd-%d", size)
		const writers = 4
		for i := range writers {
			wg.Go(func() {
				b := content(size)
				b[0] = byte(i + 100)
				switch err := put(p, name, b); {
				case err == nil:
					won.Add(int64(i + 1000))
				case !errors.Is(err, fs.ErrExist):
					t.Errorf("writer %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		got, err := read(p, name)
		if err != nil || len(got) != size || won.Load()/1000 != 1 || int64(got[0]) != won.Load()-900 {
			t.Fatalf("%d bytes, %v; won: %d", len(got), err, won.Load())
		}
		want(t, "written again", put(p, name, content(5)), fs.ErrExist)
		again, err := read(p, name)
		if err != nil || !bytes.Equal(again, got) {
			t.Errorf("replaced: %v", err)
		}
	}
}

func unfinished(t *testing.T, open func() place.Place) {
	p := start(t, open)
	for _, size := range []int{10, 9 << 20} {
		w, err := p.Create(ctx, "ee.x")
		must(t, err)
		_, err = w.Write(content(size))
		must(t, err)
		_, err = p.Open(ctx, "ee.x")
		want(t, "not finished", err, fs.ErrNotExist)
		w.Discard()
		_, err = p.Stat(ctx, "ee.x")
		want(t, "discarded", err, fs.ErrNotExist)
	}
	w, err := p.Create(ctx, "ee.x")
	must(t, err)
	must(t, w.Finish())
	w.Discard() // too late
	must(t, p.Tidy(ctx))
	if _, err := p.Stat(ctx, "ee.x"); err != nil {
		t.Error(err)
	}
}

// tidy: what writers have not ended stays, also while others end, and nothing else does.
func tidy(t *testing.T, open func() place.Place) {
	p := start(t, open)
	long, err := p.Create(ctx, "ee.long")
	must(t, err)
	b := content(20 << 20)
	for off := 0; off < len(b); off += 5 << 20 {
		_, err = long.Write(b[off : off+5<<20])
		must(t, err, p.Tidy(ctx))
	}
	again, err := p.Create(ctx, "ee.long") // another writer of the name
	must(t, err)
	_, err = again.Write(b)
	must(t, err)
	again.Discard()
	must(t, p.Tidy(ctx), long.Finish(), p.Tidy(ctx))
	got, err := read(p, "ee.long")
	if err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes of %d, %v", len(got), len(b), err)
	}
}

func list(t *testing.T, open func() place.Place) {
	p := start(t, open)
	var all []string
	for i := range 40 {
		n := fmt.Sprintf("%02x%02x.%d", i*13%256, i%3, i)
		all = append(all, n)
		must(t, put(p, n, content(i)))
	}
	slices.Sort(all)
	if got := listed(t, p, "", ""); !slices.Equal(got, all) {
		t.Errorf("%v, want %v", got, all)
	}
	for _, after := range []string{all[0], all[17], all[17] + "0", all[39], "00", "zz"} {
		i, found := slices.BinarySearch(all, after)
		if found {
			i++
		}
		if got := listed(t, p, "", after); !slices.Equal(got, all[i:]) {
			t.Errorf("after %s: %v, want %v", after, got, all[i:])
		}
	}
	for _, prefix := range []string{all[5], all[5][:4], all[5][:2], all[5][:1], "zzz"} {
		var with []string
		for _, n := range all {
			if strings.HasPrefix(n, prefix) {
				with = append(with, n)
			}
		}
		if got := listed(t, p, prefix, ""); !slices.Equal(got, with) {
			t.Errorf("with %s: %v, want %v", prefix, got, with)
		}
	}
	stop := errors.New("stop")
	calls := 0
	want(t, "stopped", p.List(ctx, "", "", func(place.File) error { calls++; return stop }), stop)
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
	must(t, p.List(ctx, "", "", func(f place.File) error { return p.Remove(ctx, f.Name) }))
	if got := listed(t, p, "", ""); len(got) > 0 {
		t.Errorf("removed while listed; left: %v", got)
	}
}

func aside(t *testing.T, open func() place.Place) {
	p := start(t, open)
	seen := map[string]bool{}
	for i := range 3 {
		must(t, put(p, "ab.x", content(i)))
		where, err := p.SetAside(ctx, "ab.x")
		if err != nil || !strings.HasPrefix(where, p.Name()+":") || seen[where] {
			t.Errorf("%q, %v", where, err)
		}
		seen[where] = true
		_, err = p.Open(ctx, "ab.x")
		want(t, "set aside", err, fs.ErrNotExist)
		if got := listed(t, p, "", ""); len(got) > 0 {
			t.Error(got)
		}
	}
}

// restart: another process finds what was finished, and nothing of the rest.
func restart(t *testing.T, open func() place.Place) {
	p := start(t, open)
	must(t, put(p, "aa.one", content(5)))
	for _, size := range []int{10, 9 << 20} {
		w, err := p.Create(ctx, "aa.two")
		must(t, err)
		_, err = w.Write(content(size))
		must(t, err) // and the process ends
	}
	p = start(t, open)
	if got := listed(t, p, "", ""); !slices.Equal(got, []string{"aa.one"}) {
		t.Error(got)
	}
	must(t, put(p, "aa.two", content(7)))
	if got, err := read(p, "aa.two"); err != nil || len(got) != 7 {
		t.Errorf("%d, %v", len(got), err)
	}
}

func canceled(t *testing.T, open func() place.Place) {
	p := start(t, open)
	must(t, put(p, "aa.one", content(5)))
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := p.List(gone, "", "", func(place.File) error { return nil }); err == nil {
		t.Error("a list goes on after its context")
	}
}
