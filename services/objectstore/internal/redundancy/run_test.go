package redundancy

import (
	"context"
	"sync"
	"testing"
	"time"
)

// shared is a world that goroutines may use at the same time.
type shared struct {
	mu sync.Mutex
	*world
}

func (s *shared) do(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
}

func (s *shared) Status(ctx context.Context) (list []PlaceState) {
	s.do(func() { list = s.world.Status(ctx) })
	return list
}

func (s *shared) Make(ctx context.Context, body string, size int64, p Policy, want []File) (errs []error) {
	s.do(func() { errs = s.world.Make(ctx, body, size, p, want) })
	return errs
}

func (s *shared) Verify(ctx context.Context, f File) (v Verified, err error) {
	s.do(func() { v, err = s.world.Verify(ctx, f) })
	return v, err
}

func (s *shared) Stat(ctx context.Context, f File) (err error) {
	s.do(func() { err = s.world.Stat(ctx, f) })
	return err
}

func (s *shared) Remove(ctx context.Context, f File) (err error) {
	s.do(func() { err = s.world.Remove(ctx, f) })
	return err
}

func (s *shared) Tidy(ctx context.Context, place string) (err error) {
	s.do(func() { err = s.world.Tidy(ctx, place) })
	return err
}

func (s *shared) List(ctx context.Context, place, behind string, fn func(Listed) error) error {
	var list []Listed
	var err error
	s.do(func() {
		err = s.world.List(ctx, place, behind, func(l Listed) error { list = append(list, l); return nil })
	})
	for _, l := range list {
		if err == nil {
			err = fn(l)
		}
	}
	return err
}

// eventually waits for something that must come.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// TestNowIsNow: what an operator asks for begins at once. The intervals are so long that nothing else could begin it.
func TestNowIsNow(t *testing.T) {
	w := &shared{world: newWorld(t, "a", "b", "c")}
	r := newRig(w.world, Options{Policy: twoOne})
	opt := r.opt
	opt.Now, opt.Names = func() (now time.Time) {
		w.do(func() { now = w.now })
		return now
	}, func(b string) (n Naming, err error) {
		w.do(func() { n, err = r.opt.Names(b) })
		return n, err
	}
	opt.LookInterval, opt.ScrubPeriod = 1000*time.Hour, 1000*time.Hour
	opt.Step = nil
	k, err := New(context.Background(), r.l, w, opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	status := func() Status {
		s, err := k.Status()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	eventually(t, "the passes of the start end", func() bool {
		s := status()
		listed := 0
		for _, p := range s.Places {
			if !p.Listing.Ended.IsZero() {
				listed++
			}
		}
		return listed == 3 && !s.Sweep.Ended.IsZero() && !s.Scrub.Ended.IsZero()
	})
	// Nobody tells the keeper of this body.
	w.do(func() { w.write(1, large, "a", "b"); w.now = w.now.Add(time.Minute) })
	if err := k.HealNow(); err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		w.do(func() {
			for _, s := range w.sites {
				n += len(s.files)
			}
		})
		return n
	}
	eventually(t, "the body is coded", func() bool {
		return status().Queued == 0 && count() == 3
	})
	began := status().Scrub.Began
	w.do(func() { w.now = w.now.Add(time.Minute) })
	if err := k.Scrub(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another scrub", func() bool { s := status().Scrub; return s.Began.After(began) && s.Files > 0 })
}

// TestScrubBeginsAnew: who asks for a scrub while one is under way gets one that reads every file.
func TestScrubBeginsAnew(t *testing.T) {
	r := newRig(newWorld(t, "a", "b", "c"), Options{Policy: copied, ScrubPeriod: time.Hour})
	for i := range 3 * scrubPage {
		r.k.Written(anID(i), small, r.write(i, small, "a", "b"))
	}
	r.settle()
	r.now = r.now.Add(time.Hour)
	if err := r.k.scrubDue(context.Background()); err != nil {
		t.Fatal(err)
	}
	under := r.k.scrub.pass
	if under.Files == 0 || !under.Ended.IsZero() {
		t.Fatalf("no pass is under way: %+v", under)
	}
	old, epoch := under, r.k.scrub.epoch
	r.now = r.now.Add(time.Second)
	if err := r.k.Scrub(); err != nil {
		t.Fatal(err)
	}
	// The pass that was under way comes to the end of its page.
	if current, err := r.k.save(valueOfScrub, &r.k.scrub, old, epoch); err != nil || current {
		t.Errorf("saved %t, %v", current, err)
	}
	r.scrubAll()
	if p := r.k.scrub.pass; p.Files != 6*scrubPage || !p.Began.After(under.Began) {
		t.Errorf("%+v", p)
	}
}

// TestClockIsSetBack: the clock was wrong by years, and is set right. What was noted meanwhile keeps nothing waiting.
func TestClockIsSetBack(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.now = t0.Add(20 * 365 * 24 * time.Hour)
	r := newRig(w, Options{Policy: twoOne, ScrubPeriod: time.Hour})
	r.k.Written(anID(1), large, r.write(1, large, "a", "b"))
	r.settle()
	r.scrubAll()
	// This one waits for a place.
	w.sites["c"].down = true
	r.k.Written(anID(2), large, r.write(2, large, "a", "b"))
	r.round()
	if n := r.l.Totals().Queued; n == 0 {
		t.Fatal("nothing waits")
	}
	w.sites["c"].down = false
	w.now = t0
	for _, f := range w.sites["a"].files {
		f.damaged = f.Body == anID(1)
	}
	r.settle()
	r.scrubAll()
	r.settle()
	r.complete()
	for _, p := range []Pass{r.k.scrub.pass, r.k.sweep.pass, r.k.pass("id-a")} {
		if p.Ended.IsZero() || p.Ended.After(w.now) {
			t.Errorf("%+v at %s", p, w.now)
		}
	}
}
