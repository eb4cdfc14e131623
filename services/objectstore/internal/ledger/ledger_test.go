package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

func open(t *testing.T, fsys pebblevfs.FS) *Ledger {
	t.Helper()
	l, err := Open(fsys, "ledger")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func body(n int) string { return fmt.Sprintf("%032x", n) }

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// model is what the ledger should be: a map.
type model map[Key]Row

func (m model) check(t *testing.T, l *Ledger) {
	t.Helper()
	totals, places, lost := map[State]int64{}, map[string]int{}, int64(0)
	uses := map[string]Use{}
	var keys []Key
	for k, r := range m {
		totals[r.State]++
		places[r.Place]++
		if r.State == Uploaded || r.State == Verifying || r.State == Durable || r.State == Removing {
			u := uses[r.Place]
			u.Files++
			if r.Size > 0 {
				u.Bytes += (r.Size + max(int64(r.K), 1) - 1) / max(int64(r.K), 1)
			}
			uses[r.Place] = u
		}
		if r.Lost {
			lost++
		}
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Key) int {
		if a.Less(b) {
			return -1
		}
		return 1
	})
	var got []Key
	for behind := (Key{}); ; {
		rows := must[[]Row](t)(l.List(behind, 7))
		for _, r := range rows {
			if m[r.Key] != r {
				t.Fatalf("row %+v; want %+v", r, m[r.Key])
			}
			got = append(got, r.Key)
			behind = r.Key
		}
		if len(rows) == 0 {
			break
		}
	}
	if !slices.Equal(got, keys) {
		t.Fatalf("keys %v; want %v", got, keys)
	}
	have := l.Totals()
	if have.Lost != lost {
		t.Fatalf("%d files are lost; want %d", have.Lost, lost)
	}
	for _, s := range States() {
		if have.Rows[s] != totals[s] {
			t.Fatalf("%d rows are %s; want %d", have.Rows[s], s, totals[s])
		}
		n, behind := int64(0), Key{}
		for {
			rows := must[[]Row](t)(l.InState(s, behind, 5))
			for _, r := range rows {
				if r.State != s {
					t.Fatalf("%s is listed as %s", r.Key, s)
				}
				n, behind = n+1, r.Key
			}
			if len(rows) == 0 {
				break
			}
		}
		if n != totals[s] {
			t.Fatalf("%d rows are listed as %s; want %d", n, s, totals[s])
		}
	}
	for p, want := range places {
		if got := l.Use(p); got != uses[p] {
			t.Fatalf("%s has %+v; want %+v", p, got, uses[p])
		}
		if rows := must[[]Row](t)(l.AtPlace(p, Key{}, 1000)); len(rows) != want {
			t.Fatalf("%d rows at %s; want %d", len(rows), p, want)
		}
	}
}

// TestUsesOfAnEarlierRelease: a ledger without counts of what places have gets them when it is opened.
func TestUsesOfAnEarlierRelease(t *testing.T) {
	fsys := pebblevfs.NewMem()
	l := open(t, fsys)
	for i := range 5 {
		r := Row{Key: Key{Body: body(i), Kind: Data}, K: 4, M: 2, Place: fmt.Sprint("p", i%2), Size: 1001, State: Durable}
		must[Row](t)(l.Insert(r, t0))
	}
	err := l.update(func(c *change) error {
		return errors.Join(c.del(useKey("p0")), c.del(useKey("p1")), c.del([]byte{spaceTotals, spaceUse}))
	})
	if err = errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l = open(t, fsys)
		if a, b := l.Use("p0"), l.Use("p1"); a != (Use{3, 753}) || b != (Use{2, 502}) || l.Use("p2") != (Use{}) {
			t.Errorf("%+v, %+v", a, b)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRandomHistories plays events at random against a map, closes and opens in between, and loses the last writes
// of a killed process: what is left is always what the map was at some time, and never a mixture.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			fsys := pebblevfs.NewCrashableMem()
			l := open(t, fsys)
			if !l.Fresh() {
				t.Error("a new ledger is not fresh")
			}
			m := model{}
			for i := range 300 {
				history(t, rng, l, m, t0.Add(time.Duration(i)*time.Second))
				if rng.IntN(40) == 0 {
					if err := l.Close(); err != nil {
						t.Fatal(err)
					}
					if l = open(t, fsys); l.Fresh() {
						t.Error("a ledger that was closed is fresh")
					}
				}
			}
			m.check(t, l)
		})
	}
}

func history(t *testing.T, rng *rand.Rand, l *Ledger, m model, now time.Time) {
	t.Helper()
	k := Key{Body: body(rng.IntN(5)), Policy: uint32(rng.IntN(3)), Kind: Kind(1 + rng.IntN(3)), Index: uint16(rng.IntN(3))}
	was, ok := m[k]
	switch rng.IntN(6) {
	case 0:
		r, err := l.Insert(Row{Key: k, Place: fmt.Sprint("place ", rng.IntN(3)), State: Staged, Size: 9}, now)
		if errors.Is(err, ErrExists) != ok || err != nil && !ok {
			t.Fatalf("insert %s, which is there: %t: %v", k, ok, err)
		}
		if err == nil {
			m[k] = r
		}
	case 1:
		if !ok || rng.IntN(3) > 0 {
			return
		}
		if err := l.Forget(was); err != nil {
			t.Fatal(err)
		}
		delete(m, k)
	case 2: // with a version that is over
		was.Version--
		if _, err := l.Apply(was, Drop, now, nil, nil); !errors.Is(err, ErrRaced) && !errors.Is(err, ErrTransition) {
			t.Fatalf("an old version was applied: %v", err)
		}
	default:
		e := Begin + Event(rng.IntN(int(Turned)))
		r, err := l.Apply(was, e, now, nil, func(r *Row) { r.Place = fmt.Sprint("place ", rng.IntN(3)) })
		if err == nil {
			m[k] = r
		} else if ok && !errors.Is(err, ErrTransition) {
			t.Fatal(err)
		}
	}
}

// TestPowerLoss: whatever a crash leaves is a prefix of the changes, with totals that fit.
func TestPowerLoss(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 2))
		fsys := pebblevfs.NewCrashableMem()
		l := open(t, fsys)
		m := model{}
		states := []model{{}}
		for i := range 60 {
			history(t, rng, l, m, t0.Add(time.Duration(i)*time.Second))
			states = append(states, maps(m))
			if i == 30 {
				if err := l.db.Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		left := fsys.CrashClone(pebblevfs.CrashCloneCfg{UnsyncedDataPercent: int(seed * 100 / 29), RNG: rng})
		l2 := open(t, left)
		have := model{}
		for _, r := range must[[]Row](t)(l2.List(Key{}, 1000)) {
			have[r.Key] = r
		}
		at := slices.IndexFunc(states, func(s model) bool { return equal(s, have) })
		if at < 0 {
			t.Fatalf("seed %d: what is left was never there: %v", seed, have)
		}
		have.check(t, l2)
	}
}

func maps(m model) model {
	c := model{}
	for k, v := range m {
		c[k] = v
	}
	return c
}

func equal(a, b model) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

// TestRacers: of any number of workers exactly one takes a row.
func TestRacers(t *testing.T) {
	l := open(t, pebblevfs.NewMem())
	for i := range 50 {
		r := must[Row](t)(l.Insert(Row{Key: Key{Body: body(i), Kind: Copy}, Place: "p", State: Staged}, t0))
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for range 4 {
			wg.Go(func() {
				_, err := l.Apply(r, Begin, t0, nil, nil)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				} else if !errors.Is(err, ErrRaced) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won != 1 {
			t.Fatalf("%d workers have the row", won)
		}
	}
}

// TestDamagedLedgerBeginsAgain: files that no ledger can be read from are thrown away.
func TestDamagedLedgerBeginsAgain(t *testing.T) {
	fsys := pebblevfs.NewMem()
	l := open(t, fsys)
	must[Row](t)(l.Insert(Row{Key: Key{Body: aBody, Kind: Copy}, Place: "p", State: Staged}, t0))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	names := must[[]string](t)(fsys.List("ledger"))
	for _, n := range names {
		f, err := fsys.Create("ledger/"+n, pebblevfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.Write([]byte("not a ledger"))
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	l = open(t, fsys)
	if rows := must[[]Row](t)(l.List(Key{}, 10)); !l.Fresh() || len(rows) > 0 {
		t.Errorf("fresh %t, rows %v", l.Fresh(), rows)
	}
}

// TestAnotherVersion: values of another release are thrown away too.
func TestAnotherVersion(t *testing.T) {
	fsys := pebblevfs.NewMem()
	l := open(t, fsys)
	if err := l.update(func(c *change) error { return c.set([]byte{spaceFormat}, []byte{formatVersion + 1}) }); err != nil {
		t.Fatal(err)
	}
	must[Row](t)(l.Insert(Row{Key: Key{Body: aBody, Kind: Copy}, Place: "p", State: Staged}, t0))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l = open(t, fsys); !l.Fresh() || l.Totals().Rows[Staged] != 0 {
		t.Error("the ledger of another version is in use")
	}
}

// TestFatalIsDown: where Pebble would end the process, every call answers ErrDown.
func TestFatalIsDown(t *testing.T) {
	l := open(t, pebblevfs.NewMem())
	err := l.db.do(func() error { l.db.Fatalf("no more"); return nil })
	if !errors.Is(err, ErrDown) {
		t.Fatal(err)
	}
	if _, err := l.Insert(aRow(Staged), t0); !errors.Is(err, ErrDown) || !errors.Is(l.Err(), ErrDown) {
		t.Errorf("%v, %v", err, l.Err())
	}
	if _, _, err := l.Take(t0, time.Minute); !errors.Is(err, ErrDown) {
		t.Error(err)
	}
}
