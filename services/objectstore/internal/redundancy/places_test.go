package redundancy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// drives is a Keeper over real directories.
type drives struct {
	t      *testing.T
	root   string
	names  []string
	now    time.Time
	policy Policy
	gone   map[string]bool // places that do not open

	files *body.Files
	store *spread.Store
	l     *ledger.Ledger
	k     *Keeper
	fs    *pebblevfs.MemFS
	named map[string][]byte
}

func newDrives(t *testing.T, p Policy, names ...string) *drives {
	d := &drives{t: t, root: t.TempDir(), names: names, now: t0, policy: p, gone: map[string]bool{}, fs: pebblevfs.NewMem(), named: map[string][]byte{}}
	for _, n := range append([]string{"main"}, names...) {
		if err := os.Mkdir(filepath.Join(d.root, n), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(d.stop)
	return d
}

func (d *drives) stop() {
	if d.store != nil {
		if err := errors.Join(d.store.Close(), d.l.Close()); err != nil {
			d.t.Error(err)
		}
		d.store = nil
	}
}

func (d *drives) start() {
	d.t.Helper()
	d.stop()
	main := vfs.Dir(filepath.Join(d.root, "main"))
	d.files = body.NewFiles(main, nil)
	var slots []spread.Slot
	for _, n := range d.names {
		dir := filepath.Join(d.root, n)
		slots = append(slots, spread.Slot{Name: n, Local: true, Open: func(context.Context) (place.Place, error) {
			if _, err := os.Stat(dir); err != nil || d.gone[n] {
				return nil, fmt.Errorf("%w: %s", place.ErrOut, n)
			}
			return place.OpenDirectory(n, vfs.Dir(dir), nil)
		}})
	}
	var err error
	d.k = nil
	d.store, err = spread.Open(context.Background(), spread.Options{FS: main, Slots: slots, AckCopies: 2, Old: d.files, Hooks: Hooks(func() *Keeper { return d.k })})
	if err == nil {
		err = d.store.Recover()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	if d.l, err = ledger.Open(d.fs, "ledger"); err != nil {
		d.t.Fatal(err)
	}
	d.k, err = New(context.Background(), d.l, &Spread{Store: d.store, Old: d.files}, Options{Policy: d.policy, Rebalance: true,
		Now: func() time.Time { return d.now }, HealAfter: time.Hour, ScrubPeriod: 24 * time.Hour,
		Names: func(id string) (Naming, error) {
			if d.named[id] != nil {
				return Named, nil
			}
			return Unnamed, nil
		}})
	if err != nil {
		d.t.Fatal(err)
	}
}

func write(t *testing.T, s body.Store, id string, b []byte) {
	t.Helper()
	w, err := s.Create(id)
	for err == nil && len(b) > 0 {
		n := min(len(b), body.BlockSize)
		_, err = w.Write(b[:n])
		b = b[n:]
	}
	if err == nil {
		err = w.Finish()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (d *drives) write(n, size int) {
	d.t.Helper()
	b := make([]byte, size)
	rng := rand.NewChaCha8([32]byte{byte(n), byte(size)})
	_, _ = rng.Read(b)
	d.named[anID(n)] = b
	write(d.t, d.store, anID(n), b)
}

func (d *drives) settle() {
	d.t.Helper()
	ctx := context.Background()
	for range 20 {
		for _, fn := range []func(context.Context) error{d.k.look, d.k.listDue, d.k.sweepDue, d.k.tidy} {
			if err := fn(ctx); err != nil && !errors.Is(err, ErrAway) {
				d.t.Fatal(err)
			}
		}
		for found := true; found; {
			var err error
			if found, err = d.k.one(ctx); err != nil {
				d.t.Fatal(err)
			}
		}
		d.now = d.now.Add(10 * time.Minute)
	}
}

// check reads every body, and wants its files and nothing else at the places that are there.
func (d *drives) check(files int) {
	d.t.Helper()
	for id, want := range d.named {
		r, err := d.store.Open(id)
		if err != nil {
			d.t.Fatal(err)
		}
		got := make([]byte, len(want))
		if n, err := r.ReadAt(got, 0); n < len(want) && !errors.Is(err, io.EOF) || !bytes.Equal(got, want) {
			d.t.Fatalf("body %s: %d bytes, %v", id, n, err)
		}
		_ = r.Close()
	}
	n := 0
	for _, name := range d.names {
		n += len(d.on(name))
	}
	tot := d.l.Totals()
	if n != files || tot.Rows[ledger.Durable] != int64(files) || tot.Queued+tot.Dead != 0 {
		d.t.Fatalf("%d files, want %d; %+v", n, files, tot)
	}
}

func (d *drives) on(name string) (paths []string) {
	_ = filepath.WalkDir(filepath.Join(d.root, name, "files"), func(p string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			paths = append(paths, p)
		}
		return nil
	})
	return paths
}

// TestOverDrives plays the life of a store over real directories: bodies of the time before places, writes, coding, a flipped bit,
// a drive that is lost and replaced, one that is added, a lost ledger, another policy, removal.
func TestOverDrives(t *testing.T) {
	p := Policy{Copies: 2, Data: 2, Parity: 1, Threshold: 100 << 10, MinChunk: 16 << 10, MaxChunk: 1 << 20}
	d := newDrives(t, p, "a", "b", "c")
	old := body.NewFiles(vfs.Dir(filepath.Join(d.root, "main")), nil)
	if err := old.Recover(); err != nil {
		t.Fatal(err)
	}
	for i, size := range []int{1000, 3 << 20} {
		b := bytes.Repeat([]byte{byte(i + 1)}, size)
		d.named[anID(i)] = b
		write(t, old, anID(i), b)
	}
	d.start()
	d.write(10, 50<<10)
	d.write(11, 1<<20)
	d.write(12, 5<<20+7)
	d.settle()
	d.check(2*2 + 3*3)
	if left, _ := filepath.Glob(filepath.Join(d.root, "main", "blobs", "*", "*")); len(left) > 0 {
		t.Errorf("bodies of the time before places are still there: %v", left)
	}

	// A flipped bit in each file of a drive.
	for _, f := range d.on("b") {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 4
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hurt := int64(len(d.on("b")))
	if err := d.k.Scrub(); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if err := d.k.scrubDue(context.Background()); err != nil {
			t.Fatal(err)
		}
		d.settle()
	}
	d.check(13)
	if got := d.k.count.damaged.Load(); got != hurt {
		t.Errorf("%d damaged files were found; want %d", got, hurt)
	}

	// The ledger is lost, and so is a drive.
	d.stop()
	d.fs = pebblevfs.NewMem()
	if err := os.RemoveAll(filepath.Join(d.root, "c")); err != nil {
		t.Fatal(err)
	}
	d.start()
	d.settle()
	d.stop()
	if err := os.Mkdir(filepath.Join(d.root, "c"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := spread.Replace(vfs.Dir(filepath.Join(d.root, "main")), "c"); err != nil {
		t.Fatal(err)
	}
	d.start()
	d.settle()
	d.check(13)

	// Another drive, and another policy.
	if err := os.Mkdir(filepath.Join(d.root, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.names = append(d.names, "d")
	d.policy.Data, d.policy.Parity = 2, 2
	d.start()
	d.settle()
	d.check(2*2 + 3*4)
	for _, f := range d.on("d") {
		if !strings.Contains(f, ".copy") && !strings.Contains(f, fmt.Sprintf(".%08x.02-02-", d.k.Policy().Version)) {
			t.Errorf("%s is of another policy", f)
		}
	}

	for id := range d.named {
		delete(d.named, id)
		if err := d.store.Remove(id); err != nil {
			t.Fatal(err)
		}
	}
	d.settle()
	d.check(0)
}

// TestDamagedEverywhere: a body of which all files are damaged becomes a dead letter, although each attempt to read it meets that
// damage again, and reports it. Its files stay, and it is whole again when one of them is.
func TestDamagedEverywhere(t *testing.T) {
	d := newDrives(t, Policy{Copies: 2}, "a", "b", "c")
	d.start()
	d.write(1, 50<<10)
	d.settle()
	d.check(2)
	flip := func(paths []string) {
		t.Helper()
		for _, f := range paths {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			b[0] ^= 4
			if err := os.WriteFile(f, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var files []string
	for _, name := range d.names {
		files = append(files, d.on(name)...)
	}
	flip(files)
	if r, err := d.store.Open(anID(1)); err == nil {
		_ = r.Close()
		t.Fatal("a body without a whole file was opened")
	}
	for range 3 {
		d.settle()
	}
	if tot := d.l.Totals(); tot.Dead != 1 || tot.Queued != 0 || tot.Rows[ledger.Failed] != 2 {
		q, _ := d.l.Queue(3)
		t.Fatalf("%+v %+v", tot, q)
	}
	flip(files[:1])
	d.now = d.now.Add(25 * time.Hour)
	d.settle()
	if ok, err := d.l.Redrive(anID(1), d.now); !ok || err != nil {
		t.Fatal(ok, err)
	}
	d.settle()
	d.check(2)
}

// noSegments is a log that offers nothing.
type noSegments struct{}

func (noSegments) Offered() map[string]int64            { return nil }
func (noSegments) Settle(context.Context, string) error { return fs.ErrNotExist }

// A listing begins with Tidy. Every place that Status has can be tidied, those too that stand for the log and for the time before places.
func TestEveryPlaceThatIsShownCanBeTidied(t *testing.T) {
	d := newDrives(t, Policy{}, "a", "b")
	d.start()
	s := &Spread{Store: d.store, Old: d.files, Log: noSegments{}}
	names := map[string]bool{}
	for _, p := range s.Status(t.Context()) {
		names[p.Name] = true
		if err := s.Tidy(t.Context(), p.ID); err != nil {
			t.Errorf("tidy %s: %v", p.Name, err)
		}
	}
	if !names[LogPlace] || !names[OldPlace] || len(names) != 4 {
		t.Errorf("places %v", names)
	}
}
