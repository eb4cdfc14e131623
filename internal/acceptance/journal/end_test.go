package journal

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

// A run without its writer is ended wherever it stands, folded or not; one that has ended is left as it is.
func TestEnd(t *testing.T) {
	ctx := t.Context()
	for segments := range uint64(4) {
		for _, folded := range []bool{false, true} {
			for _, closed := range []bool{false, true} {
				s := mem.New(nil)
				w := newWriter(t, s, 1)
				var run RunID
				for i := range segments {
					_, _ = w.Add(entry("a", i))
					at, _, err := w.Flush(ctx)
					if err != nil {
						t.Fatal(err)
					}
					run = at.Run
				}
				if closed {
					if err := w.Close(ctx); err != nil {
						t.Fatal(err)
					}
				}
				fold := func() {
					folder, err := NewFolder(FolderConfig{Store: s, Rand: source(9), Retention: 1})
					if err != nil {
						t.Fatal(err)
					}
					from, err := folder.Load(ctx)
					if err != nil {
						t.Fatal(err)
					}
					f, _ := follow(t, s, from, folder)
					if _, err := f.Poll(ctx); err != nil {
						t.Fatal(err)
					}
					for now := range int64(4) {
						if _, err := folder.Fold(ctx, now*100); err != nil {
							t.Fatal(err)
						}
					}
				}
				if folded {
					fold()
				}
				before := count(t, s)
				if err := End(ctx, s, run); err != nil {
					t.Fatalf("%d segments, folded %v, closed %v: %v", segments, folded, closed, err)
				}
				if n := count(t, s) - before; (n != 0) != (segments > 0 && !closed) {
					t.Errorf("%d segments, folded %v, closed %v: %d objects were written", segments, folded, closed, n)
				}
				if err := End(ctx, s, run); err != nil {
					t.Error(err)
				}
				f, got := follow(t, s, Positions{}, nil)
				if _, err := f.Poll(ctx); err != nil || len(f.Runs()) != 0 || len(got) != int(segments) {
					t.Errorf("%d segments, folded %v, closed %v: %d runs are open, %d entries, %v", segments, folded, closed, len(f.Runs()), len(got), err)
				}
			}
		}
	}
}

func count(t *testing.T, s objstore.Lister) int {
	t.Helper()
	page, err := s.List(t.Context(), listAll(layout.JournalPrefix))
	if err != nil {
		t.Fatal(err)
	}
	return len(page.Objects)
}
