package gc_test

import (
	"context"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
)

// TestCrashMatrix ends a collection before and after each of its requests. Then the
// batch is submitted, before or after a second collection: it is readable in the end,
// and an orphan that nobody submits is gone.
func TestCrashMatrix(t *testing.T) {
	sub, loser := encode(t, 1, 1), encode(t, 1, 2)
	cases := 0
	for _, after := range []bool{false, true} {
		for crash := 0; ; crash++ {
			s := newStore(t, nil)
			put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
			put(t, s, layout.Blob(loser.SHA256, 0), loser.Frame)
			p := plan(t, s)

			ctx, kill := context.WithCancel(t.Context())
			n := 0
			at := func(string, string) error {
				if n++; n > crash {
					kill()
					return objstore.ErrUnknown
				}
				return nil
			}
			f := faulty{Store: s, before: at}
			if after {
				f = faulty{Store: s, after: at, before: func(string, string) error { return ctx.Err() }}
			}
			_, err := collector(t, f).Execute(ctx, p, gc.ExecuteOptions{})
			kill()
			cases++

			for _, order := range []bool{false, true} {
				o := clone(t, s)
				if order {
					execute(t, o)
				}
				if r := submit(t, o, sub); r.Outcome != accept.Accepted {
					t.Fatalf("crash %d: %s", crash, r.Outcome)
				}
				execute(t, o)
				if r := submit(t, o, loser); r.Outcome != accept.Conflict {
					t.Fatalf("crash %d: %s", crash, r.Outcome)
				}
				execute(t, o)
				for _, x := range []accept.Submission{sub, loser} {
					if !readable(t, o, x) {
						t.Errorf("crash %d (after %v, collected before %v): a promised frame is gone", crash, after, order)
					}
				}
			}
			execute(t, s)
			if readable(t, s, sub) || readable(t, s, loser) {
				t.Errorf("crash %d: an orphan is still there", crash)
			}
			if err == nil {
				break
			}
		}
	}
	t.Logf("%d cases", cases)
	if cases < 20 {
		t.Errorf("only %d cases", cases)
	}
}

func execute(t *testing.T, s *mem.Store) {
	t.Helper()
	if _, err := collector(t, s).Execute(t.Context(), plan(t, s), gc.ExecuteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func clone(t *testing.T, s *mem.Store) *mem.Store {
	t.Helper()
	o := mem.New(nil)
	err := storetest.Each(t.Context(), s, "", func(i objstore.Info) error {
		b, _, err := s.Get(t.Context(), i.Key, objstore.GetOptions{})
		put(t, o, i.Key, b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func readable(t *testing.T, s *mem.Store, sub accept.Submission) bool {
	t.Helper()
	found := false
	err := storetest.Each(t.Context(), s, layout.BlobStem(sub.SHA256), func(i objstore.Info) error {
		b, _, err := s.Get(t.Context(), i.Key, objstore.GetOptions{})
		found = found || string(b) == string(sub.Frame)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
