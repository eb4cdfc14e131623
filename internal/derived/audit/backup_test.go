package audit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// busyBucket is a bucket at work: collectors accept and journal, a reconciler folds and deletes.
type busyBucket struct {
	t        *testing.T
	rnd      *rand.Rand
	s        *mem.Store
	writers  []*journal.Writer
	folder   *journal.Folder
	follower *journal.Follower
	now      int64 // of the folder's retention
	hold     bool  // no time passes
	n        uint64
	answered map[identity.Batch]bool
}

func newBusyBucket(t *testing.T, seed uint64) *busyBucket {
	b := &busyBucket{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), s: mem.New(time.Now), answered: map[identity.Batch]bool{}}
	src := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	must(t, journal.Begin{AuthorityID: authority, By: journal.ByAuthority}.Write(context.Background(), b.s))
	for i := range 3 {
		w, err := journal.NewWriter(journal.WriterConfig{
			Store: b.s, Rand: src, Clock: func() int64 { return 1 },
			Opening: journal.Opening{Writer: fmt.Sprint("collector ", i), Role: journal.RoleCollector, Authority: authority},
		})
		must(t, err)
		b.writers = append(b.writers, w)
	}
	var err error
	b.folder, err = journal.NewFolder(journal.FolderConfig{Store: b.s, Rand: src, Retention: 3})
	must(t, err)
	b.follower, err = journal.NewFollower(journal.FollowerConfig{
		Store: b.s, Authority: authority,
		Segment: func(_ context.Context, s *journal.Segment) error { return b.folder.Add(s) },
		Folded:  func(context.Context, []journal.Entry) error { return nil },
	})
	must(t, err)
	return b
}

// work does one thing that happens in a bucket at any time.
func (b *busyBucket) work() {
	ctx := context.Background()
	w := b.writers[b.rnd.IntN(len(b.writers))]
	switch b.rnd.IntN(8) {
	case 0, 1, 2, 3:
		b.n++
		m := plant(b.t, b.s, fmt.Sprint("host", b.rnd.IntN(5)), b.n)
		if b.rnd.IntN(6) == 0 {
			return // its collector dies before it journals it; nobody is answered
		}
		_, err := w.Add(m.Entry(journal.Accepted))
		must(b.t, err)
		_, _, err = w.Flush(ctx)
		must(b.t, err)
		b.answered[m.Identity] = true
	case 4:
		if b.rnd.IntN(3) == 0 {
			must(b.t, w.Close(ctx))
		}
	default:
		_, err := b.follower.Poll(ctx)
		must(b.t, err)
		if !b.hold {
			b.now += int64(b.rnd.IntN(4))
		}
		// A drop may have moved the head beside it, and its file is gone.
		if _, err = b.folder.Fold(ctx, b.now); !errors.Is(err, objstore.ErrPreconditionFailed) && !errors.Is(err, objstore.ErrNotFound) {
			must(b.t, err)
		}
	}
}

// copyInOrder copies the families of the journal and the manifests in an order, as the loop of the guide does: a page
// after the other is listed, and its objects are copied, while the bucket is at work.
func (b *busyBucket) copyInOrder(order []string) *mem.Store {
	ctx, dst := context.Background(), mem.New(time.Now)
	for _, word := range order {
		family, below, _ := strings.Cut(word, ":")
		// The guide says so: folded files are copied within the retention after the head.
		b.hold = strings.HasPrefix(below, "v1/head") || strings.HasPrefix(below, "v1/folded")
		o := objstore.ListOptions{Prefix: family + "/" + below, Limit: 1 + b.rnd.IntN(6)}
		for {
			page, err := b.s.List(ctx, o)
			must(b.t, err)
			for _, i := range page.Objects {
				b.work()
				if body, _, err := b.s.Get(ctx, i.Key, objstore.GetOptions{}); err == nil {
					_, err = dst.Put(ctx, i.Key, body, objstore.PutOptions{})
					must(b.t, err)
				}
			}
			b.work()
			if o.StartAfter = page.Next; page.Next == "" {
				break
			}
		}
	}
	return dst
}

// backupOrder is the order of the guide, as far as it is about manifests and the journal: the test is of what operators do.
func backupOrder(t *testing.T) (order []string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/guide/backup.md")
	must(t, err)
	m := regexp.MustCompile(`(?m)^for p in (.+)$`).FindSubmatch(page)
	if m == nil {
		t.Fatal("the guide has no loop")
	}
	for _, w := range strings.Fields(string(m[1])) {
		if family, _, _ := strings.Cut(w, ":"); family == "journal" || family == "accepted" {
			order = append(order, w)
		}
	}
	return order
}

// follows reads the journal of a copy from nothing: which batches stand in it, or why it can't be read.
func follows(s journal.FollowerStore) (map[identity.Batch]bool, error) {
	got := map[identity.Batch]bool{}
	add := func(es []journal.Entry) error {
		for i := range es {
			got[es[i].ID] = true
		}
		return nil
	}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: authority,
		Segment: func(_ context.Context, seg *journal.Segment) error { return add(seg.Entries) },
		Folded:  func(_ context.Context, es []journal.Entry) error { return add(es) },
	})
	if err == nil {
		_, err = f.Poll(context.Background())
	}
	return got, err
}

// TestCopyUnderLoad copies a bucket at work in the order of docs/guide/backup.md. The copy's journal can be read, and has
// everything that was answered before the copy began; an audit of the copy enters what else is in it, and only then
// is the journal said to be complete. In another order it can't be read, or lacks what was answered.
func TestCopyUnderLoad(t *testing.T) {
	ctx := context.Background()
	guide := backupOrder(t)
	for name, c := range map[string]struct {
		order []string
		bad   func(unreadable, short int) bool
	}{
		"the guide's order":      {guide, func(unreadable, short int) bool { return unreadable+short > 0 }},
		"files before the head":  {[]string{"journal:v1/open/", "journal:v1/run=", "journal:v1/folded/", "journal:v1/head.json", "accepted"}, func(unreadable, _ int) bool { return unreadable == 0 }},
		"segments behind a head": {[]string{"journal:v1/head.json", "journal:v1/folded/", "journal:v1/open/", "journal:v1/run=", "accepted"}, func(_, short int) bool { return short == 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			unreadable, short, audited := 0, 0, 0
			for seed := range uint64(60) {
				b := newBusyBucket(t, seed)
				for range 40 {
					b.work()
				}
				before := make(map[identity.Batch]bool, len(b.answered))
				for id := range b.answered {
					before[id] = true
				}
				dst := b.copyInOrder(c.order)
				got, err := follows(dst)
				if err != nil {
					unreadable++
					continue
				}
				for id := range before {
					if !got[id] {
						short++
						break
					}
				}
				if begun, err := journal.IsComplete(ctx, dst); err != nil || begun {
					t.Fatalf("seed %d: the copy says that its journal is complete: %v", seed, err)
				}
				// Whatever the order: an audit makes it right.
				r, err := resume(ctx, auditor(t, dst, 9))
				must(t, err)
				audited += int(r.Journalled)
				if got, err = follows(dst); err != nil {
					t.Fatal(err)
				}
				for o, err := range objstore.List(ctx, dst, objstore.ListOptions{Prefix: layout.AcceptedPrefix}) {
					must(t, err)
					id, err := layout.ParseAccepted(o.Key)
					must(t, err)
					if !got[id] {
						t.Fatalf("seed %d: %s is in the copy and in no run after the audit", seed, id)
					}
				}
				if begun, err := journal.IsComplete(ctx, dst); err != nil || !begun {
					t.Fatalf("seed %d: the audit did not make the journal complete: %v", seed, err)
				}
			}
			t.Logf("of 60 copies: %d can't be read, %d lack what was answered before; %d batches entered by audits", unreadable, short, audited)
			if c.bad(unreadable, short) || audited == 0 {
				t.Errorf("%d can't be read, %d are short, %d batches were audited", unreadable, short, audited)
			}
		})
	}
}
