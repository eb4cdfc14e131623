package storetest

import (
	"errors"
	"fmt"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// race runs n writers concurrently and returns their errors.
func (t *suite) race(n int, write func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = write(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

func (t *suite) raceCreate() {
	for _, n := range []int{16, 32, 64} {
		for round := range 3 {
			key := fmt.Sprintf("race/%d-%d", n, round)
			bodies := make([][]byte, n)
			for i := range bodies {
				bodies[i] = fmt.Appendf(nil, "writer %d of %d", i, n)
			}
			winner := t.oneWinner(t.race(n, func(i int) error {
				_, err := t.s.Create(t.ctx(), key, bodies[i], objstore.PutOptions{})
				return err
			}), objstore.ErrExists)
			t.holds(key, bodies[winner], "")
		}
	}
}

func (t *suite) raceReplace() {
	now := t.mustCreate("race", []byte("start"))
	for round := range 5 {
		const n = 16
		infos := make([]objstore.Info, n)
		body := func(i int) []byte { return fmt.Appendf(nil, "round %d writer %d", round, i) }
		winner := t.oneWinner(t.race(n, func(i int) (err error) {
			infos[i], err = t.s.Replace(t.ctx(), "race", body(i), now.ETag, objstore.PutOptions{})
			return err
		}), objstore.ErrPreconditionFailed)
		now = infos[winner]
		t.holds("race", body(winner), now.ETag)
	}
}

// oneWinner checks that exactly one write succeeded and all others lost or conflicted.
func (t *suite) oneWinner(errs []error, lost error) int {
	t.Helper()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner < 0:
			winner = i
		case err == nil:
			t.Fatalf("writers %d and %d both won", winner, i)
		case !errors.Is(err, objstore.ErrConflict):
			t.want(err, lost, "a loser of a race")
		}
	}
	if winner < 0 {
		t.Fatalf("nobody of %d won: %v", len(errs), errs[0])
	}
	return winner
}

// afterWrite checks that every reader sees a write as soon as it was answered.
func (t *suite) afterWrite() {
	const n = 16
	errs := t.race(n, func(i int) error {
		for j := range 4 {
			key := fmt.Sprintf("seen/%02d/%d", i, j)
			if _, err := t.s.Create(t.ctx(), key, []byte(key), objstore.PutOptions{}); err != nil {
				return err
			}
			got, _, err := t.s.Get(t.ctx(), key, objstore.GetOptions{})
			if err != nil || string(got) != key {
				return fmt.Errorf("get after create: %q, %w", got, err)
			}
			if _, err := t.s.Head(t.ctx(), key); err != nil {
				return fmt.Errorf("head after create: %w", err)
			}
			p, err := t.s.List(t.ctx(), objstore.ListOptions{Prefix: key[:len("seen/00/")]})
			if err != nil || len(p.Objects) != j+1 {
				return fmt.Errorf("list after %d creates: %q, %w", j+1, keysOf(p.Objects), err)
			}
			if j%2 == 1 {
				continue
			}
			// A conditional create sees the object as well.
			_, err = t.s.Create(t.ctx(), key, []byte("other"), objstore.PutOptions{})
			if !errors.Is(err, objstore.ErrExists) {
				return fmt.Errorf("create after create: %w", err)
			}
		}
		return nil
	})
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}
