package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestAgeOfSegmentsOutlivesRestarts: a segment has been closed for as long as nothing was written to it, whichever process closed it.
// Where its footer does not say, or says a time that is still to come, it is as old as the process.
func TestAgeOfSegmentsOutlivesRestarts(t *testing.T) {
	const after = time.Hour
	for name, c := range map[string]struct {
		ahead time.Duration                     // of the clock of objects
		hurt  func(t *testing.T, footer string) // may be nil
		old   bool
	}{
		"restarted":             {0, nil, true},
		"the clock was ahead":   {100 * time.Hour, nil, false},
		"the footer is damaged": {0, func(t *testing.T, footer string) { flipOnDisk(t, footer, 20) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			now := epoch
			opt := Options{Dir: t.TempDir(), SegmentBytes: 16 << 10, InlineBytes: 4 << 10, Now: func() time.Time { return now }}
			e := openTest(t, opt)
			for i := range 20 {
				o := obj(fmt.Sprint("k", i))
				o.Modified = now.Add(c.ahead)
				if _, err := e.Put(context.Background(), o, pattern(3000, byte(i)), Cond{}); err != nil {
					t.Fatal(err)
				}
			}
			closeAll(t, e)
			coding := offerAll
			coding.After = after
			offers := func() int {
				t.Helper()
				list, err := e.OfferSegments(context.Background(), coding)
				if err != nil {
					t.Fatal(err)
				}
				return len(list)
			}
			if n := offers(); n != 0 {
				t.Errorf("%d segments are offered at once", n)
			}
			want := len(e.closed())
			for range 3 {
				now = now.Add(after/3 - time.Minute)
				e.done()
				e = openTest(t, opt)
				if n := offers(); n != 0 {
					t.Errorf("%d segments are offered after %v", n, now.Sub(epoch))
				}
			}
			e.done()
			if c.hurt != nil {
				names, err := filepath.Glob(filepath.Join(opt.Dir, footerDir, "*"))
				if err != nil || len(names) == 0 {
					t.Fatal(names, err)
				}
				for _, f := range names {
					if _, err := os.Stat(f); err != nil {
						t.Fatal(err)
					}
					c.hurt(t, f)
				}
			}
			e = openTest(t, opt)
			now = now.Add(4 * time.Minute)
			if n := offers(); c.old && n != want || !c.old && n != 0 {
				t.Errorf("%d of %d segments are offered after %v", n, want, now.Sub(epoch))
			}
			now = now.Add(after)
			if n := offers(); !c.old && n != want {
				t.Errorf("%d of %d segments are offered after %v", n, want, now.Sub(epoch))
			}
		})
	}
}
