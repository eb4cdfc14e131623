package audit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// live is a bucket whose collectors write the journal, and what a reconciler knows of it.
type live struct {
	*mem.Store
	t      testing.TB
	seed   byte
	folder *journal.Folder
	now    int64
	clock  time.Time
}

func newLive(t testing.TB) *live {
	l := &live{t: t, clock: time.Unix(1_700_000_000, 0)}
	l.Store = mem.New(func() time.Time { return l.clock })
	must(t, journaltest.Complete(t.Context(), l.Store, authority))
	var err error
	l.folder, err = journal.NewFolder(journal.FolderConfig{Store: l.Store, Rand: rand.NewChaCha8([32]byte{9}), Retention: 1})
	must(t, err)
	return l
}

func bootOf(agent string) identity.Boot { return identity.Boot{Agent: agent, Boot: "boot"} }

// record writes the record of the agent's boot.
func (l *live) record(agent string) {
	if _, err := l.Head(l.t.Context(), layout.Boot(bootOf(agent))); err != nil {
		put(l.t, l.Store, layout.Boot(bootOf(agent)), []byte("{}"))
	}
}

// accept accepts batches as a collector does that lives.
func (l *live) accept(agent string, from, until uint64) {
	l.record(agent)
	var es []journal.Entry
	for n := from; n < until; n++ {
		es = append(es, plant(l.t, l.Store, agent, n).Entry(journal.Accepted))
	}
	must(l.t, journaltest.Append(l.t.Context(), l.Store, authority, es...))
}

// orphan accepts a batch by a collector that dies before it has journalled it.
func (l *live) orphan(agent string, n uint64) {
	l.record(agent)
	plant(l.t, l.Store, agent, n)
}

// fold moves the journal into files, and deletes its segments.
func (l *live) fold() {
	ctx := l.t.Context()
	head, err := l.folder.Load(ctx)
	must(l.t, err)
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: l.Store, Authority: authority, From: head,
		Segment: func(_ context.Context, s *journal.Segment) error { return l.folder.Add(s) },
		Folded:  func(context.Context, []journal.Entry) error { return nil },
	})
	must(l.t, err)
	_, err = f.Poll(ctx)
	must(l.t, err)
	for range 3 {
		l.now += 10
		_, err = l.folder.Fold(ctx, l.now)
		must(l.t, err)
	}
}

// ledgers are those of the whole journal.
func (l *live) ledgers() *ledgers.Set {
	set := ledgers.NewSet()
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: l.Store, Authority: authority,
		Segment: func(_ context.Context, s *journal.Segment) error { set.Apply(s.Entries, nil); return nil },
		Folded:  func(_ context.Context, es []journal.Entry) error { set.Apply(es, nil); return nil },
	})
	must(l.t, err)
	_, err = f.Poll(l.t.Context())
	must(l.t, err)
	return set
}

// news runs a news audit, an hour after the last.
func (l *live) news(s Store) Stored {
	l.clock = l.clock.Add(time.Hour)
	l.seed++
	a := auditor(l.t, s, l.seed)
	a.Ledgers = l.ledgers()
	r, err := a.BeginNews(l.t.Context())
	must(l.t, err)
	done, err := a.Work(l.t.Context(), &r)
	if err != nil || !done {
		l.t.Fatal(done, err)
	}
	return r
}

func (l *live) full() {
	l.clock = l.clock.Add(time.Hour)
	l.seed++
	_, err := resume(l.t.Context(), auditor(l.t, l.Store, l.seed))
	must(l.t, err)
}

// has reports whether the journal has the batch exactly once.
func (l *live) has(agent string, n uint64) bool {
	b, _ := journalled(l.t, l.Store)
	return b[manifest(agent, n, authority).Identity] == 1
}

func TestNewsAreFound(t *testing.T) {
	l := newLive(t)
	l.accept("old", 0, 5)
	l.accept("busy", 0, 5)
	l.fold()
	l.full()
	l.accept("busy", 5, 10)
	l.accept("short", 3, 4)
	l.orphan("busy", 10) // after the news of the boot
	l.orphan("short", 2) // in flight beside the first batch of a boot
	l.orphan("fresh", 0) // a boot that the journal does not know
	l.orphan("fresh", 7)
	conflict(t, l.Store, "busy", 7)
	must(t, journaltest.Append(t.Context(), l.Store, authority, conflictEntry("busy", 5)))
	put(t, l.Store, layout.Quarantine(conflictEntry("busy", 5).ID, conflictEntry("busy", 5).SHA256), nil)
	r := l.news(l.Store)
	for _, want := range []struct {
		agent string
		n     uint64
	}{{"busy", 10}, {"short", 2}, {"fresh", 0}, {"fresh", 7}} {
		if !l.has(want.agent, want.n) {
			t.Errorf("%s %d is not in the journal", want.agent, want.n)
		}
	}
	if _, c := journalled(t, l.Store); c[manifest("busy", 7, authority).Identity] != 1 {
		t.Error("the conflict is not in the journal")
	}
	// Of the old boot, and of what the others had before, nothing is listed.
	if r.Manifests != 6+2+2 || r.Conflicts != 2 || r.Journalled != 5 || r.Unusable != 0 || !r.Finished() {
		t.Errorf("%+v", r.Record)
	}
	// A batch that comes late beside what an audit has passed over is found by the next one.
	l.fold()
	l.orphan("busy", 11)
	l.news(l.Store)
	if !l.has("busy", 11) {
		t.Error("a batch after the last news is not in the journal")
	}
	l.accept("pair", 0, 3)
	l.fold()
	l.news(l.Store)
	l.orphan("pair", 3)
	l.news(l.Store)
	if !l.has("pair", 3) {
		t.Error("a batch whose boot had news before the last audit alone is not in the journal")
	}
	// A boot that was quiet for longer is for the full audit.
	for range 3 {
		l.fold()
		l.news(l.Store)
	}
	l.orphan("busy", 12)
	if l.news(l.Store); l.has("busy", 12) {
		t.Error("a boot without news was listed")
	}
	l.full()
	if !l.has("busy", 12) {
		t.Error("the full audit did not find it")
	}
}

// conflictEntry is that of the conflict which conflict plants.
func conflictEntry(agent string, n uint64) journal.Entry {
	m := manifest(agent, n, authority)
	e := m.Entry(journal.Conflict)
	e.SHA256 = identity.Sum(fmt.Appendf(nil, "other %s %d", agent, n))
	return e
}

// A late batch makes its boot be listed from there on, over what the journal has from long ago: that is neither read nor written again.
func TestLateBatchOfAnOldBoot(t *testing.T) {
	l := newLive(t)
	l.accept("a", 50, 150)
	l.fold()
	l.full()
	l.fold()
	l.news(l.Store)
	l.fold()
	l.news(l.Store)
	l.accept("a", 0, 1)
	store := &counting{Store: l.Store}
	if r := l.news(store); r.Journalled != 0 || r.Manifests != 101 || store.accepted != 0 {
		t.Errorf("%+v, %d manifests read", r.Record, store.accepted)
	}
}

// A news audit that is killed anywhere goes on, and finds as much.
func TestKilledNewsGoOn(t *testing.T) {
	world := func() *live {
		l := newLive(t)
		for i := range 3 {
			l.accept(fmt.Sprint("a", i), 0, 3)
		}
		l.fold()
		l.full()
		for i := range 3 {
			l.accept(fmt.Sprint("a", i), 3, 5)
			l.orphan(fmt.Sprint("a", i), 5)
			must(t, journaltest.Append(t.Context(), l.Store, authority, conflictEntry(fmt.Sprint("a", i), 3)))
			conflict(t, l.Store, fmt.Sprint("a", i), 3)
			conflict(t, l.Store, fmt.Sprint("a", i), 4)
		}
		return l
	}
	ctx := t.Context()
	var want Record
	for n := 1; ; n++ {
		l := world()
		store := &counting{Store: l.Store, failFrom: n, after: n%2 == 0}
		a, b := auditor(t, store, 77), auditor(t, l.Store, 78)
		a.Ledgers, b.Ledgers = l.ledgers(), l.ledgers()
		a.MaxInMemory, b.MaxInMemory = 4, 4
		r, err := a.BeginNews(ctx)
		if err == nil {
			_, err = a.Work(ctx, &r)
		}
		killed := err != nil
		if history, err := History(ctx, l.Store, News, 1); err != nil || len(history) == 0 {
			must(t, err)
			r, err = b.BeginNews(ctx)
			must(t, err)
		} else {
			r = history[0]
		}
		if done, err := b.Work(ctx, &r); !done || err != nil {
			t.Fatal(n, done, err)
		}
		for i := range 3 {
			if !l.has(fmt.Sprint("a", i), 5) {
				t.Errorf("request %d: batch %d is not in the journal", n, i)
			}
		}
		if _, c := journalled(t, l.Store); len(c) != 6 {
			t.Errorf("request %d: %d conflicts", n, len(c))
		}
		if want.Digest.IsZero() {
			want = r.Record
		}
		if r.Manifests != 9 || r.Conflicts != 6 || r.Digest != want.Digest {
			t.Errorf("request %d: %+v", n, r.Record)
		}
		if !killed {
			return
		}
	}
}

// A boot with more news than a page, whose audit is killed within it, is listed to its end, and no key twice.
func TestLongBootGoesOn(t *testing.T) {
	for n := 20; n < 45; n += 2 {
		l := newLive(t)
		l.accept("a", 0, 2100)
		l.accept("b", 0, 1)
		l.orphan("a", 2100)
		ctx := t.Context()
		a := auditor(t, &counting{Store: l.Store, failFrom: n}, 77)
		b := auditor(t, l.Store, 78)
		// Each page moves the record.
		a.Lease = -4 * time.Hour
		r, err := b.BeginNews(ctx)
		must(t, err)
		mine := r
		_, _ = a.Work(ctx, &mine)
		if done, err := b.Work(ctx, &r); !done || err != nil {
			t.Fatal(n, done, err)
		}
		if r.Manifests != 2102 || !l.has("a", 2100) {
			t.Errorf("request %d: %+v", n, r.Record)
		}
	}
}

// The history grows sixteenfold, the news stay: a news audit costs the same, but for the listing of boots; and a day of the rolling
// audit costs its part of the whole.
func TestNewsCostWhatIsNew(t *testing.T) {
	const boots = 10
	measure := func(batches uint64) (news, day, manifests int) {
		l := newLive(t)
		for b := range boots {
			l.accept(fmt.Sprintf("a%02d", b), 0, batches/boots)
		}
		l.fold()
		l.full()
		for b := range boots {
			l.accept(fmt.Sprintf("a%02d", b), batches/boots, batches/boots+20)
		}
		store := &counting{Store: l.Store}
		r := l.news(store)
		news, manifests = store.calls, int(r.Manifests)
		a := auditor(t, store, 99)
		a.Shards = boots
		full, err := a.Begin(t.Context(), boots*24*time.Hour)
		must(t, err)
		*store = counting{Store: l.Store}
		_, err = a.Work(t.Context(), &full)
		must(t, err)
		return news, store.calls, manifests
	}
	n1, d1, m1 := measure(1000)
	n4, d4, m4 := measure(4000)
	n16, d16, m16 := measure(16000)
	t.Logf("requests of a news audit of %d, %d, %d manifests: %d, %d, %d over 1,000, 4,000 and 16,000 batches; of a tenth of a full audit: %d, %d, %d", m1, m4, m16, n1, n4, n16, d1, d4, d16)
	if m1 != boots*20 || m4 != m1 || m16 != m1 || n16 > n1+2 || n1 > 5*boots {
		t.Error("a news audit costs the history")
	}
	// 16 times as many batches are 1,600 of a shard: one page more of its one agent.
	if d16 > d1+1 {
		t.Error("a shard costs more than its part")
	}
}
