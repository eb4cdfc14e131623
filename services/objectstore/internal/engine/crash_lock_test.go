package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"time"
)

// marks is what a world shows of an object that is set without writing its body: its tags, and behind them its legal hold.
func marks(o *Object) string { return fmt.Sprint(o.Tags) + o.Lock.Hold }

// tagsOf and holdOf are the two parts of it.
func tagsOf(marks string) string { return marks[:strings.LastIndexByte(marks, ']')+1] }
func holdOf(marks string) string { return marks[strings.LastIndexByte(marks, ']')+1:] }

// mustKeep panics when a change of a key's versions loses one that a legal hold protects: the store has allowed it.
func mustKeep(key string, was, now []modelVersion) {
	for _, m := range was {
		kept := holdOf(m.stored.tags) != HoldOn
		for _, n := range now {
			kept = kept || n.ID == m.ID && n.stored.etag == m.stored.etag
		}
		if !kept {
			panic(fmt.Sprintf("version %s of %q is gone, and it was on hold", m.ID, key))
		}
	}
}

// holdCall sets or takes back the legal hold of a version, or of the newest one.
func holdCall(key, id, hold string) call {
	return call{
		func(e *Engine) error {
			_, err := e.SetLock(context.Background(), "bkt", key, id, func(l Lock, _ time.Time) (Lock, error) {
				l.Hold = hold
				return l, nil
			})
			var marker *MarkerError
			if errors.Is(err, ErrNotFound) || errors.As(err, &marker) {
				return fs.ErrNotExist
			}
			return err
		},
		func(w world) {
			w.mark(key, id, func(marks string) string { return tagsOf(marks) + hold })
		},
	}
}

// holdStep sets and takes back legal holds, and deletes and replaces at the same time.
func holdStep(s *session, rng *rand.Rand, key, etag func() string) []call {
	k := key()
	id := ""
	if list := s.now().history(k); len(list) > 0 && rng.IntN(2) == 0 {
		id = list[rng.IntN(len(list))].ID
	}
	hold := HoldOn
	if rng.IntN(2) == 0 {
		hold = HoldOff
	}
	calls := []call{}
	if rng.IntN(2) == 0 {
		calls = append(calls, deleteCall(k), putCall(k, pattern(70, 9), etag(), Cond{}))
		if id != "" {
			calls = append(calls, deleteVersionCall(k, id))
		}
		rng.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	}
	// Between others of its key it may be tried again, and so come last, wherever it stood. Of no named version it is that of
	// the one which was current when it was asked for, and so comes first.
	if id == "" || rng.IntN(2) == 0 {
		return append([]call{holdCall(k, id, hold)}, calls...)
	}
	return append(calls, holdCall(k, id, hold))
}
