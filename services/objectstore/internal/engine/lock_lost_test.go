package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestLostObjectKeepsItsLock: the repair's record of a loss has the lock, too. Without it the version, of which another
// copy may be found, and the proof that it was there, could be deleted before its time.
func TestLostObjectKeepsItsLock(t *testing.T) {
	ctx, at := context.Background(), newClock()
	opt := Options{Dir: t.TempDir(), Now: at.now}
	e := openTest(t, opt)
	if err := e.SetVersioning(ctx, "bkt", Enabled); err != nil {
		t.Fatal(err)
	}
	body := pattern(3000, 1)
	o := sized("k", body)
	o.Lock = Lock{Mode: Compliance, Until: at.now().Add(time.Hour), Hold: HoldOn}
	o, err := e.Engine.Put(ctx, o, body, Cond{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := e.idx.record("bkt", recordKey("k", o.Version))
	if err != nil {
		t.Fatal(err)
	}
	e.put("behind", nil)
	e.done()
	flipBytes(t, filepath.Join(opt.Dir, segName(x.pos.seg)), x.pos.off+int64(x.headLen)+100, 50)
	e = openTest(t, opt)
	r, err := e.Repair(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Lost) != 1 {
		t.Fatal("the test is of a lost body:", r.Lost)
	}
	stays := func(when string) {
		t.Helper()
		if err := e.remove("k", o.Version, Cond{BypassGovernance: true}); !errors.Is(err, ErrLocked) {
			t.Errorf("%s: delete of a locked version whose bytes are lost: %v", when, err)
		}
	}
	stays("repaired")
	e.done()
	if err := os.RemoveAll(filepath.Join(opt.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	e = openTest(t, opt)
	stays("rebuilt")
}
