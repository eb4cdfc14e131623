package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

func TestRetainOnlyEverStrengthensWithoutBypass(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(days int) time.Time { return now.AddDate(0, 0, days) }
	gov := func(days int) Lock { return Lock{Mode: Governance, Until: at(days)} }
	comp := func(days int) Lock { return Lock{Mode: Compliance, Until: at(days)} }
	for _, c := range []struct {
		from, to      Lock
		plain, bypass bool // whether it may become so
	}{
		{Lock{}, gov(1), true, true},
		{Lock{}, comp(1), true, true},
		{gov(2), gov(3), true, true},
		{gov(2), gov(2), true, true},
		{gov(2), gov(1), false, true},
		{gov(2), comp(1), false, true},
		{gov(2), comp(3), false, true},
		{gov(2), Lock{}, false, true},
		{comp(2), comp(3), true, true},
		{comp(2), comp(2), true, true},
		{comp(2), comp(1), false, false},
		{comp(2), gov(3), false, false},
		{comp(2), Lock{}, false, false},
		{comp(-1), Lock{}, true, true}, // ended
		{comp(-1), gov(1), true, true},
		{comp(0), gov(1), true, true}, // ends now
	} {
		for bypass, want := range map[bool]bool{false: c.plain, true: c.bypass} {
			c.from.Hold = HoldOn
			got, err := c.from.Retain(c.to.Mode, c.to.Until, now, bypass)
			switch {
			case want && (err != nil || got.Mode != c.to.Mode || !got.Until.Equal(c.to.Until) || got.Hold != HoldOn):
				t.Errorf("%v to %v, bypass %v: %v %v", c.from, c.to, bypass, got, err)
			case !want && (!errors.Is(err, ErrLocked) || got != c.from):
				t.Errorf("%v to %v, bypass %v: %v %v", c.from, c.to, bypass, got, err)
			}
		}
	}
}

func TestProtects(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	later, past := now.Add(time.Millisecond), now
	for _, c := range []struct {
		l             Lock
		plain, bypass bool
	}{
		{Lock{}, false, false},
		{Lock{Hold: HoldOff}, false, false},
		{Lock{Hold: HoldOn}, true, true},
		{Lock{Mode: Governance, Until: later}, true, false},
		{Lock{Mode: Governance, Until: past}, false, false},
		{Lock{Mode: Compliance, Until: later}, true, true},
		{Lock{Mode: Compliance, Until: past}, false, false},
		{Lock{Mode: Governance, Until: later, Hold: HoldOn}, true, true},
		{Lock{Mode: Governance, Until: past, Hold: HoldOn}, true, true},
	} {
		if p, b := c.l.Protects(now, false), c.l.Protects(now, true); p != c.plain || b != c.bypass {
			t.Errorf("%+v protects: %v, against bypass: %v", c.l, p, b)
		}
	}
}

func TestLockSurvivesEncoding(t *testing.T) {
	for _, mode := range []string{"", Governance, Compliance} {
		for _, hold := range []string{"", HoldOff, HoldOn} {
			l := Lock{Mode: mode, Hold: hold}
			if mode != "" {
				l.Until = time.Date(9998, 12, 31, 23, 59, 59, 123e6, time.UTC)
			}
			s := scannerOf(append(appendLock(nil, l), "rest"...))
			if got := s.lock(); got != l || s.Bad || string(s.B) != "rest" {
				t.Errorf("%+v came back as %+v, %q", l, got, s.B)
			}
		}
	}
	for _, bits := range []byte{lockGovernance | lockCompliance, lockHoldOff | lockHoldOn, 1 << 4, 1 << 7, lockGovernance} {
		s := scannerOf([]byte{bits})
		if s.lock(); !s.Bad {
			t.Errorf("%08b is taken", bits)
		}
	}
}

// clock is what the tests turn.
type clock struct{ ms atomic.Int64 }

func (c *clock) now() time.Time          { return time.UnixMilli(c.ms.Load()).UTC() }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

func newClock() *clock {
	c := &clock{}
	c.ms.Store(epoch.UnixMilli())
	return c
}

func (e *testEngine) setLock(key string, l Lock) {
	e.t.Helper()
	_, err := e.SetLock(context.Background(), "bkt", key, "", func(Lock, time.Time) (Lock, error) { return l, nil })
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *testEngine) remove(key, version string, c Cond) error {
	_, err := e.Delete(context.Background(), "bkt", Deletion{Key: key, Version: version, Cond: c, Modified: epoch})
	return err
}

// removals are all ways in which a client can make an object go.
func (e *testEngine) removals(key string, c Cond) map[string]error {
	ctx := context.Background()
	many := []Deletion{{Key: "other"}, {Key: key, Cond: c}}
	e.DeleteMany(ctx, "bkt", many)
	id := e.begin(key)
	if err := e.part(key, id, 1, pattern(100, 1)); err != nil {
		e.t.Fatal(err)
	}
	o := obj(key)
	o.Size = 100
	_, completed := e.Complete(ctx, o, id, e.parts(key, id), c)
	_, put := e.Put(ctx, sized(key, []byte("thief")), []byte("thief"), c)
	return map[string]error{
		"delete": e.remove(key, "", c), "delete of null": e.remove(key, NullVersion, c), "delete many": many[1].Err, "complete": completed, "put": put,
	}
}

// TestLockedObjectStays: nothing that a client can do removes a locked object, also behind restarts, with the index
// rebuilt, and after its record was moved; until the retention has ended, to the millisecond.
func TestLockedObjectStays(t *testing.T) {
	ctx, at := context.Background(), newClock()
	opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 8 << 10, ReclaimBelow: 0.9, Now: at.now}
	e := openTest(t, opt)
	until := at.now().Add(time.Hour)
	locks := map[string]Lock{
		"held": {Hold: HoldOn}, "governed": {Mode: Governance, Until: until}, "compliant": {Mode: Compliance, Until: until},
	}
	bypass := Cond{BypassGovernance: true}
	for key, l := range locks {
		e.put(key, pattern(3000, 5))
		e.setLock(key, l)
	}
	born := sized("born locked", pattern(3000, 5))
	born.Lock = locks["compliant"]
	if _, err := e.Put(ctx, born, pattern(3000, 5), Cond{}); err != nil {
		t.Fatal(err)
	}
	locks["born locked"] = born.Lock
	stays := func(when string) {
		t.Helper()
		for key, l := range locks {
			for how, err := range e.removals(key, Cond{}) {
				if !errors.Is(err, ErrLocked) {
					t.Errorf("%s: %s of %s: %v", when, how, key, err)
				}
			}
			if l.Mode == Governance {
				continue
			}
			for how, err := range e.removals(key, bypass) {
				if !errors.Is(err, ErrLocked) {
					t.Errorf("%s: %s of %s with bypass: %v", when, how, key, err)
				}
			}
			e.want(key, pattern(3000, 5))
			if o, err := e.Stat("bkt", key); err != nil || o.Lock != l {
				t.Errorf("%s: the lock of %s is %+v, %v", when, key, o.Lock, err)
			}
		}
	}
	stays("at first")
	if _, err := e.SetTags(ctx, "bkt", "compliant", "", []Pair{{"a", "b"}}); err != nil {
		t.Error("tags of a locked object:", err)
	}
	for i := range 12 { // moves the records
		e.put("filler", pattern(7000, byte(i)))
	}
	for {
		if freed, err := e.Reclaim(ctx); err != nil {
			t.Fatal(err)
		} else if freed == 0 {
			break
		}
	}
	if e.segments[1] != nil {
		t.Fatal("the test is of records that were moved")
	}
	stays("moved")
	e.done()
	e = openTest(t, opt)
	stays("opened again")
	for more := true; more; {
		var err error
		if more, err = e.Seal(); err != nil {
			t.Fatal(err)
		}
	}
	e.done()
	opt.IndexFS = pebblevfs.NewMem()
	e = openTest(t, opt)
	stays("rebuilt")
	if err := e.remove("governed", "", bypass); err != nil {
		t.Error("delete with bypass:", err)
	}
	at.advance(time.Hour - time.Millisecond)
	if err := e.remove("compliant", "", Cond{}); !errors.Is(err, ErrLocked) {
		t.Error("a millisecond too early:", err)
	}
	at.advance(time.Millisecond)
	if err := e.remove("compliant", "", Cond{}); err != nil {
		t.Error("after its end:", err)
	}
	if err := e.remove("held", "", Cond{}); !errors.Is(err, ErrLocked) {
		t.Error("a legal hold has no end:", err)
	}
	e.setLock("held", Lock{Hold: HoldOff})
	if err := e.remove("held", "", Cond{}); err != nil {
		t.Error("after the hold was taken back:", err)
	}
}

// TestLockedBodiesGetNewKeys: bodies of locked objects are sealed with another key, and the locks stay.
func TestLockedBodiesGetNewKeys(t *testing.T) {
	at := newClock()
	opt := Options{Dir: t.TempDir(), Keys: testKeys(t, "k1"), InlineBytes: 8 << 10, Now: at.now}
	e := openTest(t, opt)
	lock := Lock{Mode: Compliance, Until: at.now().Add(time.Hour), Hold: HoldOn}
	e.put("log", pattern(5000, 1))
	e.putFile("file", pattern(20_000, 2))
	e.setLock("log", lock)
	e.setLock("file", lock)
	e.done()
	opt.Keys = testKeys(t, "k2", "k1")
	e = openTest(t, opt)
	if out, err := e.Reseal(context.Background(), unpaced); err != nil || out.Records != 2 {
		t.Fatalf("%+v %v", out, err)
	}
	e.want("log", pattern(5000, 1))
	e.want("file", pattern(20_000, 2))
	for _, key := range []string{"log", "file"} {
		if o, err := e.Stat("bkt", key); err != nil || o.Lock != lock {
			t.Errorf("%s: %+v %v", key, o.Lock, err)
		}
		if err := e.remove(key, "", Cond{BypassGovernance: true}); !errors.Is(err, ErrLocked) {
			t.Errorf("delete of %s: %v", key, err)
		}
	}
}

// TestLockAgainstDelete: a lock and a delete race, in one batch and in others. Never do both succeed.
func TestLockAgainstDelete(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir(), Now: newClock().now})
	locked, deleted := 0, 0
	for i := range 300 {
		key := fmt.Sprint(i)
		e.put(key, []byte("x"))
		var race sync.WaitGroup
		var lock, remove error
		race.Go(func() {
			_, lock = e.SetLock(context.Background(), "bkt", key, "", func(l Lock, now time.Time) (Lock, error) {
				return l.Retain(Compliance, now.Add(time.Hour), now, false)
			})
		})
		race.Go(func() { remove = e.remove(key, "", Cond{}) })
		race.Wait()
		_, err := e.Stat("bkt", key)
		switch {
		case lock == nil && errors.Is(remove, ErrLocked) && err == nil:
			locked++
		case errors.Is(lock, ErrNotFound) && remove == nil && errors.Is(err, ErrNotFound):
			deleted++
		default:
			t.Fatalf("lock: %v, delete: %v, and then: %v", lock, remove, err)
		}
	}
	t.Logf("%d locks and %d deletes won", locked, deleted)
}

// TestLockedVersionStays: in a bucket with versions a lock protects its version and no other: the object can be
// overwritten and gets delete markers, and the version is still there. Null versions are protected, too.
func TestLockedVersionStays(t *testing.T) {
	ctx, at := context.Background(), newClock()
	opt := Options{Dir: t.TempDir(), Now: at.now}
	e := openTest(t, opt)
	e.put("k", []byte("null"))
	if err := e.SetLockConfiguration(ctx, "bkt", []byte("<x/>")); !errors.Is(err, ErrLockNeedsVersions) {
		t.Fatal("object lock without versions:", err)
	}
	for _, v := range []Versioning{Enabled, Suspended, Enabled} {
		if err := e.SetVersioning(ctx, "bkt", v); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.SetLockConfiguration(ctx, "bkt", []byte("<x/>")); err != nil {
		t.Fatal(err)
	}
	if err := e.SetVersioning(ctx, "bkt", Suspended); !errors.Is(err, ErrLockOn) {
		t.Error("versioning suspended:", err)
	}
	o := sized("k", []byte("locked"))
	o.Lock = Lock{Mode: Compliance, Until: at.now().Add(time.Hour)}
	locked, err := e.Put(ctx, o, []byte("locked"), Cond{})
	if err != nil {
		t.Fatal(err)
	}
	hold := func(l Lock, _ time.Time) (Lock, error) { l.Hold = HoldOn; return l, nil }
	if _, err := e.SetLock(ctx, "bkt", "k", NullVersion, hold); err != nil {
		t.Fatal(err)
	}
	e.put("k", []byte("third"))
	if err := e.remove("k", "", Cond{}); err != nil {
		t.Error("a delete marker:", err)
	}
	marker, err := e.Delete(ctx, "bkt", Deletion{Key: "k", Modified: epoch})
	if err != nil {
		t.Error("a delete marker:", err)
	}
	stays := func(when string) {
		t.Helper()
		for _, version := range []string{locked.Version, NullVersion} {
			if err := e.remove("k", version, Cond{BypassGovernance: true}); !errors.Is(err, ErrLocked) {
				t.Errorf("%s: delete of %s: %v", when, version, err)
			}
			many := []Deletion{{Key: "k", Version: version}}
			if e.DeleteMany(ctx, "bkt", many); !errors.Is(many[0].Err, ErrLocked) {
				t.Errorf("%s: delete of %s with others: %v", when, version, many[0].Err)
			}
			h, err := e.GetVersion("bkt", "k", version)
			if err != nil {
				t.Fatal(err)
			}
			h.Close()
		}
	}
	stays("at first")
	var gone *MarkerError
	if _, err := e.SetLock(ctx, "bkt", "k", marker.Made, hold); !errors.As(err, &gone) {
		t.Error("lock of a delete marker:", err)
	}
	if _, err := e.SetLock(ctx, "bkt", "k", "", hold); !errors.Is(err, ErrNotFound) {
		t.Error("lock of what is deleted:", err)
	}
	e.done()
	e = openTest(t, opt)
	stays("opened again")
	e.done()
	opt.IndexFS = pebblevfs.NewMem()
	e = openTest(t, opt)
	stays("rebuilt")
	if err := e.remove("k", marker.Made, Cond{}); err != nil {
		t.Error("delete of a marker:", err)
	}
	at.advance(time.Hour)
	if err := e.remove("k", locked.Version, Cond{}); err != nil {
		t.Error("after its end:", err)
	}
}

// TestLockThatMayBeLost: a lost write may have locked the object, so a delete of it is not decided.
func TestLockThatMayBeLost(t *testing.T) {
	ctx := context.Background()
	opt := Options{Dir: t.TempDir(), Now: newClock().now}
	e := openTest(t, opt)
	if err := e.CreateBucketWith(ctx, Bucket{Name: "locked", Created: epoch, Settings: map[string][]byte{SettingLock: []byte("<x/>")}}); err != nil {
		t.Fatal(err)
	}
	o := obj("k")
	o.Bucket = "locked"
	first, err := e.Put(ctx, o, nil, Cond{})
	if err != nil {
		t.Fatal(err)
	}
	at := e.head.pos.off
	if _, err := e.SetLock(ctx, "locked", "k", "", func(l Lock, _ time.Time) (Lock, error) { return Lock{Hold: HoldOn}, nil }); err != nil {
		t.Fatal(err)
	}
	e.put("behind", nil)
	e.done()
	flipBytes(t, filepath.Join(opt.Dir, segName(1)), at+4, 8)
	if err := os.RemoveAll(filepath.Join(opt.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	e = openTest(t, opt)
	if err := e.Uncertain(); err == nil {
		t.Fatal("the test is of a lost record")
	}
	if _, err := e.Delete(ctx, "locked", Deletion{Key: "k", Version: first.Version}); !errors.Is(err, ErrUncertain) {
		t.Error("delete:", err)
	}
}

// flipBytes damages a file.
func flipBytes(t *testing.T, name string, off int64, n int) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] ^= 0xA5
	}
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}
