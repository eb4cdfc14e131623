package reconciler

import (
	"context"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// sweepRepairs reconciles every manifest with an open repair record again.
func (s *Service) sweepRepairs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Repairs.Timeout)
	defer cancel()
	r := newRound()
	open := int64(0)
	err := s.listAll(ctx, layout.RepairPrefix, func(o objstore.Info) error {
		key, ok := repairedKey(o.Key)
		if !ok {
			s.reportForeign(o.Key)
			return nil
		}
		open++
		return s.enqueue(ctx, &item{key: key, src: fromRepair, headFirst: true, recheck: true, read: true, rounds: []*round{r}})
	})
	if err != nil {
		return err
	}
	s.openRepairs.Store(open)
	s.m.open.Set(float64(open))
	return r.wait(ctx)
}

// repairedKey returns the key of the manifest that a repair record is about.
func repairedKey(repair string) (string, bool) {
	rest := strings.TrimPrefix(repair, layout.RepairPrefix)
	// The key of a repair record is that of its manifest below another prefix.
	key := layout.AcceptedPrefix + rest
	if strings.HasPrefix(rest, "identity-conflict/") {
		key = "quarantine/v1/" + rest
	}
	return key, reconcile.IsManifestKey(key)
}

// tally counts repairs by kind for GetStatus.
type tally struct {
	mu sync.Mutex
	n  map[string]uint64
}

func (t *tally) add(k reconcile.Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = map[string]uint64{}
	}
	t.n[string(k)]++
}

func (t *tally) copy() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[string]uint64, len(t.n))
	for k, v := range t.n {
		out[k] = v
	}
	return out
}

// reportForeign reports, once, a key under our prefixes that we never write. The object is never changed.
func (s *Service) reportForeign(key string) {
	if s.bad.has(key) {
		return
	}
	s.bad.add(key)
	s.m.foreign.WithLabelValues(objstore.Family(key)).Inc()
	s.log.Warn("unknown key under our prefix", "key", key)
}

// listAll calls fn for every object under prefix. A failed page is an error, never the end.
func (s *Service) listAll(ctx context.Context, prefix string, fn func(objstore.Info) error) error {
	for o, err := range objstore.List(ctx, s.store, objstore.ListOptions{Prefix: prefix}) {
		if err == nil {
			err = fn(o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
