package published_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// rounds is a store that answers nothing until whoever asks has nothing else to do: what
// is asked for then does not depend on each other.
type rounds struct {
	objstore.Reader
	mu      sync.Mutex
	waiting []chan struct{}
}

func (r *rounds) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	turn := make(chan struct{})
	r.mu.Lock()
	r.waiting = append(r.waiting, turn)
	r.mu.Unlock()
	<-turn
	return r.Reader.Get(ctx, key, o)
}

// run answers round by round until fn is done, and gives the requests of each.
func (r *rounds) run(fn func()) (of []int) {
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	for {
		synctest.Wait()
		r.mu.Lock()
		waiting := r.waiting
		r.waiting = nil
		r.mu.Unlock()
		if len(waiting) == 0 {
			<-done
			return of
		}
		of = append(of, len(waiting))
		for _, c := range waiting {
			close(c)
		}
	}
}

// TestColdQueriesTakeTwoRounds: with nothing cached all indexes are asked for at once, then
// all ranges; for samples, and for rolled rows with samples beside them. Warm queries ask for nothing.
func TestColdQueriesTakeTwoRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureOf(t, chunk.Options{BlockSeries: 16})
		f.publish(t, 2, timegrid.OneMinute)
		mint, maxt := f.first.StartMS()+1, (f.first + 1).EndMS()
		ends := labels.MustNewMatcher(labels.MatchRegexp, "s", "0|599")
		all := func(series.Type) bool { return true }
		for name, fn := range map[string]func(*published.Query) (int, error){
			"samples": func(q *published.Query) (int, error) {
				list, err := q.Select(t.Context(), mint, maxt, ends)
				return len(list), err
			},
			"rolled rows": func(q *published.Query) (int, error) {
				list, ok, err := q.SelectRolled(t.Context(), published.Rows{Resolution: timegrid.OneMinute}, mint, maxt, func(timegrid.Hour) bool { return false }, all, ends)
				if !ok {
					t.Error("not from rolled rows")
				}
				return len(list), err
			},
			"rolled rows and samples": func(q *published.Query) (int, error) {
				list, ok, err := q.SelectRolled(t.Context(), published.Rows{Resolution: timegrid.OneMinute}, mint, maxt, func(h timegrid.Hour) bool { return h == f.first }, all, ends)
				if !ok {
					t.Error("not from rolled rows")
				}
				return len(list), err
			},
		} {
			store := &rounds{Reader: f.store.Store}
			r, err := published.New(published.Config{Store: store, Gap: 1, Parallel: 1000})
			if err != nil {
				t.Fatal(err)
			}
			for k, want := range []int{2, 0} {
				q := f.query(t, r, published.Limits{})
				if err := q.Pin(t.Context(), mint, maxt); err != nil {
					t.Fatal(err)
				}
				of := store.run(func() {
					if n, err := fn(q); err != nil || n != 4 {
						t.Errorf("%s: %d series, %v", name, n, err)
					}
				})
				t.Logf("%s: requests %v", name, of)
				if len(of) != want || want == 2 && (of[0] != 2 || of[1] < 4) {
					t.Errorf("%s, time %d: rounds of %v requests, want %d rounds", name, k, of, want)
				}
			}
		}
	})
}
