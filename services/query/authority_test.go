package query_test

import (
	"context"
	"crypto/rand"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// authority is a store with accepted batches, as collectors leave them.
type authority struct {
	t testing.TB
	*mem.Store
	down  atomic.Bool  // reads fail
	blobs atomic.Int64 // GETs of frames
}

func (a *authority) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := a.failing("head", key); err != nil {
		return objstore.Info{}, err
	}
	return a.Store.Head(ctx, key)
}

// newAuthority is a bucket that began with the journal.
func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, Store: mem.New(time.Now)}
	a.put(layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "test"}.Marshal())
	if err := journaltest.Complete(context.Background(), a.Store, "test"); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) failing(op, key string) error {
	if a.down.Load() {
		return &objstore.Error{Op: op, Key: key, Err: objstore.ErrUnavailable}
	}
	return nil
}

func (a *authority) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if err := a.failing("get", key); err != nil {
		return nil, objstore.Info{}, err
	}
	if objstore.Family(key) == "raw-blobs" {
		a.blobs.Add(1)
	}
	return a.Store.Get(ctx, key, o)
}

func (a *authority) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := a.failing("list", o.Prefix); err != nil {
		return objstore.Page{}, err
	}
	return a.Store.List(ctx, o)
}

func (a *authority) put(key string, body []byte) {
	a.t.Helper()
	if _, err := a.Put(context.Background(), key, body, objstore.PutOptions{}); err != nil {
		a.t.Fatal(err)
	}
}

// point is one sample of a batch.
type point struct {
	name  string
	value float64
	at    time.Time
}

// built is an accepted batch's objects.
type built struct {
	manifest accept.Manifest
	frame    []byte
}

// buildMeta is a batch of one sample, with a type, a unit and a help.
func (a *authority) buildMeta(boot identity.Boot, seq uint64, at time.Time, name string, typ series.Type, unit, help string) built {
	a.t.Helper()
	return a.buildAs(boot, seq, at, typ, unit, help, point{name, 1, at})
}

func (a *authority) build(boot identity.Boot, seq uint64, acceptedAt time.Time, points ...point) built {
	a.t.Helper()
	return a.buildAs(boot, seq, acceptedAt, series.Counter, "", "", points...)
}

func (a *authority) buildAs(boot identity.Boot, seq uint64, acceptedAt time.Time, typ series.Type, unit, help string, points ...point) built {
	a.t.Helper()
	b := frame.NewBuilder()
	must := func(err error) {
		if err != nil {
			a.t.Helper()
			a.t.Fatal(err)
		}
	}
	must(b.SetResource(series.Label{Name: "instance", Value: boot.Agent + ":1"}, series.Label{Name: "job", Value: "node"}))
	minT, maxT := points[0].at, points[0].at
	for _, p := range points {
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: p.name}}, typ, unit, 0)
		must(err)
		must(b.Append(id, p.at.UnixNano(), p.value))
		if help != "" {
			must(b.SetHelp(p.name, help))
		}
		if p.at.Before(minT) {
			minT = p.at
		}
		if p.at.After(maxT) {
			maxT = p.at
		}
	}
	batch, err := b.Build(boot, seq)
	must(err)
	raw, err := frame.Encode(nil, batch)
	must(err)
	sum := identity.Sum(raw)
	return built{frame: raw, manifest: accept.Manifest{
		AuthorityID: "test", Identity: batch.Identity, FrameSHA256: sum, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(sum, 0),
		AcceptedAt: acceptedAt.UnixNano(), CollectorID: "c1", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
		RecordCount: batch.Identity.Count(), MinTime: minT.UnixNano(), MaxTime: maxT.UnixNano(),
	}}
}

// accept is what a collector does: blob, manifest, segment of the journal.
func (a *authority) accept(bs ...built) {
	a.t.Helper()
	var entries []journal.Entry
	for _, b := range bs {
		a.put(b.manifest.RawBlobKey, b.frame)
		a.put(layout.Accepted(b.manifest.Identity), b.manifest.Marshal())
		entries = append(entries, b.manifest.Entry(journal.Accepted))
	}
	if err := journaltest.Append(context.Background(), a.Store, "test", entries...); err != nil {
		a.t.Fatal(err)
	}
}

// writer is a collector's run of the journal.
type writer struct {
	a *authority
	w *journal.Writer
}

func (a *authority) writer(id string, role journal.Role) *writer {
	a.t.Helper()
	w, err := journal.NewWriter(journal.WriterConfig{
		Store: a.Store, Rand: rand.Reader, Clock: func() int64 { return 0 },
		Opening: journal.Opening{Writer: id, Role: role, Authority: "test"},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return &writer{a, w}
}

// accept writes a segment with the batches, and returns its position.
func (w *writer) accept(bs ...built) journal.Position {
	w.a.t.Helper()
	for _, b := range bs {
		w.a.put(b.manifest.RawBlobKey, b.frame)
		w.a.put(layout.Accepted(b.manifest.Identity), b.manifest.Marshal())
		if _, err := w.w.Add(b.manifest.Entry(journal.Accepted)); err != nil {
			w.a.t.Fatal(err)
		}
	}
	at, _, err := w.w.Flush(context.Background())
	if err != nil {
		w.a.t.Fatal(err)
	}
	return at
}

// progressed says that the ledgers count every batch of the journal as it is now, and that blocks have every one but
// for pending.
func (a *authority) progressed(pending ...built) {
	a.t.Helper()
	must := func(err error) {
		if err != nil {
			a.t.Helper()
			a.t.Fatal(err)
		}
	}
	ctx, set := context.Background(), ledgers.NewSet()
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: a.Store, Authority: "test",
		Segment: func(_ context.Context, s *journal.Segment) error { set.Apply(s.Entries, nil); return nil },
		Folded:  func(_ context.Context, es []journal.Entry) error { set.Apply(es, nil); return nil },
	})
	must(err)
	p, err := f.Poll(ctx)
	must(err)
	_, err = ledgers.NewSaver(a.Store, rand.Reader, 1, ledgers.Loaded{Set: set}).Save(ctx, p.Positions, 0)
	must(err)
	for s := range shard.ID(rollupShards) {
		r := progress.Progress{AuthorityID: "test", Shard: s, Shards: rollupShards, Positions: p.Positions}
		for _, b := range pending {
			if shard.Of(b.manifest.Identity.Agent, rollupShards) == s {
				r.Pending = append(r.Pending, b.manifest.Batch())
			}
		}
		_, err := r.Write(ctx, a.Store, "")
		must(err)
	}
}

// forget folds the journal, and makes the head forget an ended run, as folders do a
// thousand moves later.
func (a *authority) forget(run journal.RunID) {
	a.t.Helper()
	must := func(err error) {
		if err != nil {
			a.t.Helper()
			a.t.Fatal(err)
		}
	}
	ctx := context.Background()
	_, err := journaltest.Fold(ctx, a.Store, "test")
	must(err)
	head, etag, err := journal.ReadHead(ctx, a.Store)
	must(err)
	r := head.Run(run)
	if r == nil || r.Ended == 0 {
		a.t.Fatalf("run %s has not ended: %+v", run, r)
	}
	if r.Deleted < r.Folded {
		a.t.Fatalf("run %s: %d of %d segments are deleted", run, r.Deleted, r.Folded)
	}
	head.Number, head.Forgotten = head.Number+1, max(head.Forgotten, r.Ended)
	head.Runs = slices.DeleteFunc(head.Runs, func(r journal.HeadRun) bool { return r.Run == run })
	body, err := head.Marshal()
	must(err)
	_, err = a.Replace(ctx, layout.JournalHeadKey, body, etag, objstore.PutOptions{})
	must(err)
}
