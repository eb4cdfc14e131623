package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/arrivals"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/backlog"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/overlaps"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/schedule"
)

const authority = "authority"

// noFrames is a store that does not answer for frames while down.
type noFrames struct {
	objstore.Store
	down bool
}

func (s *noFrames) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if s.down && strings.HasPrefix(key, layout.RawBlobsPrefix) {
		return nil, objstore.Info{}, objstore.ErrUnavailable
	}
	return s.Store.Get(ctx, key, o)
}

// follower makes the Follower of shard 0 of a store, whose clock is *now.
func follower(s objstore.Store, now *time.Time, shards uint32) *Follower {
	m, log := metrics.New(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)
	records := hour.Records{Store: s, AuthorityID: authority, Shards: shards}
	return &Follower{
		hub:    arrivals.New(arrivals.Config{Store: s, Authority: authority, Shards: shards, MaxQueued: 1 << 20, Metrics: m, Log: log}),
		frames: &frames.Reader{Store: s, MaxFrame: 1 << 20, AtOnce: 4}, records: records, backlog: backlog.New(), metrics: m, log: log,
		overlaps: overlaps.Finder{Manifests: s}, now: func() time.Time { return *now },
		schedule: schedule.Policy{RetryBase: time.Minute}, recheck: time.Hour, recheckedAt: *now, room: func() int { return 1 << 20 },
		saved: keeper{store: s, records: records, metrics: m, log: log},
	}
}

// entry is that of a batch whose frame alone says which hours it has.
func entry(n uint64) journal.Entry {
	id := identity.Batch{Agent: "a", Boot: "b", SeqStart: n, SeqEnd: n}
	return journal.Entry{ID: id, SHA256: identity.Sum(fmt.Append(nil, n)), Bytes: 1, MinTime: 1, MaxTime: int64(5 * time.Hour), Outcome: journal.Accepted}
}

// Batches that can't be taken while the shard catches up are too many to remember: the record must not move past them.
func TestProgressWaitsForWhatCatchingUpHadToForget(t *testing.T) {
	ctx := t.Context()
	s := &noFrames{Store: mem.New(time.Now), down: true}
	entries := make([]journal.Entry, maxDeferred+1)
	for i := range entries {
		entries[i] = entry(uint64(i))
	}
	if err := journaltest.Append(ctx, s, authority, entries...); err != nil {
		t.Fatal(err)
	}
	if err := journaltest.Complete(ctx, s, authority); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1e9, 0)
	f := follower(s, &now, 1)
	if _, err := f.Follow(ctx); err != nil {
		t.Fatal(err)
	}
	if !f.behind || len(f.saved.marks) > 0 {
		t.Errorf("behind %v, %d positions may be written, and %d of %d batches are known", f.behind, len(f.saved.marks), f.backlog.Len()+f.Deferred(), len(entries))
	}
	if f.Complete() {
		t.Error("it knows of every batch")
	}
	// Once frames can be read again (here: are found to be gone), it has everything.
	s.down = false
	now = now.Add(catchUpPause)
	if _, err := f.Follow(ctx); err != nil {
		t.Fatal(err)
	}
	if f.behind || f.backlog.Len() != len(entries) {
		t.Errorf("behind %v, %d of %d batches are pending", f.behind, f.backlog.Len(), len(entries))
	}
}

// A record of positions that the bucket's journal has not reached says nothing, also where the journal is read for
// several shards at once, from the earliest of their positions.
func TestProgressBeyondTheHeadSaysNothing(t *testing.T) {
	ctx := t.Context()
	s := mem.New(time.Now)
	if err := journaltest.Append(ctx, s, authority, entry(1)); err != nil {
		t.Fatal(err)
	}
	p := progress.Progress{AuthorityID: authority, Shard: 1, Shards: 2, Positions: journal.Positions{Head: 100}}
	if _, err := p.Write(ctx, s, ""); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1e9, 0)
	other, f := follower(s, &now, 2), follower(s, &now, 2)
	f.Shard, f.saved.Shard = 1, 1
	f.hub = arrivals.New(arrivals.Config{Store: s, Authority: authority, Shards: 2, MaxQueued: 1 << 20, Metrics: f.metrics, Log: f.log, Gather: 200 * time.Millisecond})
	other.hub = f.hub
	done := make(chan error)
	go func() {
		_, err := other.Follow(ctx)
		done <- err
	}()
	_, err := f.Follow(ctx)
	if oerr := <-done; oerr != nil || other.behind {
		t.Errorf("the other shard: %v", oerr)
	}
	if !errors.Is(err, journal.ErrHeadWentBack) || !f.behind || !f.saved.record.Positions.IsZero() {
		t.Fatalf("%v, behind %v, from %+v", err, f.behind, f.saved.record.Positions)
	}
	if _, err := f.Follow(ctx); err != nil || f.behind {
		t.Errorf("from the beginning: %v", err)
	}
}
