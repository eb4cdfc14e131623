package rollup

import (
	"bytes"
	"reflect"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// claims checks what plans of shard 0 say of the journal, each as soon as it is there.
type claims struct {
	w    *world
	lost map[identity.Batch]bool // batches whose frames could not be read at some time
	seen map[string]bool         // keys of plans
	// claimed is how many of them have positions, batches how many batches at or before these were looked for, and inDeltas
	// how many of those were in a delta of another owner, which the plan's did not know yet.
	claimed, batches, inDeltas int
}

// check wants every batch of the plan's hour that the journal has at or before the plan's positions among its inputs,
// unless its frame was lost or a delta has it. A batch that was left out waits, or came in later.
func (c *claims) check() {
	w := c.w
	w.t.Helper()
	records := hour.Records{Store: w.store, AuthorityID: testAuthority, Shards: testShards}
	fresh := false
	must(w.t, storetest.Each(w.t.Context(), w.store, layout.PlansPrefix+"shard="+shard.ID(0).String()+"/", func(o objstore.Info) error {
		h, _, gen, err := layout.ParseRollupPlan(o.Key)
		if err != nil || c.seen[o.Key] {
			return err
		}
		c.seen[o.Key] = true
		p, err := records.Plan(w.t.Context(), h, 0, gen)
		if err != nil || p.Journal == nil {
			return err
		}
		fresh = true
		c.claimed++
		for _, e := range w.before(*p.Journal) {
			if e.Outcome.Conflict() || shard.Of(e.ID.Agent, testShards) != 0 || !slices.Contains(w.hoursOf(e), h) {
				continue
			}
			c.batches++
			switch {
			case slices.ContainsFunc(p.Inputs, func(b accepted.Batch) bool { return b.Identity == e.ID }), c.lost[e.ID]:
			case w.inDelta(e.ID, h):
				c.inDeltas++
			default:
				w.t.Fatalf("%s is no input of %s, whose worker had read through %+v", e.ID, o.Key, *p.Journal)
			}
		}
		return nil
	}))
	if fresh {
		w.left(0)
	}
}

// inDelta reports whether a delta of shard 0 has the batch's records of the hour.
func (w *world) inDelta(id identity.Batch, h timegrid.Hour) (found bool) {
	w.t.Helper()
	for _, key := range w.deltas(0) {
		d, err := delta.Read(w.t.Context(), w.store, testAuthority, key)
		must(w.t, err)
		for _, b := range d.Batches {
			found = found || b.Identity == id && slices.Contains(b.Hours, h)
		}
	}
	return found
}

// before gives the entries that the journal has at or before positions.
func (w *world) before(at journal.Positions) (out []journal.Entry) {
	w.t.Helper()
	after := map[identity.Batch]int{}
	for _, e := range w.read(at) {
		after[e.ID]++
	}
	for _, e := range w.read(journal.Positions{}) {
		// What the journal has later too was answered again, and is before as well.
		if after[e.ID]--; after[e.ID] < 0 {
			out = append(out, e)
		}
	}
	return out
}

// journalOf gives the positions of hour0's committed blocks in shard 0, which are those of their plan.
func (w *world) journalOf(gen uint64) *journal.Positions {
	w.t.Helper()
	records := hour.Records{Store: w.store, AuthorityID: testAuthority, Shards: testShards}
	p, err := records.Plan(w.t.Context(), hour0, 0, gen)
	must(w.t, err)
	for _, res := range timegrid.Resolutions() {
		n := catalog.Name{Hour: hour0, Resolution: res, Generation: gen}
		r, _, err := catalog.Read(w.t.Context(), w.store, testAuthority, n.Key())
		must(w.t, err)
		if r.Block == nil || !reflect.DeepEqual(r.Block.Journal, p.Journal) {
			w.t.Fatalf("%s has %+v, its plan %+v", n.Key(), r.Block, p.Journal)
		}
	}
	return p.Journal
}

// TestGenerationsSayThroughWhichPositions: a plan and its blocks have the positions of the last poll before the plan,
// and those of the next generation are later.
func TestGenerationsSayThroughWhichPositions(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0, 0, 2, 0)
	cfg := testConfig()
	o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	must(t, rounds(t.Context(), o))
	first := w.journalOf(1)
	if first == nil || len(w.before(*first)) != 2 {
		t.Fatalf("generation 1 was planned at %+v", first)
	}
	if s := o.Status(); s.JournalRuns != len(first.Runs) || s.JournalHead != first.Head {
		t.Errorf("the status says head %d, %d runs; the plan %+v", s.JournalHead, s.JournalRuns, first)
	}
	w.some(agent, hour0, 2, 1, seq)
	must(t, rounds(t.Context(), o))
	w.advance(cfg.Schedule.LateAfter)
	must(t, rounds(t.Context(), o))
	second := w.journalOf(2)
	if second == nil || len(w.before(*second)) != 3 {
		t.Fatalf("generation 2 was planned at %+v", second)
	}
}

// TestAPlanOfAShardThatIsBehindSaysNothing: while the worker knows of a batch whose hours it can't find, or has not caught up
// with the journal, its plans have no positions.
func TestAPlanOfAShardThatIsBehindSaysNothing(t *testing.T) {
	w := newWorld(t, newMem())
	w.some(agentOf(0, 0), hour0, 0, 2, 0)
	wide := w.accept(agentOf(0, 1), 0, point{"m", series.Gauge, at(hour0-3, time.Minute), 1}, point{"m", series.Gauge, at(hour0, time.Minute), 2})
	faulty := fault.New(w.store, 1, fault.Rule{Op: "read", Prefix: wide.RawBlobKey, Kind: fault.Before})
	o, err := w.owner(w.worker(testConfig(), faulty), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	if _, err := o.Round(t.Context()); err != nil {
		t.Log(err)
	}
	if o.Arrivals.Deferred() != 1 {
		t.Fatalf("%d batches are deferred", o.Arrivals.Deferred())
	}
	if at := w.journalOf(1); at != nil {
		t.Errorf("generation 1 lacks %s, and says %+v", wide.Identity, at)
	}
	faulty.Clear()
	w.advance(time.Minute)
	must(t, rounds(t.Context(), o))
	w.advance(testConfig().Schedule.LateAfter)
	must(t, rounds(t.Context(), o))
	if at := w.journalOf(2); at == nil || len(w.before(*at)) != 3 {
		t.Errorf("generation 2 was planned at %+v", at)
	}
}

// TestGenerationsWithoutPositions: an hour whose records are of a former release, without positions, is read, and its next
// generation has them.
func TestGenerationsWithoutPositions(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0, 0, 2, 0)
	svc := w.worker(testConfig(), w.store)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	_, err = w.workers[svc].planner().Plan(t.Context(), hour0, 0, 1, &hour.State{}, w.accepted, nil, 0)
	must(t, err)
	must(t, rounds(t.Context(), o))
	if at := w.journalOf(1); at != nil {
		t.Fatalf("generation 1 has the positions %+v, its plan none", at)
	}
	b, _, err := w.store.Get(t.Context(), layout.RollupPlan(hour0, 0, 1), objstore.GetOptions{})
	if err != nil || bytes.Contains(b, []byte("journal")) {
		t.Fatalf("%s, %v", b, err)
	}
	w.some(agent, hour0, 2, 1, seq)
	must(t, rounds(t.Context(), o))
	w.advance(testConfig().Schedule.LateAfter)
	must(t, rounds(t.Context(), o))
	if at := w.journalOf(2); at == nil {
		t.Error("generation 2 has no positions")
	}
	w.check(hour0, 0, 2)
}
