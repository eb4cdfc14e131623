package audit

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// lose deletes the file of the head that has a batch, and drops it.
func lose(t *testing.T, s *mem.Store, id identity.Batch) {
	t.Helper()
	ctx := context.Background()
	head, _, err := journal.ReadHead(ctx, s)
	must(t, err)
	for _, f := range head.Files {
		es, err := journal.ReadFile(ctx, s, f)
		must(t, err)
		for i := range es {
			if es[i].ID == id {
				must(t, s.Delete(ctx, f.Key))
				_, err := journal.Drop(ctx, s, rand.NewChaCha8([32]byte{77}), []string{f.Key})
				must(t, err)
				return
			}
		}
	}
	t.Fatalf("%s is in no file of the head", id)
}

// What a dropped file had is entered again by a full audit that began afterwards, and only that one says that the journal is
// complete: not one that was under way, which may have read the file.
func TestADroppedFileIsEnteredAgain(t *testing.T) {
	ctx := t.Context()
	b := newBusyBucket(t, 3)
	b.hold = true // nothing is deleted
	m := plant(t, b.s, "host", 1)
	_, err := b.writers[0].Add(m.Entry(journal.Accepted))
	must(t, err)
	_, _, err = b.writers[0].Flush(ctx)
	must(t, err)
	_, err = b.follower.Poll(ctx)
	must(t, err)
	_, err = b.folder.Fold(ctx, 0)
	must(t, err)
	if complete, err := journal.IsComplete(ctx, b.s); err != nil || !complete {
		t.Fatal("not complete at first", err)
	}
	early := auditor(t, b.s, 1)
	under, err := early.Begin(ctx, 0)
	must(t, err)

	lose(t, b.s, m.Identity)
	if done, err := early.Work(ctx, &under); err != nil || !done {
		t.Fatal(done, err)
	}
	if complete, err := journal.IsComplete(ctx, b.s); err != nil || complete {
		t.Error("an audit that had begun before says that the journal is complete", err)
	}
	// The segment is there still, but its run is folded beyond it: who starts at the head does not read it, and it will be deleted.
	head, _, err := journal.ReadHead(ctx, b.s)
	must(t, err)
	r, err := resume(ctx, auditor(t, b.s, 2))
	must(t, err)
	if complete, err := journal.IsComplete(ctx, b.s); err != nil || !complete {
		t.Error("not complete after an audit", err)
	}
	if begin, err := journal.ReadBegin(ctx, b.s); err != nil || begin.By != journal.ByAudit || begin.Audit != r.Key || begin.Head != head.Number {
		t.Errorf("%+v, %v", begin, err)
	}
	got := map[identity.Batch]bool{}
	f, err := journal.NewFollower(journal.FollowerConfig{Store: b.s, Authority: authority, From: head.Positions(),
		Segment: func(_ context.Context, s *journal.Segment) error {
			for i := range s.Entries {
				got[s.Entries[i].ID] = true
			}
			return nil
		},
		Folded: func(context.Context, []journal.Entry) error { return nil }})
	must(t, err)
	_, err = f.Poll(ctx)
	must(t, err)
	if !got[m.Identity] {
		t.Error("the batch is in no segment behind the drop")
	}
}

// A bucket at work whose disk loses files, an operator who drops them, and audits one after the other, each interrupted at any
// step: whenever the journal is said to be complete, whoever starts from nothing finds everything that was answered.
func TestLossesAndAudits(t *testing.T) {
	ctx := t.Context()
	dropped, completed := 0, 0
	for seed := range uint64(60) {
		b := newBusyBucket(t, seed)
		rnd := rand.New(rand.NewPCG(seed, 7))
		a := auditor(t, b.s, byte(seed))
		a.Pace = func(context.Context) error { // the bucket is at work between the requests of audits
			if rnd.IntN(4) == 0 {
				b.work()
			}
			return nil
		}
		for range 30 {
			for range rnd.IntN(10) {
				b.work()
			}
			head, _, err := journal.ReadHead(ctx, b.s)
			must(t, err)
			if n := len(head.Files); n > 0 && rnd.IntN(3) == 0 {
				key := head.Files[rnd.IntN(n)].Key
				must(t, b.s.Delete(ctx, key))
				_, err := journal.Drop(ctx, b.s, rand.NewChaCha8([32]byte{byte(seed), byte(head.Number)}), []string{key})
				must(t, err)
				dropped++
			}
			if rnd.IntN(3) == 0 {
				// A file that was merged into another one meanwhile ends it; it goes on the next time.
				if _, err := resume(ctx, a); !errors.Is(err, objstore.ErrNotFound) && !errors.Is(err, objstore.ErrUnavailable) {
					must(t, err)
				}
			}
			begin, err := journal.ReadBegin(ctx, b.s)
			must(t, err)
			want := len(b.answered)
			got, err := follows(b.s)
			must(t, err)
			now, _, err := journal.ReadHead(ctx, b.s)
			must(t, err)
			if !begin.Covers(now.Lost) {
				continue
			}
			if now.Lost > 0 {
				completed++
			}
			for id := range b.answered {
				if !got[id] {
					t.Fatalf("seed %d: the journal is said to be complete, and %s of %d is not in it", seed, id, want)
				}
			}
		}
	}
	t.Logf("%d files dropped, complete again %d times", dropped, completed)
	if dropped < 100 || completed < 100 {
		t.Errorf("%d files dropped, complete again %d times", dropped, completed)
	}
}

// answered journals and folds a batch of a bucket at work, whose segments stay.
func answered(t *testing.T, b *busyBucket) identity.Batch {
	t.Helper()
	ctx := t.Context()
	b.hold = true
	m := plant(t, b.s, "host", 1)
	_, err := b.writers[0].Add(m.Entry(journal.Accepted))
	must(t, err)
	_, _, err = b.writers[0].Flush(ctx)
	must(t, err)
	_, err = b.follower.Poll(ctx)
	must(t, err)
	_, err = b.folder.Fold(ctx, 0)
	must(t, err)
	return m.Identity
}

// The disk lost a file of the journal, and the manifest of one of its batches is damaged, too: the journal is not said to be
// complete before somebody has brought the manifest back. A manifest of another authority is none of the file's.
func TestADamagedManifestOfADroppedFile(t *testing.T) {
	ctx := t.Context()
	b := newBusyBucket(t, 3)
	id := answered(t, b)
	foreign := manifest("x", 2, "another")
	put(t, b.s, layout.Accepted(foreign.Identity), foreign.Marshal())
	lose(t, b.s, id)
	whole, _, err := b.s.Get(ctx, layout.Accepted(id), objstore.GetOptions{})
	must(t, err)
	_, err = b.s.Put(ctx, layout.Accepted(id), []byte("damaged"), objstore.PutOptions{})
	must(t, err)
	for _, c := range []struct{ unusable, unread uint64 }{{2, 1}, {1, 0}} {
		r, err := resume(ctx, auditor(t, b.s, byte(c.unusable)))
		must(t, err)
		complete, err := journal.IsComplete(ctx, b.s)
		must(t, err)
		if !r.Finished() || r.Unusable != c.unusable || r.Unread != c.unread || complete != (c.unread == 0) {
			t.Errorf("%+v, complete %v", r.Record, complete)
		}
		_, err = b.s.Put(ctx, layout.Accepted(id), whole, objstore.PutOptions{})
		must(t, err)
	}
}

// The journal was deleted as a whole, or is an older copy, and begin.json, or an audit that is under way, is of the one before,
// whose numbers were higher: a file that is dropped now is not covered by either.
func TestADropInAJournalThatBeganAgain(t *testing.T) {
	const former = 50
	t.Run("begin", func(t *testing.T) {
		ctx := t.Context()
		b := newBusyBucket(t, 3)
		id := answered(t, b)
		must(t, journal.Begin{AuthorityID: authority, By: journal.ByAudit, Audit: "x", Head: former}.Write(ctx, b.s))
		lose(t, b.s, id)
		if complete, err := journal.IsComplete(ctx, b.s); err != nil || complete {
			t.Error("complete without the file", err)
		}
		_, err := resume(ctx, auditor(t, b.s, 2))
		must(t, err)
		if complete, err := journal.IsComplete(ctx, b.s); err != nil || !complete {
			t.Error("not complete after an audit", err)
		}
	})
	t.Run("audit", func(t *testing.T) {
		ctx := t.Context()
		b := newBusyBucket(t, 3)
		id := answered(t, b)
		a := auditor(t, b.s, 2)
		plan, err := a.plan(ctx, Full)
		must(t, err)
		plan.Through = former
		r, err := a.create(ctx, plan, nil)
		must(t, err)
		// It had gone through the agents before.
		end := conflictFamily.end("")
		put(t, b.s, layout.AuditShard(r.Key, 0), Record{Scope: Full, By: "r", StartedAt: r.StartedAt, UpdatedAt: 1, Cursor: end}.Marshal())
		lose(t, b.s, id)
		if done, err := a.Work(ctx, &r); err != nil || !done {
			t.Fatal(done, err)
		}
		if complete, err := journal.IsComplete(ctx, b.s); err != nil || complete {
			t.Error("an audit of another journal says that this one is complete", err)
		}
	})
}
