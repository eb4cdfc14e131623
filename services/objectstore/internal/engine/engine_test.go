package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

func runTest(t testing.TB, e *Engine) *testEngine {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	te := &testEngine{Engine: e, t: t}
	te.done = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-ended, e.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Cleanup(te.done)
	if err := e.CreateBucket(context.Background(), "bkt", epoch); err != nil && !errors.Is(err, ErrBucketExists) {
		t.Fatal(err)
	}
	return te
}

func (e *testEngine) put(key string, body []byte) Object {
	e.t.Helper()
	o, err := e.Engine.Put(context.Background(), sized(key, body), body, Cond{})
	if err != nil {
		e.t.Fatal(err)
	}
	return o
}

func sized(key string, body []byte) Object {
	o := obj(key)
	o.Size = int64(len(body))
	return o
}

func (e *testEngine) putFile(key string, body []byte) {
	e.t.Helper()
	b, err := e.NewBlob("bkt", key)
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := b.Write(body); err != nil {
		e.t.Fatal(err)
	}
	x, err := b.Finish()
	if err != nil {
		e.t.Fatal(err)
	}
	o := sized(key, body)
	o.Extents = []Extent{x}
	if _, err := e.Engine.Put(context.Background(), o, nil, Cond{}); err != nil {
		e.t.Fatal(err)
	}
}

func (e *testEngine) body(key string) ([]byte, error) {
	h, err := e.Get("bkt", key)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var b bytes.Buffer
	err = h.Copy(&b, 0, h.Object.Size)
	return b.Bytes(), err
}

func (e *testEngine) want(key string, body []byte) {
	e.t.Helper()
	got, err := e.body(key)
	if err != nil || !bytes.Equal(got, body) {
		e.t.Errorf("get %q: %d bytes, %v; want %d", key, len(got), err, len(body))
	}
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return b
}

// history writes, replaces and deletes, and gives what must be there.
func history(e *testEngine, seed uint64, ops int) map[string][]byte {
	e.t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	want := map[string][]byte{}
	for i := range ops {
		key := fmt.Sprintf("k/%02d", rnd.IntN(40))
		body := pattern(rnd.IntN(9000), byte(i))
		switch rnd.IntN(10) {
		case 0, 1:
			if err := removeKey(context.Background(), e, key); err != nil {
				e.t.Fatal(err)
			}
			delete(want, key)
		case 2:
			body = pattern(BlockSize+rnd.IntN(5000), byte(i))
			e.putFile(key, body)
			want[key] = body
		default:
			e.put(key, body)
			want[key] = body
		}
	}
	return want
}

func (e *testEngine) wantAll(want map[string][]byte) {
	e.t.Helper()
	page, err := e.List("bkt", ListQuery{Max: 1 << 20})
	if err != nil {
		e.t.Fatal(err)
	}
	if len(page.Objects) != len(want) {
		e.t.Errorf("%d objects, want %d", len(page.Objects), len(want))
	}
	for k, b := range want {
		e.want(k, b)
	}
	var total int64
	for _, b := range want {
		total += int64(len(b))
	}
	if s := e.Stats(); s.Objects != int64(len(want)) || s.ObjectBytes != total {
		e.t.Errorf("counts say %d objects with %d bytes, want %d with %d", s.Objects, s.ObjectBytes, len(want), total)
	}
}

func TestReopenAndRebuildKeepEverything(t *testing.T) {
	dir := t.TempDir()
	opt := Options{Dir: dir, SegmentBytes: 128 << 10, InlineBytes: 1 << 20}
	e := openTest(t, opt)
	want := history(e, 1, 300)
	e.wantAll(want)
	live := e.Stats().LiveBytes
	e.done()

	e = openTest(t, opt)
	e.wantAll(want)
	e.done()

	if err := os.RemoveAll(filepath.Join(dir, "index")); err != nil {
		t.Fatal(err)
	}
	e = openTest(t, opt)
	e.wantAll(want)
	if got := e.Stats().LiveBytes; got != live {
		t.Errorf("the rebuilt index counts %d live bytes, want %d", got, live)
	}
	files, err := filepath.Glob(filepath.Join(dir, "blobs", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	large := 0
	for _, b := range want {
		if len(b) > BlockSize {
			large++
		}
	}
	if len(files) != large {
		t.Errorf("%d body files, want %d", len(files), large)
	}
}

func TestReclaimKeepsWhatIsLive(t *testing.T) {
	dir := t.TempDir()
	opt := Options{Dir: dir, SegmentBytes: 64 << 10, ReclaimBelow: 0.9}
	e := openTest(t, opt)
	want := history(e, 2, 400)
	before := e.Stats()
	for {
		n, err := e.Reclaim(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	after := e.Stats()
	if after.Segments >= before.Segments || after.LogBytes >= before.LogBytes {
		t.Errorf("nothing was reclaimed: %+v, before %+v", after, before)
	}
	e.wantAll(want)
	e.done()
	if err := os.RemoveAll(filepath.Join(dir, "index")); err != nil {
		t.Fatal(err)
	}
	e = openTest(t, opt)
	e.wantAll(want)
}

// copyStore copies a store's log and body files, not its index or lock.
func copyStore(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	for _, d := range []string{"log", "blobs", "tmp"} {
		if err := os.CopyFS(filepath.Join(to, d), os.DirFS(filepath.Join(from, d))); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func lastSegment(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	if err != nil || len(files) == 0 {
		t.Fatal("no segments", err)
	}
	return files[len(files)-1]
}

func TestTornTailAtEveryByteOfTheLastRecord(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir})
	e.put("whole", pattern(100, 1))
	file := lastSegment(t, dir)
	start := e.head.pos.off
	e.put("last", pattern(60, 2))
	e.done()
	full, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for cut := start; cut < int64(len(full)); cut++ {
		for _, junk := range []string{"", "zeros", "noise"} {
			d := copyStore(t, dir)
			b := bytes.Clone(full[:cut])
			switch junk {
			case "zeros":
				b = append(b, make([]byte, 50)...)
			case "noise":
				b = append(b, pattern(50, 99)...)
			}
			if err := os.WriteFile(lastSegment(t, d), b, 0o600); err != nil {
				t.Fatal(err)
			}
			index := pebblevfs.NewMem()
			e := openTest(t, Options{Dir: d, IndexFS: index})
			e.want("whole", pattern(100, 1))
			if _, err := e.body("last"); !errors.Is(err, ErrNotFound) {
				t.Fatalf("cut at %d, %q: the torn record is there: %v", cut, junk, err)
			}
			e.put("next", []byte("n"))
			e.done()
			e = openTest(t, Options{Dir: d, IndexFS: index})
			e.want("next", []byte("n"))
			e.done()
			if testing.Short() {
				break
			}
		}
	}
}

// flipOnDisk flips a bit of a file.
func flipOnDisk(t testing.TB, file string, at int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := []byte{0}
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func TestReadsVerify(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir})
	e.put("small", pattern(5000, 1))
	e.putFile("large", pattern(3*BlockSize+5, 2))
	x, err := e.idx.current("bkt", "small")
	if err != nil {
		t.Fatal(err)
	}
	flipOnDisk(t, lastSegment(t, dir), x.pos.off+int64(x.headLen)+4000)
	files, _ := filepath.Glob(filepath.Join(dir, "blobs", "*", "*"))
	flipOnDisk(t, files[0], 2*BlockSize+9)
	for _, k := range []string{"small", "large"} {
		if _, err := e.body(k); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", k, err)
		}
	}
	h, err := e.Get("bkt", "large")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var b bytes.Buffer
	if err := h.Copy(&b, 0, h.Object.Size); !errors.Is(err, ErrCorrupt) || b.Len() != 2*BlockSize {
		t.Errorf("%d bytes were given before the damage was seen, %v", b.Len(), err)
	}
}

func TestFailedFsyncPoisons(t *testing.T) {
	dir := t.TempDir()
	fsys := newFaultFS(dir)
	e := openTest(t, Options{Dir: dir, FS: fsys})
	e.put("before", []byte("b"))
	fsys.failSync.Store(true)
	_, err := e.Put(context.Background(), sized("x", []byte("x")), []byte("x"), Cond{})
	if !errors.Is(err, ErrPoisoned) {
		t.Fatalf("put: %v", err)
	}
	fsys.failSync.Store(false)
	n := fsys.syncs.Load()
	if _, err := e.Put(context.Background(), sized("y", []byte("y")), []byte("y"), Cond{}); !errors.Is(err, ErrPoisoned) {
		t.Errorf("a put after the failed fsync: %v", err)
	}
	if fsys.syncs.Load() != n {
		t.Error("fsync was tried again")
	}
	e.want("before", []byte("b"))
	if _, err := e.body("x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unacknowledged object can be read: %v", err)
	}
	e.done()
	e = openTest(t, Options{Dir: dir})
	e.want("before", []byte("b"))
}

func TestFailedWriteIsCutOffAndWritingGoesOn(t *testing.T) {
	dir := t.TempDir()
	fsys := newFaultFS(dir)
	opt := Options{Dir: dir, FS: fsys}
	e := openTest(t, opt)
	e.put("before", []byte("b"))
	fsys.failWrite.Store(true)
	if _, err := e.Put(context.Background(), sized("x", []byte("x")), []byte("x"), Cond{}); !errors.Is(err, errInjected) {
		t.Fatalf("put: %v", err)
	}
	fsys.failWrite.Store(false)
	e.put("after", []byte("a"))
	e.done()
	e = openTest(t, opt)
	e.wantAll(map[string][]byte{"before": []byte("b"), "after": []byte("a")})
}

func TestOneCreateWins(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	for k := range 50 {
		key := fmt.Sprint("race/", k)
		var won atomic.Int64
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				body := []byte(fmt.Sprint(i))
				_, err := e.Put(context.Background(), sized(key, body), body, Cond{Absent: true})
				if err == nil {
					won.Add(1)
				} else if !errors.Is(err, ErrPrecondition) {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%s: %d winners", key, won.Load())
		}
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	dir := t.TempDir()
	openTest(t, Options{Dir: dir})
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("open: %v, want vfs.ErrLocked", err)
	}
}

func TestTailGivesEveryChangeOnce(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir, SegmentBytes: 8 << 10})
	want := []string{}
	for i := range 100 {
		k := fmt.Sprint("t/", i)
		e.put(k, pattern(300, 1))
		want = append(want, "+"+k)
		if i%7 == 0 {
			if err := removeKey(context.Background(), e, k); err != nil {
				t.Fatal(err)
			}
			want = append(want, "-"+k)
		}
	}
	cur := e.Tail(0)
	var got []string
	for {
		evs, _, more, err := cur.Read(9, func(*Event) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range evs {
			got = append(got, map[bool]string{true: "-", false: "+"}[ev.Removed]+ev.Key)
		}
		if !more {
			break
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if evs, _, more, err := cur.Read(9, func(*Event) bool { return true }); len(evs) != 0 || more || err != nil {
		t.Errorf("at the end: %v %v %v", evs, more, err)
	}
}

// removeKey deletes an object without a condition.
func removeKey(ctx context.Context, e deleter, key string) error {
	_, err := e.Delete(ctx, "bkt", Deletion{Key: key, Modified: epoch})
	return err
}

type deleter interface {
	Delete(ctx context.Context, bucket string, d Deletion) (Deletion, error)
}
