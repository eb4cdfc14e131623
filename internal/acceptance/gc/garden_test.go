package gc_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
)

// garden is a bucket whose clock a test moves.
type garden struct {
	*mem.Store
	t   *testing.T
	now time.Time
	seq uint64
}

func newGarden(t *testing.T) *garden {
	g := &garden{t: t, now: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)}
	g.Store = newStore(t, func() time.Time { return g.now })
	return g
}

func (g *garden) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// batch is one that no other call has made.
func (g *garden) batch() accept.Submission {
	g.seq++
	return encode(g.t, g.seq, float64(g.seq))
}

// accepted accepts n batches, which the journal names.
func (g *garden) accepted(n int) (out []accept.Submission) {
	for range n {
		sub := g.batch()
		submit(g.t, g.Store, sub)
		out = append(out, sub)
	}
	journals(g.t, g.Store, journal.Accepted, out...)
	return out
}

// orphans writes n blobs that nobody has accepted.
func (g *garden) orphans(n int) (out []accept.Submission) {
	for range n {
		sub := g.batch()
		put(g.t, g.Store, layout.Blob(sub.SHA256, 0), sub.Frame)
		out = append(out, sub)
	}
	return out
}

// report is what a collector writes.
func (g *garden) report(witness accept.Submission, submissions uint64, subs ...accept.Submission) string {
	r := gc.OrphanReport{AuthorityID: "authority-1", CollectorID: "c", ReportedAt: g.now.UnixNano(), Submissions: submissions}
	if witness.Frame != nil {
		r.Witness = layout.Accepted(witness.Identity)
	}
	for _, s := range subs {
		r.Frames = append(r.Frames, s.SHA256)
	}
	body, err := r.Marshal()
	g.must(err)
	put(g.t, g.Store, r.Key(body), body)
	return r.Key(body)
}

// limits of a service that does everything at once.
func limits() gc.Limits {
	return gc.Limits{MinAge: 24 * time.Hour, Delay: 5 * time.Minute, Interval: 7 * 24 * time.Hour, Lease: 10 * time.Minute}
}

func (g *garden) runner(name string, l gc.Limits, s gc.RunnerStore) *gc.Runner {
	if s == nil {
		s = g.Store
	}
	r, err := gc.NewRunner(gc.RunnerConfig{Store: s, AuthorityID: "authority-1", By: name, Claim: "claim of " + name, Clock: &clock{}, Limits: l})
	g.must(err)
	return r
}

// run steps until there is nothing to do.
func (g *garden) run(r *gc.Runner) gc.State {
	g.t.Helper()
	for range 10_000 {
		p, err := r.Step(g.t.Context())
		g.must(err)
		if !p.Worked {
			return p.State
		}
	}
	g.t.Fatal("it never ends")
	return gc.State{}
}

func (g *garden) state() gc.State {
	g.t.Helper()
	s, _, err := gc.ReadState(g.t.Context(), g.Store, "authority-1")
	g.must(err)
	return s
}

func (g *garden) keys(prefix string) (keys []string) {
	g.t.Helper()
	g.must(storetest.Each(g.t.Context(), g.Store, prefix, func(o objstore.Info) error { keys = append(keys, o.Key); return nil }))
	return keys
}

// check that all of these frames are readable, or none is.
func (g *garden) check(there bool, subs ...accept.Submission) {
	g.t.Helper()
	for _, s := range subs {
		if len(g.keys(layout.BlobStem(s.SHA256))) > 0 != there {
			g.t.Errorf("the frame of %s: is it there? want %v", s.Identity, there)
		}
	}
}

func (g *garden) logs() (all []gc.Log) {
	for _, key := range g.keys(layout.BlobLogsPrefix) {
		b, _, err := g.Get(g.t.Context(), key, objstore.GetOptions{})
		g.must(err)
		l, err := gc.ParseLog(b)
		g.must(err)
		if l.Key(b) != key {
			g.t.Errorf("log %s has the key of %s", key, l.Key(b))
		}
		all = append(all, l)
	}
	return all
}
