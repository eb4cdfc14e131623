package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// snapshotWorld is a store with accepted batches of one shard.
type snapshotWorld struct {
	t      *testing.T
	store  *mem.Store
	now    time.Time
	n      uint64
	frames map[identity.Digest][]byte
}

const snapshotShard = shard.ID(0)

// accept makes one more batch, now.
func (w *snapshotWorld) accept() []accepted.Batch {
	raw := fmt.Appendf(nil, "the frame of batch %d", w.n)
	d, at := identity.Sum(raw), w.now.UnixNano()
	w.frames[d] = raw
	e := accepted.Batch{Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: w.n, SeqEnd: w.n}, FrameSHA256: d, FrameBytes: uint64(len(raw)),
		RawBlobKey: layout.Blob(d, 0), AcceptedAt: at, MinTime: at - 1e9, MaxTime: at}
	w.n++
	return []accepted.Batch{e}
}

func (w *snapshotWorld) read(_ context.Context, entries []accepted.Batch) ([][]byte, error) {
	var out [][]byte
	for _, e := range entries {
		out = append(out, w.frames[e.FrameSHA256])
	}
	return out, nil
}

// dying refuses the creates of snapshots while die is set, after their packs are written.
type dying struct {
	objstore.Store
	die *bool
}

func (d dying) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if _, _, err := layout.ParseLiveSnapshot(key); err == nil && *d.die {
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrUnavailable}
	}
	return d.Store.Create(ctx, key, b, o)
}

// keys lists what is below a prefix.
func (w *snapshotWorld) keys(prefix string) map[string]bool {
	w.t.Helper()
	out := map[string]bool{}
	must(w.t, storetest.Each(w.t.Context(), w.store, prefix, func(o objstore.Info) error { out[o.Key] = true; return nil }))
	return out
}

// TestThousandSnapshotsOverEtcd: the chain keeps its order over a real etcd member, though it
// goes through ten owners, and each loses its grant in a job that it can't commit.
func TestThousandSnapshotsOverEtcd(t *testing.T) {
	t.Parallel() // it waits for etcd's disk, most of the time
	const jobs, owners = 1000, 10
	m, cfg := member(t, t.TempDir())
	client, err := Dial(context.Background(), cfg, m.Endpoint(), discard)
	must(t, err)
	defer client.Close()
	table := NewPendingWork(client.Etcd, PendingOptions{Prefix: "/test/work", Timeout: 30 * time.Second})

	w := &snapshotWorld{t: t, now: time.Unix(1_800_000_000, 0), frames: map[identity.Digest][]byte{}}
	w.store = mem.New(func() time.Time { return w.now })
	var order []uint64
	for o := range owners {
		die := false
		c, err := snapshot.NewChain(snapshot.Config{
			Store: dying{w.store, &die}, Table: table, AuthorityID: "test", Shard: snapshotShard, Shards: 1, Fence: uint64(o + 1),
			Owner: fmt.Sprintf("life-%d", o+1), Now: func() time.Time { return w.now }, Frames: w.read, Window: time.Hour,
			Events: snapshot.Events{Committed: func(s *snapshot.Snapshot) { order = append(order, s.Number) }},
		})
		must(t, err)
		for len(order) < (o+1)*jobs/owners {
			c.Offer(w.accept())
			switch o, err := c.Step(t.Context()); {
			case err != nil:
				t.Fatalf("step: %s, %v", o, err)
			case o != work.Completed:
				t.Fatalf("step: %s", o)
			}
			w.now = w.now.Add(time.Second)
		}
		// The grant ends in the middle of the next job: its successor has a greater fence.
		die = o < owners-1
		c.Offer(w.accept())
		if o, err := c.Step(t.Context()); die && !errors.Is(err, objstore.ErrUnavailable) {
			t.Fatalf("a dead owner's step: %s, %v", o, err)
		}
	}
	for i, n := range order[:jobs] {
		if n != uint64(i+1) {
			t.Fatalf("job %d was done at place %d", n, i+1)
		}
	}
	log, err := table.Log(t.Context(), snapshot.Log(snapshotShard))
	// One job in eight merges packs, and so has a row.
	if err != nil || log.Last < jobs-8 || log.Fence != owners {
		t.Errorf("log %+v, %v", log, err)
	}
	w.nothingLeftOver()
}

// nothingLeftOver: the packs that the kept snapshots name are there, and no others.
func (w *snapshotWorld) nothingLeftOver() {
	w.t.Helper()
	numbers, err := snapshot.Numbers(w.t.Context(), w.store, snapshotShard)
	must(w.t, err)
	packs, named := w.keys(layout.LivePacks(snapshotShard)), map[string]bool{}
	for _, n := range numbers {
		s, err := snapshot.Read(w.t.Context(), w.store, snapshotShard, n)
		must(w.t, err)
		for _, r := range s.Packs {
			if named[r.Key(snapshotShard)] = true; !packs[r.Key(snapshotShard)] {
				w.t.Errorf("%s is named, and not there", r.Key(snapshotShard))
			}
		}
	}
	if len(numbers) > 3 || len(packs) != len(named) {
		w.t.Errorf("snapshots %v, %d packs of which %d are named", numbers, len(packs), len(named))
	}
}
