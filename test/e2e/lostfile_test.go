package e2e

import (
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
)

// TestALostFileOfTheJournal: the disk loses a folded file while batches come. The query node that has read it goes on, one that
// starts can't read the journal and says so. After lmctl journal drop it can, no answer claims to be complete, the
// reconciler audits by itself, and in the end every batch that was acknowledged is in an answer that is complete.
func TestALostFileOfTheJournal(t *testing.T) {
	t.Parallel()
	c := newCluster(t, cluster.Options{Collectors: 1, Adjust: func(process string, s map[string]any) {
		switch process {
		case "query":
			f := s["follow"].(map[string]any)
			f["poll_interval"], f["idle_interval"] = "200ms", "1s"
		case "reconciler":
			s["journal"] = map[string]any{"poll_interval": "200ms", "idle_interval": "200ms", "fold_interval": "5s", "retention": "1s"}
			s["audit"] = map[string]any{"rate": 2000}
		}
	}})
	ctx := within(t, 5*time.Minute)
	must(t, c.StartStore(ctx))
	must(t, c.StartCollector(ctx, 0))
	must(t, c.StartReconciler(ctx))
	must(t, c.StartQuery(ctx))
	w := &witness{c: c, fleet: load.StartFleet(ctx, c, load.FleetOptions{Seed: 1})}

	store, err := c.OpenStore(ctx)
	must(t, err)
	var head journal.Head
	must(t, cluster.Poll(ctx, "files whose segments are gone", func() (bool, error) {
		var err error
		head, _, err = journal.ReadHead(ctx, store)
		gone := false
		for _, r := range head.Runs {
			gone = gone || r.Deleted > 1
		}
		return gone && len(head.Files) > 0, err
	}))
	// Without the reconciler nothing is merged between this head and the loss.
	must(t, cluster.Stop(&c.Reconciler))
	head, _, err = journal.ReadHead(ctx, store)
	must(t, err)
	lost := head.Files[0]
	must(t, store.Delete(ctx, lost.Key))
	t.Logf("lost: %+v", lost)
	all := time.Now()
	must(t, cluster.Poll(ctx, "the node that had read it to go on", func() (bool, error) {
		a, err := w.ask(ctx)
		return err == nil && !a.partial && a.through.After(all), err
	}))

	cluster.Kill(&c.Query)
	// It may not become ready: it has nothing to answer from.
	started := make(chan error, 1)
	go func() { started <- c.StartQuery(ctx) }()
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if a, err := w.ask(ctx); err == nil && !a.partial {
			t.Fatalf("a node that can't read the journal says that it has everything: %+v", a)
		}
	}

	found, err := journal.FindLost(ctx, store, []string{lost.Key})
	must(t, err)
	d, err := journal.Drop(ctx, store, rand.Reader, []string{lost.Key}) // lmctl journal drop
	must(t, err)
	if len(found) != 1 || found[0] != lost.Span || d.Head <= head.Number {
		t.Errorf("%+v, %+v", found, d)
	}
	must(t, <-started)
	must(t, cluster.Poll(ctx, "the node to read the journal", func() (bool, error) { _, err := w.ask(ctx); return err == nil, err }))
	for range 10 {
		if a, err := w.ask(ctx); err == nil && !a.partial {
			t.Errorf("complete without the file, and without an audit: %+v", a)
		}
		time.Sleep(100 * time.Millisecond)
	}
	must(t, c.StartReconciler(ctx))
	must(t, cluster.Poll(ctx, "an audit to complete the journal", func() (bool, error) { return journal.IsComplete(ctx, store) }))
	sent, err := w.fleet.Stop()
	must(t, err)
	end := time.Now()
	must(t, cluster.Poll(ctx, "an answer that has everything", func() (bool, error) {
		a, err := w.ask(ctx)
		if err != nil {
			return false, err
		}
		return !a.partial && a.through.After(end), fmt.Errorf("partial %v, complete through %s", a.partial, a.through)
	}))
	w.look(ctx, t)
	a, err := w.ask(ctx)
	must(t, err)
	samples := 0
	for _, n := range a.hosts {
		samples += n
	}
	if want := len(sent.Acked) * 2 * load.DefaultRows; samples != want {
		t.Errorf("%d samples, %d of %d batches were acknowledged", samples, want, len(sent.Acked))
	}
	t.Logf("%d batches, %d in the lost file", len(sent.Acked), lost.Entries)
}
