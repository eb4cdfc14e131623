package regions_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The simulation of movers under load has several movers at once, as that of movers, and collectors and reconcilers of four regions that claim,
// take over, complete, settle and fold between any two of their requests, as that of everything. Each schedule has one or two regions at most
// that may be retired, so that nothing is forgiven of the others.

// loaded is one schedule.
type loaded struct {
	*movers
	victims []claims.Region
	member  map[claims.Region]bool // of an epoch that was open
	// restores: etcd is restored; loses: buckets are lost.
	restores, loses bool
}

// mover is an operator, or a coordinator that leads.
func (l *loaded) mover(a *actor) {
	ctx := context.Background()
	a.keeping = true
	for a.pause() {
		for range a.rnd.IntN(40) {
			a.pause()
		}
		if a.dead {
			return
		}
		k := a.keeper(l.settings(a)...)
		name := four[a.rnd.IntN(len(four))]
		switch n := a.rnd.IntN(12); {
		case n < 3:
			// Whoever adds a region has told its collectors before to accept nothing on their own any more.
			a.closed = a.closed || name == "asia"
			o, err := k.Add(ctx, name)
			a.logf("%p: add %s: %v %v", a, name, o.Epoch, err)
			if err == nil && !a.dead {
				l.opens(o)
				l.in[name] = max(l.in[name], o.Epoch.Number)
			}
		case n < 6 && len(l.victims) > 0:
			name = l.victims[a.rnd.IntN(len(l.victims))]
			if a.rnd.IntN(3) == 0 && a.gone != "" {
				name = a.gone
			}
			l.asked[name] = true
			o, err := k.Retire(ctx, name, false)
			a.logf("%p: retire %s: %v %v", a, name, o.Epoch, err)
			if err == nil && !a.dead {
				l.out[name] = max(l.out[name], o.Epoch.Number)
				l.opens(o)
			}
		case n == 6:
			if !a.added {
				name = "asia"
			}
			p, _, err := k.Prepare(ctx, name, goOn)
			if err == nil && !a.dead {
				a.prepared = max(a.prepared, int(p.Batches))
			}
		default:
			o, err := k.Open(ctx, true)
			a.logf("%p: open: %v %v", a, o.Epoch, err)
			if err == nil && !a.dead {
				l.opens(o)
			}
		}
	}
}

// opens: an epoch was open. What the journal of a region had that it lacks nobody reads any more.
func (l *loaded) opens(o regions.Opened) {
	if e := o.Epoch; e.Number >= l.last {
		l.logf("epoch %d is open: %v", e.Number, e.Regions)
		for r := range l.member {
			if !slices.Contains(e.Regions, r) && !l.former[r] {
				maps.Copy(l.lost, l.had(r))
				l.former[r], l.entries[r] = true, nil
			}
		}
		for _, r := range e.Regions {
			l.member[r] = true
		}
		l.added = l.added || l.member["asia"]
	}
	l.movers.opens(o)
}

// one lets one thing happen.
func (l *loaded) one() {
	l.step++
	l.now = l.now.Add(time.Millisecond)
	switch n := l.rnd.IntN(400); {
	case n < 6:
		l.actors[l.rnd.IntN(len(l.actors))].kill()
	case n < 20 && len(l.late) > 0:
		i := l.rnd.IntN(len(l.late))
		r := l.late[i]
		l.late = slices.Delete(l.late, i, i+1)
		r.fn()
	case n == 20:
		l.away = ""
		if l.rnd.IntN(2) == 0 {
			l.away = four[l.rnd.IntN(len(four))]
		}
	case n == 21 && l.loses && (l.gone == "" || l.out[l.gone] > 0) && l.complete():
		// The next one, once the one before is retired, whose bucket is there again, with what it had.
		if r := l.victims[l.rnd.IntN(len(l.victims))]; slices.Contains(l.lived.Epoch.Regions, r) {
			l.gone, l.losses[r] = r, true
			l.faults["lost"]++
			// What a recovery has dropped from etcd only the bucket has. Mostly none is under way.
			if l.rnd.IntN(4) > 0 {
				for _, a := range l.actors {
					if a.keeping {
						a.kill()
					}
				}
				l.late = slices.DeleteFunc(l.late, func(r lateRequest) bool { return r.keeping })
			}
			l.logf("%s is gone", l.gone)
		}
	case n == 22 && l.restores:
		if l.copies = append(l.copies, l.kv.Copy()); len(l.copies) > 8 {
			l.copies = slices.Delete(l.copies, 0, 1)
		}
	case n == 23 && len(l.copies) > 0 && l.rnd.IntN(2) == 0:
		l.restore()
	default:
		a := l.actors[l.rnd.IntN(len(l.actors))]
		if l.step < l.sleeps[a] {
			return
		}
		l.at = a
		if _, ok := a.resume(); !ok {
			a.restart()
		}
		l.at = nil
	}
}

// restore restores etcd. Of a region whose bucket is lost nothing is promised then, before it is retired.
func (l *loaded) restore() {
	for _, r := range l.victims {
		if l.out[r] > 0 || l.gone != r {
			continue
		}
		l.restored = true
		for id := range l.had(r) {
			l.forgiven[id] = true
		}
		for _, s := range append(l.copies[:len(l.copies):len(l.copies)], l.kv) {
			for _, c := range l.allIn(s) {
				if c.Home == r && c.State != claims.Claimed {
					l.forgiven[c.Identity] = true
				}
			}
		}
	}
	same := l.rnd.IntN(2) == 0 || l.cluster >= maxClusters
	if !same {
		l.cluster++
	}
	l.faults["restored"]++
	l.logf("etcd is restored as cluster %d", l.cluster)
	l.restoreTo(l.copies[l.rnd.IntN(len(l.copies))])
	if same {
		if err := l.calmly(four...).Distrust(context.Background(), l.lived); err != nil {
			l.fail("%v", err)
		}
	}
}

func simulateLoad(t testing.TB, seed uint64, ends map[string]int) *sim {
	rnd := rand.New(rand.NewPCG(seed, 16))
	w := &sim{
		t: t, rnd: rnd, seed: seed, faulty: 40 + 160*rnd.IntN(2), names: four, now: time.Unix(1000, 0), kv: kv.New(), cluster: 1, trace: os.Getenv("REGIONS_SIM_TRACE") != "", buckets: map[claims.Region]*mem.Store{},
		faults: map[string]int{}, acked: map[identity.Batch]identity.Digest{}, refused: map[identity.Batch][]identity.Digest{}, ranged: map[identity.Batch]bool{},
		alone: map[identity.Batch]identity.Digest{}, lost: map[identity.Batch]identity.Digest{}, forgiven: map[identity.Batch]bool{},
		entries: map[claims.Region]map[identity.Batch]identity.Digest{}, former: map[claims.Region]bool{},
	}
	m := &movers{sim: w, asked: map[claims.Region]bool{}, out: map[claims.Region]uint64{}, in: map[claims.Region]uint64{}, adding: map[*actor]int{}, sleeps: map[*actor]int{}, lacking: map[*kv.Store]bool{}, losses: map[claims.Region]bool{}, ends: ends}
	l := &loaded{movers: m, member: map[claims.Region]bool{}, restores: seed%4 == 1 || seed%8 == 2, loses: seed%8 >= 5}
	w.wrote, w.committed, w.saw = m.record, m.fills, l.opens
	defer func() {
		for _, a := range w.actors {
			a.stop()
		}
		if w.failed != "" {
			t.Fatal(w.failed)
		}
	}()
	for _, r := range four {
		w.buckets[r], w.entries[r] = mem.New(nil), map[identity.Batch]identity.Digest{}
	}
	shuffled := slices.Clone(four)
	rnd.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	if l.victims = shuffled[:2]; l.restores && !l.loses {
		l.victims = shuffled[:rnd.IntN(2)]
	}
	m.first = slices.Clone(four)
	rnd.Shuffle(len(m.first), func(i, j int) { m.first[i], m.first[j] = m.first[j], m.first[i] })
	m.first = m.first[:1+rnd.IntN(3)]
	if w.closed = slices.Contains(m.first, "asia"); !w.closed {
		for range 3 {
			w.acceptAlone()
		}
		w.spawn("asia", (*actor).collectAlone)
	}
	for _, r := range m.first {
		l.member[r] = true
	}
	m.begin()
	w.added = l.member["asia"]
	for range 2 + rnd.IntN(3) {
		w.spawn("", l.mover)
	}
	for _, r := range four {
		w.spawn(r, (*actor).collect)
		w.spawn(r, (*actor).reconcile)
	}
	for steps := 1500 + rnd.IntN(3000); w.step < steps && w.failed == ""; {
		l.one()
	}
	l.finish()
	return w
}

// finish: the movers end, as in their own simulation; and everything is settled or released, and says what it has said.
func (l *loaded) finish() {
	l.quiet, l.away = true, ""
	for _, r := range l.late {
		r.fn()
	}
	l.late = nil
	for _, a := range l.actors {
		a.stop()
	}
	l.actors = nil
	if l.failed == "" {
		l.movers.end()
	}
	if l.failed != "" {
		return
	}
	if l.forgot {
		l.ends["forgot"]++
		return
	}
	o, err := l.calmly(four...).Open(context.Background(), false)
	if err != nil {
		l.ends["not open"]++
		return
	}
	l.opens(o)
	for _, r := range four {
		l.spawn(r, (*actor).collect)
		l.spawn(r, (*actor).reconcile)
	}
	for range 60 {
		for range 500 {
			l.step++
			l.now = l.now.Add(time.Millisecond)
			if a := l.actors[l.rnd.IntN(len(l.actors))]; l.failed == "" {
				if _, ok := a.resume(); !ok {
					a.restart()
				}
			}
		}
		if l.failed != "" || l.settled() {
			break
		}
	}
	l.sim.end()
}

func TestSimulationUnderLoad(t *testing.T) {
	seeds, first := simulated(t, 200)
	ends, faults := map[string]int{}, map[string]int{}
	var answers, byFolds, folded, forgotten, again, epochs, prepared int
	for seed := first; seed < first+seeds; seed++ {
		w := simulateLoad(t, seed, ends)
		answers, byFolds, folded, forgotten, again = answers+w.answers, byFolds+w.decidedByFolds, folded+w.folds, forgotten+w.forgotten, again+w.again
		epochs, prepared = epochs+int(w.last), prepared+w.prepared
		for what, n := range w.faults {
			faults[what] += n
		}
		faults["former"] += len(w.former)
		faults["forgiven"] += len(w.forgiven)
	}
	t.Logf("%d schedules: %v", seeds, ends)
	t.Logf("%d answers, %d by folds, %d epochs, %d claims folded, %d boots forgotten, %d batches accepted again, %d prepared, %v", answers, byFolds, epochs, folded, forgotten, again, prepared, faults)
	for what, n := range map[string]int{"answers": answers, "folds": byFolds, "forgotten": forgotten, "again": again, "prepared": prepared, "lost": faults["lost"], "restored": faults["restored"]} {
		if n == 0 && seeds >= 50 {
			t.Error(fmt.Errorf("no schedule had any %s", what))
		}
	}
}
