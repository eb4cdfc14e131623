package spread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/vfstest"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
)

// rig is a store over local places of one file system, whose calls can be made to fail.
type rig struct {
	t      *testing.T
	fs     *crashfs.FS
	inject func(errorfs.Op) errorfs.Fault
	names  []string
	ack    int
	hooks  Hooks
	*Store
}

func newRig(t *testing.T, places, ack int) *rig {
	r := &rig{t: t, fs: crashfs.New(), ack: ack}
	r.check(r.fs.Mkdir("main"))
	for i := range places {
		n := string(rune('a' + i))
		r.names = append(r.names, n)
		r.check(r.fs.Mkdir(n))
	}
	r.start()
	return r
}

func (r *rig) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) fsys() vfs.FS {
	return errorfs.Wrap(r.fs, func(o errorfs.Op) errorfs.Fault {
		if r.inject == nil {
			return errorfs.Fault{}
		}
		return r.inject(o)
	})
}

// start opens the store, and ends the one before.
func (r *rig) start() {
	r.t.Helper()
	r.stop()
	f := r.fsys()
	s, err := Open(context.Background(), Options{FS: vfstest.Sub(f, "main"), Slots: slotsOf(f, r.names...), AckCopies: r.ack, Hooks: r.hooks})
	r.check(err)
	r.check(s.Recover())
	r.Store = s
}

func (r *rig) stop() {
	if r.Store != nil {
		r.check(r.Store.Close())
		r.Store = nil
	}
}

func bytesOf(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}

func id(n int) string { return fmt.Sprintf("%032x", n) }

func (r *rig) put(id string, b []byte) error {
	w, err := r.Create(id)
	if err != nil {
		return err
	}
	for block := range slices.Chunk(b, body.BlockSize) {
		if _, err := w.Write(block); err != nil {
			w.Discard()
			return err
		}
	}
	if err := w.Finish(); err != nil {
		w.Discard()
		return err
	}
	return nil
}

func (r *rig) get(id string) ([]byte, error) {
	rd, err := r.OpenBody(context.Background(), id)
	if err != nil {
		return nil, err
	}
	defer rd.Close()
	return io.ReadAll(io.NewSectionReader(rd, 0, rd.Size()))
}

func (r *rig) want(id string, b []byte) {
	r.t.Helper()
	if got, err := r.get(id); err != nil || !bytes.Equal(got, b) {
		r.t.Errorf("body %s: %d bytes of %d, %v", id, len(got), len(b), err)
	}
}

func (r *rig) where(id string) (out []string) {
	found, err := r.Find(context.Background(), id)
	if err != nil {
		r.t.Log(err)
	}
	for _, l := range found {
		out = append(out, l.Place+":"+strings.TrimPrefix(l.Name(), id+"."))
	}
	slices.Sort(out)
	return out
}

// file is where a fragment lies on the file system.
func file(l Located) string { return l.Place + "/files/" + l.Name()[:2] + "/" + l.Name() }

// flip changes a byte of a file.
func (r *rig) flip(name string, at int64) {
	r.t.Helper()
	f, err := r.fs.Open(name)
	r.check(err)
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	r.check(err)
	b[0] ^= 0x40
	_, err = f.WriteAt(b[:], at)
	r.check(errors.Join(err, f.Close()))
}

var code21 = Coding{1, erasure.Params{K: 2, M: 1, MinChunk: 16 << 10, MaxChunk: 256 << 10}}

// encode codes a body and removes its copies.
func (r *rig) encode(id string, c Coding) []Placed {
	r.t.Helper()
	ctx := context.Background()
	out, err := r.Encode(ctx, id, c, r.Places(id)[:c.K+c.M])
	r.check(err)
	for _, p := range out {
		r.check(p.Err)
		info, err := r.Verify(ctx, p.Located)
		if err != nil || info.Digest() != p.Digest || info.FileSize() != p.Size {
			r.t.Errorf("%+v: %+v, %v", p, info, err)
		}
	}
	found, err := r.Find(ctx, id)
	r.check(err)
	for _, l := range found {
		if l.IsCopy() {
			r.check(r.RemoveFile(ctx, l))
		}
	}
	return out
}

// TestNeverFewerCopies: a body has ack_copies copies, or is refused; a place that fails meanwhile is
// replaced by another.
func TestNeverFewerCopies(t *testing.T) {
	for _, kind := range []errorfs.Kind{errorfs.Create, errorfs.Write, errorfs.Sync, errorfs.Rename, errorfs.SyncDir, errorfs.Mkdir} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t, 3, 2)
			b := bytesOf(3*body.BlockSize + 5)
			bad := r.Places(id(1))[:1]
			r.inject = func(o errorfs.Op) (f errorfs.Fault) {
				if o.Kind == kind && slices.Contains(bad, o.Name[:1]) && o.Name != "main" {
					f.Err = syscall.EIO
				}
				return f
			}
			r.check(r.put(id(1), b))
			if w := r.where(id(1)); len(w) != 2 || slices.Contains(w, bad[0]+":copy") {
				t.Errorf("place %s fails: copies on %v", bad, w)
			}
			r.want(id(1), b)
			// With two of three places failing there is no body, and no weaker promise.
			other := "11" + id(2)[2:] // in a folder that is not there yet
			if first := bad[0]; first == "a" {
				bad = append(bad, "b")
			} else {
				bad = append(bad, "a")
			}
			err := r.put(other, b)
			if !errors.Is(err, body.ErrUnavailable) || errors.Is(err, body.ErrUnsynced) {
				t.Errorf("places %v fail: %v", bad, err)
			}
			r.inject = nil
			if w := r.where(other); len(w) != 0 {
				t.Errorf("left behind: %v", w)
			}
			r.want(id(1), b)
			r.start() // and with it the poison is gone
			r.check(r.put(other, b))
			r.want(other, b)
		})
	}
}

// TestFull: places without room are passed over; when too few have room, the error says so.
func TestFull(t *testing.T) {
	r := newRig(t, 3, 2)
	full := r.Places(id(1))[:1]
	r.inject = func(o errorfs.Op) (f errorfs.Fault) {
		if o.Kind == errorfs.Write && slices.Contains(full, o.Name[:1]) {
			f.Err = syscall.ENOSPC
		}
		return f
	}
	r.check(r.put(id(1), bytesOf(1000)))
	full = r.Places(id(2))[:2]
	if err := r.put(id(2), bytesOf(1000)); !vfs.IsFull(err) || errors.Is(err, body.ErrUnavailable) {
		t.Error(err)
	}
	full = nil
	r.check(r.put(id(2), bytesOf(1000))) // a full place is not poisoned
}

// TestAnyPlacesGone: a body of k+m shards is read without any m of its places, at the start and while
// the store runs; without more, the error says that they are out, and not that the body is lost.
func TestAnyPlacesGone(t *testing.T) {
	r := newRig(t, 6, 2)
	c := Coding{3, erasure.Params{K: 4, M: 2, MinChunk: 1, MaxChunk: 100 << 10}}
	b := bytesOf(1_234_567)
	r.check(r.put(id(1), b))
	r.encode(id(1), c)
	for lost := range 1 << 6 {
		var gone []string
		for i, n := range r.names {
			if lost>>i&1 == 1 {
				gone = append(gone, n)
			}
		}
		if len(gone) > 3 {
			continue
		}
		check := func(when string) {
			t.Helper()
			got, err := r.get(id(1))
			if len(gone) <= 2 && (err != nil || !bytes.Equal(got, b)) {
				t.Errorf("without %v %s: %v", gone, when, err)
			}
			if len(gone) == 3 && (!errors.Is(err, body.ErrUnavailable) || errors.Is(err, fs.ErrNotExist)) {
				t.Errorf("without %v %s: %v", gone, when, err)
			}
		}
		rename := func(from, to string) {
			for _, n := range gone {
				r.check(r.fs.Rename(from+n, to+n))
			}
		}
		rd, err := r.OpenBody(context.Background(), id(1)) // before they go
		r.check(err)
		rename("", "gone-")
		r.Retry(context.Background())
		check("while running")
		if got, err := io.ReadAll(io.NewSectionReader(rd, 0, rd.Size())); !bytes.Equal(got, b) {
			t.Errorf("without %v, opened before: %v", gone, err) // files that are open stay readable
		}
		r.check(rd.Close())
		r.start()
		check("at the start")
		rename("gone-", "")
		r.Retry(context.Background()) // they return late
		gone = nil
		check("returned")
		if w := r.where(id(1)); len(w) != 6 {
			t.Fatalf("%v", w)
		}
	}
}

// TestDamageIsMended: a damaged copy and a damaged shard are read around and written again.
func TestDamageIsMended(t *testing.T) {
	r := newRig(t, 3, 2)
	ctx := context.Background()
	b := bytesOf(700_000)
	r.check(r.put(id(1), b))
	r.check(r.put(id(2), b))
	shards := r.encode(id(2), code21)
	copies, err := r.Find(ctx, id(1))
	r.check(err)
	for _, l := range append(copies[:1:1], shards[0].Located, shards[2].Located) {
		for _, at := range []int64{3, 60, 100_000, -5} { // header, payload, payload, footer
			st, err := r.fs.Stat(file(l))
			r.check(err)
			if at < 0 {
				at += st.Size
			}
			r.flip(file(l), at)
			r.want(l.Body, b)
			if _, err := r.Verify(ctx, l); !errors.Is(err, erasure.ErrCorrupt) {
				t.Fatalf("%v at %d: %v", l, at, err)
			}
			if _, err := r.Heal(ctx, l, Coding{}); err != nil {
				t.Fatalf("%v at %d: %v", l, at, err)
			}
			_, err = r.Verify(ctx, l)
			r.check(err)
			r.want(l.Body, b)
		}
		r.check(r.RemoveFile(ctx, l))
		if _, err := r.Heal(ctx, l, Coding{}); err != nil {
			t.Fatal(err)
		}
		if again, err := r.Heal(ctx, l, Coding{}); err != nil || !again.Existed {
			t.Errorf("%+v, %v", again, err)
		}
	}
}

// TestReadersMend: Run writes again what readers found damaged.
func TestReadersMend(t *testing.T) {
	r := newRig(t, 3, 2)
	b := bytesOf(700_000)
	r.check(r.put(id(1), b))
	shards := r.encode(id(1), code21)
	r.flip(file(shards[1].Located), 1000)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for r.Stats(ctx).Repaired == 0 {
		r.want(id(1), b)
	}
	stop()
	r.check(<-ended)
	_, err := r.Verify(context.Background(), shards[1].Located)
	r.check(err)
	if st := r.Stats(context.Background()); st.DecodedBytes == 0 || st.Degraded == 0 {
		t.Errorf("%+v", st)
	}
	names, err := vfs.Names(r.fs, shards[1].Place+"/quarantine")
	if err != nil || len(names) != 1 {
		t.Errorf("set aside: %v, %v", names, err)
	}
}

// TestTooMuchDamageIsReported: what cannot be read is damage, by name, and never other bytes.
func TestTooMuchDamageIsReported(t *testing.T) {
	r := newRig(t, 3, 1)
	b := bytesOf(300_000)
	r.check(r.put(id(1), b))
	shards := r.encode(id(1), code21)
	for i, s := range shards[:2] {
		r.flip(file(s.Located), 500)
		if got, err := r.get(id(1)); i == 0 && (err != nil || !bytes.Equal(got, b)) || i == 1 && !errors.Is(err, body.ErrDamaged) {
			t.Errorf("%d damaged: %v", i+1, err)
		}
	}
	for _, s := range shards[:2] { // now with the headers
		r.flip(file(s.Located), 5)
	}
	if _, err := r.get(id(1)); !errors.Is(err, body.ErrDamaged) {
		t.Error(err)
	}
	if _, err := r.Heal(context.Background(), shards[0].Located, code21); !errors.Is(err, body.ErrDamaged) {
		t.Error(err)
	}
	if _, err := r.fs.Stat(file(shards[0].Located)); err != nil {
		t.Errorf("what is left of the body was moved away: %v", err)
	}
}

// TestPoliciesBesideEachOther: a body that is coded twice is read from either, without the other.
func TestPoliciesBesideEachOther(t *testing.T) {
	r := newRig(t, 4, 2)
	ctx := context.Background()
	b := bytesOf(500_000)
	r.check(r.put(id(1), b))
	one := r.encode(id(1), code21)
	two := r.encode(id(1), Coding{2, erasure.Params{K: 3, M: 1, MinChunk: 1, MaxChunk: 100_000}})
	r.want(id(1), b)
	for _, p := range two[:2] { // the newer one is not readable any more
		r.check(r.RemoveFile(ctx, p.Located))
	}
	r.want(id(1), b)
	if p, err := r.Heal(ctx, two[0].Located, Coding{2, erasure.Params{K: 3, M: 1, MinChunk: 1, MaxChunk: 100_000}}); err != nil || p.Digest != two[0].Digest {
		t.Errorf("made again from the older policy: %+v, %v", p, err)
	}
	for _, p := range one {
		r.check(r.RemoveFile(ctx, p.Located))
	}
	r.want(id(1), b)
}

// TestEncodeIsRepeatable: coding again keeps what is there and replaces what is damaged.
func TestEncodeIsRepeatable(t *testing.T) {
	r := newRig(t, 3, 2)
	ctx := context.Background()
	r.check(r.put(id(1), bytesOf(200_000)))
	first, err := r.Encode(ctx, id(1), code21, []string{"a", "b", ""})
	r.check(err)
	r.flip(file(first[1].Located), 5)
	again, err := r.Encode(ctx, id(1), code21, []string{"a", "b", "c"})
	r.check(err)
	for i, p := range again {
		if p.Err != nil || p.Existed != (i == 0) {
			t.Errorf("shard %d: %+v", i, p)
		}
		_, err := r.Verify(ctx, p.Located)
		r.check(err)
	}
	if _, err := r.Encode(ctx, id(9), code21, []string{"a", "b", "c"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a body that is not there: %v", err)
	}
}

// TestRemovedWhileOpen: a reader gets the body to its end, also from a place that it has not asked
// before; then all files go.
func TestRemovedWhileOpen(t *testing.T) {
	r := newRig(t, 3, 2)
	b := bytesOf(3 << 20)
	r.check(r.put(id(1), b))
	rd, err := r.OpenBody(context.Background(), id(1))
	r.check(err)
	r.check(r.Remove(id(1)))
	if _, err := r.Open(id(1)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := r.Remove(id(1)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	r.flip(file(rd.sources[0].where[0]), 2<<20)
	if got, err := io.ReadAll(io.NewSectionReader(rd, 0, rd.Size())); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	r.check(rd.Close())
	if w := r.where(id(1)); len(w) > 0 {
		t.Errorf("left: %v", w)
	}
}

// TestUnreadableIsNotDamage: a drive whose reads fail says nothing of the bytes.
func TestUnreadableIsNotDamage(t *testing.T) {
	r := newRig(t, 3, 2)
	b := bytesOf(700_000)
	r.check(r.put(id(1), b))
	r.check(r.put(id(2), b))
	r.encode(id(2), code21)
	bad := ""
	r.inject = func(o errorfs.Op) (f errorfs.Fault) {
		if o.Kind == errorfs.Open && strings.Contains(bad, o.Name[:1]) && strings.Contains(o.Name, "/files/") {
			f.Err = syscall.EIO
		}
		return f
	}
	for _, bad = range []string{"a", "b", "c"} {
		r.want(id(1), b)
		r.want(id(2), b)
	}
	bad = "abc"
	for i := 1; i <= 2; i++ {
		if _, err := r.get(id(i)); !errors.Is(err, body.ErrUnavailable) || errors.Is(err, body.ErrDamaged) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("body %d: %v", i, err)
		}
	}
	bad = ""
	r.want(id(1), b)
	r.want(id(2), b)
}

// TestHooks: the ledger hears of what is staged, removed and found damaged, and its hints are only hints.
func TestHooks(t *testing.T) {
	var heard []string
	hints := map[string][]Located{}
	r := newRig(t, 3, 2)
	r.hooks = Hooks{
		Staged: func(id string, size int64, places []string) {
			heard = append(heard, fmt.Sprintf("staged %s %d %d", id[31:], size, len(places)))
		},
		Removed:  func(id string) { heard = append(heard, "removed "+id[31:]) },
		Degraded: func(l Located, err error) { heard = append(heard, "degraded "+l.Body[31:]+" "+l.Place) },
		Locate:   func(id string) ([]Located, bool) { l, ok := hints[id]; return l, ok },
	}
	r.start()
	want := func(texts ...string) {
		t.Helper()
		if heard = slices.Compact(heard); !slices.Equal(heard, texts) { // damage is told each time that it is met
			t.Errorf("heard %q, want %q", heard, texts)
		}
		heard = nil
	}
	b := bytesOf(1000)
	r.check(r.put(id(1), b))
	want("staged 1 1000 2")
	w, err := r.Create(id(2))
	r.check(err)
	r.check(w.Finish())
	w.Discard()
	want("staged 2 0 2", "removed 2")
	shards := r.encode(id(1), code21)
	want()
	hints[id(1)] = []Located{{"a", erasure.Fragment{Body: id(1), Policy: 9, K: 2, M: 1}}, shards[1].Located}
	r.want(id(1), b) // by looking everywhere
	want("degraded 1 a")
	hints[id(1)] = []Located{shards[0].Located, shards[2].Located}
	r.want(id(1), b)
	want()
	r.flip(file(shards[0].Located), 60)
	r.want(id(1), b)
	want("degraded 1 " + shards[0].Place)
	r.check(r.Remove(id(1)))
	want("removed 1")
}
