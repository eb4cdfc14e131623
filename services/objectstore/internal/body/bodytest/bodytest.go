// Package bodytest is the test that every body.Store must pass.
package bodytest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// Run tests a store. place makes an empty place and gives what opens it: each call of that
// is another process, which finds what the one before has left there.
func Run(t *testing.T, place func(t *testing.T) (open func() body.Store)) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, open func() body.Store)
	}{
		{"sizes", sizes}, {"ranges", ranges}, {"absent", absent}, {"unfinished", unfinished}, {"removed", removed},
		{"restart", restart}, {"aside", aside}, {"parallel", parallel},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, place(t)) })
	}
}

// ID is the id of the nth body of a test.
func ID(n int) string { return fmt.Sprintf("%02x%030x", n*37%256, n) }

// content is what a test stores under an id.
func content(id string, n int) []byte {
	b := make([]byte, n)
	seed := [32]byte{}
	copy(seed[:], id)
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

func start(t *testing.T, open func() body.Store) body.Store {
	t.Helper()
	s := open()
	if err := s.Recover(); err != nil {
		t.Fatal(err)
	}
	return s
}

// write gives a writer that has everything but Finish.
func write(s body.Store, id string, n int) (body.Writer, error) {
	w, err := s.Create(id)
	if err != nil {
		return nil, err
	}
	for block := range slices.Chunk(content(id, n), body.BlockSize) {
		if k, err := w.Write(block); err != nil || k != len(block) {
			w.Discard()
			return nil, fmt.Errorf("wrote %d of %d bytes: %w", k, len(block), err)
		}
	}
	return w, nil
}

func put(s body.Store, id string, n int) error {
	w, err := write(s, id, n)
	if err != nil {
		return err
	}
	return w.Finish()
}

func mustPut(t *testing.T, s body.Store, id string, n int) {
	t.Helper()
	if err := put(s, id, n); err != nil {
		t.Fatal(err)
	}
}

// check reads a body of n bytes.
func check(s body.Store, id string, n int) error {
	r, err := s.Open(id)
	if err != nil {
		return err
	}
	defer r.Close()
	return checkOpen(r, id, n)
}

func checkOpen(r body.Reader, id string, n int) error {
	got, err := io.ReadAll(io.NewSectionReader(r, 0, int64(n)+1))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, content(id, n)) {
		return fmt.Errorf("body %s reads %d bytes, which are not the %d that were written", id, len(got), n)
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantAbsent(t *testing.T, s body.Store, id string) {
	t.Helper()
	if r, err := s.Open(id); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open %s: %v, %v; want that it does not exist", id, r, err)
	}
	if slices.Contains(list(t, s), id) {
		t.Errorf("%s is listed", id)
	}
}

func list(t *testing.T, s body.Store) (ids []string) {
	t.Helper()
	must(t, s.List(func(id string) error { ids = append(ids, id); return nil }))
	slices.Sort(ids)
	return ids
}

func sizes(t *testing.T, open func() body.Store) {
	s := start(t, open)
	var ids []string
	for i, n := range []int{0, 1, body.BlockSize - 1, body.BlockSize, body.BlockSize + 1, 3*body.BlockSize + 12345} {
		mustPut(t, s, ID(i), n)
		if err := check(s, ID(i), n); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		ids = append(ids, ID(i))
	}
	slices.Sort(ids)
	if got := list(t, s); !slices.Equal(got, ids) {
		t.Errorf("listed %v, want %v", got, ids)
	}
	stop := errors.New("stop")
	calls := 0
	if err := s.List(func(string) error { calls++; return stop }); !errors.Is(err, stop) || calls != 1 {
		t.Errorf("a list that is stopped: %d calls, %v", calls, err)
	}
}

func ranges(t *testing.T, open func() body.Store) {
	s := start(t, open)
	const n = 2*body.BlockSize + 777
	mustPut(t, s, ID(0), n)
	r, err := s.Open(ID(0))
	must(t, err)
	defer r.Close()
	want := content(ID(0), n)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		off := rng.IntN(n)
		p := make([]byte, 1+rng.IntN(min(n-off, 70_000)))
		if k, err := r.ReadAt(p, int64(off)); k != len(p) || err != nil && err != io.EOF || !bytes.Equal(p, want[off:off+k]) {
			t.Fatalf("%d bytes from %d: %d, %v", len(p), off, k, err)
		}
	}
	p := make([]byte, 100)
	if k, err := r.ReadAt(p, n-40); k != 40 || err != io.EOF || !bytes.Equal(p[:k], want[n-40:]) {
		t.Errorf("over the end: %d bytes, %v", k, err)
	}
	if k, err := r.ReadAt(p, n); k != 0 || err != io.EOF {
		t.Errorf("behind the end: %d bytes, %v", k, err)
	}
}

func absent(t *testing.T, open func() body.Store) {
	s := start(t, open)
	wantAbsent(t, s, ID(1))
	if err := s.Remove(ID(1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove: %v", err)
	}
	if place, err := s.SetAside(ID(1)); place != "" || err != nil {
		t.Errorf("set aside: %q, %v", place, err)
	}
	if got := list(t, s); len(got) > 0 {
		t.Errorf("listed %v", got)
	}
}

// unfinished bodies are not there, and neither are discarded ones, finished or not.
func unfinished(t *testing.T, open func() body.Store) {
	s := start(t, open)
	w, err := write(s, ID(0), body.BlockSize)
	must(t, err)
	wantAbsent(t, s, ID(0))
	w.Discard()
	wantAbsent(t, s, ID(0))
	w, err = write(s, ID(1), body.BlockSize+5)
	must(t, err)
	must(t, w.Finish())
	must(t, check(s, ID(1), body.BlockSize+5))
	w.Discard()
	wantAbsent(t, s, ID(1))
	w, err = s.Create(ID(2))
	must(t, err)
	w.Discard()
	wantAbsent(t, s, ID(2))
}

// removed bodies are read to their end by those who have them open.
func removed(t *testing.T, open func() body.Store) {
	s := start(t, open)
	const n = body.BlockSize + 99
	mustPut(t, s, ID(0), n)
	mustPut(t, s, ID(1), n)
	r, err := s.Open(ID(0))
	must(t, err)
	defer r.Close()
	must(t, s.Remove(ID(0)))
	wantAbsent(t, s, ID(0))
	if err := checkOpen(r, ID(0), n); err != nil {
		t.Errorf("open, and removed meanwhile: %v", err)
	}
	must(t, s.List(s.Remove))
	if got := list(t, s); len(got) > 0 {
		t.Errorf("removed while they were listed; %v is left", got)
	}
}

// restart: another process finds what was finished, and nothing of the rest.
func restart(t *testing.T, open func() body.Store) {
	s := start(t, open)
	mustPut(t, s, ID(0), 1000)
	_, err := write(s, ID(1), body.BlockSize) // and the process ends
	must(t, err)
	for range 2 {
		s = start(t, open)
		must(t, check(s, ID(0), 1000))
		wantAbsent(t, s, ID(1))
		if got := list(t, s); !slices.Equal(got, []string{ID(0)}) {
			t.Errorf("listed %v", got)
		}
	}
	mustPut(t, s, ID(1), 10) // nobody has the id: it names nothing
	must(t, check(s, ID(1), 10))
}

func aside(t *testing.T, open func() body.Store) {
	s := start(t, open)
	mustPut(t, s, ID(0), 500)
	mustPut(t, s, ID(1), 600)
	place, err := s.SetAside(ID(0))
	if err != nil || place == "" {
		t.Fatalf("set aside: %q, %v", place, err)
	}
	wantAbsent(t, s, ID(0))
	s = start(t, open)
	wantAbsent(t, s, ID(0))
	must(t, check(s, ID(1), 600))
}

func parallel(t *testing.T, open func() body.Store) {
	s := start(t, open)
	const writers, each = 8, 6
	var wg sync.WaitGroup
	for g := range writers {
		wg.Go(func() {
			for i := range each {
				id, n := ID(g*each+i), 1000*i+g
				if err := errors.Join(put(s, id, n), check(s, id, n)); err != nil {
					t.Errorf("%s: %v", id, err)
				}
				if i%3 == 0 {
					if err := s.Remove(id); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if got := list(t, s); len(got) != writers*each*2/3 {
		t.Errorf("%d bodies are left", len(got))
	}
}

// Disk is a file system that records its calls, as internal/harness/crashfs does.
type Disk interface {
	// FS is the disk in use.
	FS() vfs.FS
	// Calls is the number of recorded ones.
	Calls() int
	// Cuts calls fn with disks that a loss of power, or of the process, may leave behind
	// each number of calls.
	Cuts(fn func(calls int, how string, left vfs.FS))
}

// fact is what became of a body: the calls that were recorded when it was finished, and
// when it was removed or discarded; -1 never.
type fact struct{ size, finished, removed int }

// PowerLoss tests a store whose bytes lie on disks: what was finished when the power went is
// there, byte for byte; Recover can be cut off as well. A store over several drives has
// each in a directory of the one file system. It gives the number of disks that were
// tried, and the first failure.
func PowerLoss(disk Disk, open func(vfs.FS) body.Store) (disks int, err error) {
	facts, err := history(disk, open(disk.FS()))
	if err != nil {
		return 0, err
	}
	disk.Cuts(func(calls int, how string, left vfs.FS) {
		if err != nil {
			return
		}
		disks++
		for range 2 { // a start, and one more
			if err = recovered(open(left), facts, calls); err != nil {
				err = fmt.Errorf("behind call %d, %s: %w", calls, how, err)
				return
			}
		}
	})
	return disks, err
}

// history uses a store: bodies are finished, discarded and removed.
func history(disk Disk, s body.Store) (map[string]*fact, error) {
	if err := s.Recover(); err != nil {
		return nil, err
	}
	facts := map[string]*fact{}
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range 14 {
		id, f := ID(i), &fact{size: rng.IntN(3000), removed: -1}
		if i >= 10 { // in a folder that Files has already
			id = ID(i%10 + 256)
		}
		facts[id] = f
		w, err := write(s, id, f.size)
		if err != nil {
			return nil, err
		}
		if i%5 == 4 {
			w.Discard()
			f.removed = 0
		} else if err := w.Finish(); err != nil {
			return nil, err
		}
		if f.finished = disk.Calls(); i%4 == 3 && f.removed < 0 {
			f.removed = f.finished
			if err := s.Remove(id); err != nil {
				return nil, err
			}
		}
	}
	return facts, nil
}

// recovered checks a store after a power loss behind so many calls: bodies are there, garbage can be
// removed, and it can be used.
func recovered(s body.Store, facts map[string]*fact, calls int) error {
	if err := s.Recover(); err != nil {
		return err
	}
	for id, f := range facts {
		if f.finished > calls || f.removed >= 0 && f.removed <= calls {
			continue
		}
		if err := check(s, id, f.size); err != nil {
			return fmt.Errorf("%s was finished by call %d: %w", id, f.finished, err)
		}
	}
	err := s.List(func(id string) error {
		if f := facts[id]; f == nil || f.finished > calls || f.removed >= 0 && f.removed <= calls {
			return s.Remove(id)
		}
		return nil
	})
	return errors.Join(err, put(s, ID(99), 100), check(s, ID(99), 100), s.Remove(ID(99)))
}
