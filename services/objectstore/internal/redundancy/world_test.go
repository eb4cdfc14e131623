package redundancy

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

var t0 = time.Unix(1_800_000_000, 0)

// disk is a file of the model.
type disk struct {
	File
	size    int64 // of the body
	damaged bool
}

// site is a place of the model.
type site struct {
	id    string
	files map[string]*disk
	down  bool
	full  bool
	old   bool // bodies of the time before places
	state spread.State
	// writing is the number of writers that are at work.
	writing int
	// drive is the size of the drive, bytes; 0: one that is never full. capacity is the setting.
	drive, capacity int64
}

// taken is what the files take, bytes.
func (s *site) taken() (n int64) {
	for _, f := range s.files {
		n += f.bytes()
	}
	return n
}

func (d *disk) bytes() int64 { return (d.size + int64(d.K) - 1) / int64(d.K) }

// world is a model of places that keeps Files's promises and no more, and looks after each removal whether a body that the log
// names can still be read.
type world struct {
	t     *testing.T
	now   time.Time
	sites map[string]*site // by name
	named map[string]int64 // bodies that the log names, with their sizes
	// awaited are bodies that a writer or a reader has, and that the log does not name.
	awaited map[string]bool
	hit     func(string)
	listed  func(*site)
	broke   error
	past    []string // what was done to files, by whom, in the order of it
}

// note adds to the history.
func (w *world) note(format string, args ...any) {
	w.past = append(w.past, w.now.Sub(t0).String()+" "+fmt.Sprintf(format, args...))
}

// of gives what happened to a body.
func (w *world) of(body string) string {
	var b strings.Builder
	for _, line := range w.past {
		if strings.Contains(line, body) || strings.Contains(line, "everything") {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

func newWorld(t *testing.T, places ...string) *world {
	w := &world{t: t, now: t0, sites: map[string]*site{}, named: map[string]int64{}, awaited: map[string]bool{}, hit: func(string) {}}
	for _, p := range places {
		w.sites[p] = &site{id: "id-" + p, files: map[string]*disk{}}
	}
	return w
}

func anID(n int) string { return fmt.Sprintf("%032x", n) }

// name has no index for copies, as on the real places.
func name(f File) string {
	if f.Kind == ledger.Copy {
		return f.Body + ".copy"
	}
	return fmt.Sprintf("%s.%08x.%02d-%02d-%02d", f.Body, f.Policy, f.K, f.M, f.Index)
}

func (w *world) at(id string) *site {
	for _, s := range w.sites {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (w *world) site(id string) (*site, error) {
	s := w.at(id)
	if s == nil || s.down || s.state == spread.Lost {
		return nil, fmt.Errorf("%s: %w", id, ErrAway)
	}
	return s, nil
}

// readable: a copy, or enough shards of one policy, are undamaged, at places that answer when up is set.
func (w *world) readable(body string, up bool) bool {
	shards := map[string]int{}
	for _, s := range w.sites {
		if up && s.down || s.state == spread.Lost {
			continue
		}
		for _, f := range s.files {
			if f.Body != body || f.damaged {
				continue
			}
			if f.Kind == ledger.Copy {
				return true
			}
			group := fmt.Sprint(f.Policy, f.K, f.M)
			if shards[group]++; shards[group] >= int(f.K) {
				return true
			}
		}
	}
	return false
}

// Status implements Files.
func (w *world) Status(context.Context) (list []PlaceState) {
	for _, n := range slices.Sorted(maps.Keys(w.sites)) {
		s := w.sites[n]
		st := PlaceState{Name: n, ID: s.id, Free: 1 << 40, Old: s.old, Capacity: s.capacity, State: s.state}
		if s.drive > 0 {
			st.Free = s.drive - s.taken()
		} else if s.capacity > 0 {
			st.Free = -1 // a bucket
		}
		if s.full {
			st.Free = 0
		}
		if s.down || s.state == spread.Lost {
			st.ID, st.Err = "", ErrAway
		}
		list = append(list, st)
	}
	return list
}

// Make implements Files. It may be ended at each file.
func (w *world) Make(_ context.Context, body string, size int64, _ Policy, want []File) []error {
	errs := make([]error, len(want))
	for i, f := range want {
		w.hit("file.before")
		s, err := w.site(f.Place)
		switch {
		case err != nil:
		case !w.readable(body, true):
			err = ErrUnreadable
		case s.old:
			w.broke = fmt.Errorf("%s is written to %s", name(f), s.id)
		case s.full || s.state != spread.InUse:
			err = ErrNoRoom
		case s.files[name(f)] == nil || s.files[name(f)].damaged:
			d := &disk{File: f, size: w.named[body]}
			if s.drive > 0 && s.taken()+d.bytes() > s.drive {
				err = ErrNoRoom
				break
			}
			s.files[name(f)] = d
		}
		errs[i] = err
		w.note("make %s at %s: %v", name(f), f.Place, err)
		w.hit("file.after")
	}
	return errs
}

// Verify implements Files.
func (w *world) Verify(_ context.Context, f File) (Verified, error) {
	s, err := w.site(f.Place)
	if err != nil {
		return Verified{}, err
	}
	d := s.files[name(f)]
	w.note("read %s at %s: there %t, damaged %t", name(f), f.Place, d != nil, d != nil && d.damaged)
	switch {
	case d == nil:
		return Verified{}, fs.ErrNotExist
	case d.damaged:
		return Verified{}, ErrDamaged
	}
	return Verified{BodySize: d.size, Bytes: d.size/int64(f.K) + 1, Checksum: crc32.ChecksumIEEE([]byte(name(f)))}, nil
}

// Stat implements Files.
func (w *world) Stat(_ context.Context, f File) error {
	s, err := w.site(f.Place)
	if err == nil && s.files[name(f)] == nil {
		err = fs.ErrNotExist
	}
	return err
}

// Remove implements Files, and checks what nobody may break.
func (w *world) Remove(_ context.Context, f File) error {
	s, err := w.site(f.Place)
	if err != nil {
		return err
	}
	was := w.readable(f.Body, false)
	w.note("remove %s from %s", name(f), f.Place)
	delete(s.files, name(f))
	if _, ok := w.named[f.Body]; ok && was && !w.readable(f.Body, false) {
		w.broke = fmt.Errorf("the body %s was readable until %s was removed from %s", f.Body, name(f), f.Place)
	}
	w.hit("file.removed")
	return nil
}

// Tidy implements Files: the files of the model are there whole or not at all.
func (w *world) Tidy(_ context.Context, place string) error {
	_, err := w.site(place)
	return err
}

// List implements Files. Once it has seen everything it calls listed, if that is set, a single time.
func (w *world) List(_ context.Context, place, behind string, fn func(Listed) error) error {
	s, err := w.site(place)
	if err != nil {
		return err
	}
	var names []string
	for n := range s.files {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		d := s.files[n]
		if d == nil || d.Body <= behind {
			continue
		}
		f := d.File
		f.Place = s.id
		if f.Kind == ledger.Copy {
			f.Index = 0 // the name does not tell
		}
		if err := fn(Listed{File: f, Bytes: d.size}); err != nil {
			return err
		}
	}
	if listed := w.listed; listed != nil {
		w.listed = nil
		listed(s)
	}
	return nil
}

// SetState implements Files.
func (w *world) SetState(place string, to spread.State) error {
	s := w.sites[place]
	if s == nil {
		return &spread.StateError{Place: place, To: to}
	}
	if to == spread.Drained && (s.state != spread.Draining || len(s.files) > 0) {
		w.broke = fmt.Errorf("%s is noted as empty, is %q and has %d files", place, s.state, len(s.files))
	}
	s.state = to
	return nil
}

// Writing implements Files.
func (w *world) Writing(place string) int { return w.sites[place].writing }

// write is what a PUT does: copies at some places, then the record, then the news for the ledger, which may be lost.
func (w *world) write(n int, size int64, places ...string) (ids []string) {
	b := anID(n)
	for _, p := range places {
		f := File{Key: ledger.Key{Body: b, Kind: ledger.Copy}, K: 1, Place: w.sites[p].id}
		w.sites[p].files[name(f)] = &disk{File: f, size: size}
		w.note("write %s, %d bytes, to %s", name(f), size, f.Place)
		ids = append(ids, w.sites[p].id)
	}
	w.named[b] = size
	return ids
}

// errKilled is thrown where a test ends the process.
var errKilled = errors.New("killed")

// rig is a Keeper that is driven by hand over a world.
type rig struct {
	*world
	fs  *pebblevfs.MemFS
	l   *ledger.Ledger
	k   *Keeper
	opt Options
}

func newRig(w *world, opt Options) *rig {
	r := &rig{world: w, fs: pebblevfs.NewMem(), opt: opt}
	r.opt.Now = func() time.Time { return w.now }
	r.opt.Names = func(b string) (Naming, error) {
		if _, ok := w.named[b]; ok {
			return Named, nil
		}
		if w.awaited[b] {
			return Awaited, nil
		}
		return Unnamed, nil
	}
	r.opt.Step = func(at string) { w.hit(at) }
	r.start()
	w.t.Cleanup(func() { _ = r.l.Close() })
	return r
}

func (r *rig) start() {
	r.t.Helper()
	var err error
	if r.l, err = ledger.Open(r.fs, "ledger"); err != nil {
		r.t.Fatal(err)
	}
	if r.k, err = New(context.Background(), r.l, r.world, r.opt); err != nil {
		r.t.Fatal(err)
	}
}

// crash ends the process: of the ledger's writes since it was opened, some of the last are lost. How many depends on the
// seed and on nothing else: when Pebble's own goroutines wrote them does not matter here, so a history can be played again.
func (r *rig) crash(rng *rand.Rand) {
	r.t.Helper()
	r.note("everything: the process ends")
	if err := r.l.Close(); err != nil {
		r.t.Fatal(err)
	}
	log := r.log()
	f, err := r.fs.Open(log)
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close(), r.fs.Remove(log)); err != nil {
		r.t.Fatal(err)
	}
	f, err = r.fs.Create(log, pebblevfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(b[:len(b)*rng.IntN(101)/100])
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.start()
}

// log gives the name of the newest log of the ledger's Pebble. It has what was written since the ledger was opened: what
// was there before is in tables then.
func (r *rig) log() (last string) {
	names, err := r.fs.List("ledger")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".log") {
			last = max(last, r.fs.PathJoin("ledger", n))
		}
	}
	if last == "" {
		r.t.Fatalf("the ledger has no log: %q", names)
	}
	return last
}

// lose removes the ledger.
func (r *rig) lose() {
	r.note("everything: the ledger is lost")
	_ = r.l.Close()
	r.fs = pebblevfs.NewMem()
	r.start()
}

// catch runs fn, and reports whether it was killed.
func catch(fn func()) (killed bool) {
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); !ok || !errors.Is(err, errKilled) {
				panic(p)
			}
			killed = true
		}
	}()
	fn()
	return false
}

// round does everything once that Run does all the time.
func (r *rig) round() {
	ctx := context.Background()
	for _, fn := range []func(context.Context) error{r.k.look, r.k.listDue, r.k.sweepDue, r.k.tidy} {
		if err := fn(ctx); err != nil && !errors.Is(err, ErrAway) {
			r.t.Fatal(err)
		}
	}
	for range 1000 {
		found, err := r.k.one(ctx)
		if err != nil {
			r.t.Fatal(err)
		}
		if !found {
			return
		}
	}
	r.t.Fatal("the queue never ends")
}

// settle plays rounds, with time between them, until nothing waits.
func (r *rig) settle() {
	r.t.Helper()
	for range 40 {
		r.round()
		if r.broke != nil {
			r.t.Fatal(r.broke)
		}
		r.now = r.now.Add(10 * time.Minute)
	}
}

// complete checks that each body has just what the policy wants, each file at a place of its own and known to the ledger as
// durable, and nothing else is anywhere.
func (r *rig) complete() {
	r.t.Helper()
	if r.broke != nil {
		r.t.Fatal(r.broke)
	}
	p := r.k.Policy()
	for b, size := range r.named {
		files, _ := p.Files(size)
		have, places := 0, map[string]bool{}
		for _, s := range r.sites {
			for _, f := range s.files {
				if f.Body != b {
					continue
				}
				right := f.Kind == ledger.Copy && !p.Coded(size) || f.Kind != ledger.Copy && p.Coded(size) && f.Policy == p.Version
				if f.damaged || !right || places[s.id] {
					r.t.Errorf("body %s, %d bytes: %s at %s, damaged %t", b, size, name(f.File), s.id, f.damaged)
				}
				places[s.id] = true
				have++
			}
		}
		if have != files {
			r.t.Errorf("body %s, %d bytes, has %d files; %s wants %d\n%s", b, size, have, p.Scheme(size), files, r.of(b))
		}
		rows, err := r.l.Rows(b)
		if err != nil || len(rows) != files {
			r.t.Errorf("body %s has %d rows, %v", b, len(rows), err)
		}
		for _, row := range rows {
			if row.State != ledger.Durable || !places[row.Place] || row.Size != size || row.Verified == 0 {
				r.t.Errorf("row %+v", row)
			}
		}
	}
	for _, s := range r.sites {
		for n := range s.files {
			if _, ok := r.named[n[:32]]; !ok {
				r.t.Errorf("garbage at %s: %s", s.id, n)
			}
		}
	}
	if tot := r.l.Totals(); tot.Queued != 0 || tot.Dead != 0 {
		list, _ := r.l.Queue(3)
		r.t.Errorf("%d messages, %d dead letters: %+v", tot.Queued, tot.Dead, list)
	}
	if r.t.Failed() {
		r.t.Fatal(r.dump())
	}
}

func (r *rig) dump() string {
	var b strings.Builder
	rows, _ := r.l.List(ledger.Key{}, 1000)
	for _, row := range rows {
		fmt.Fprintf(&b, "%s at %s: %s %s\n", row.Key, row.Place, row.State, row.Error)
	}
	for _, n := range slices.Sorted(maps.Keys(r.sites)) {
		s := r.sites[n]
		for _, f := range slices.Sorted(maps.Keys(s.files)) {
			d := s.files[f]
			fmt.Fprintf(&b, "%s (%s, down %t): %s damaged %t\n", n, s.id, s.down, f, d.damaged)
		}
	}
	return b.String()
}
