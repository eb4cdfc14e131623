package regions_test

import (
	"context"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// lateRequest is one that arrives later, or once more; keeping: of somebody who opens epochs.
type lateRequest struct {
	keeping bool
	fn      func()
}

// fault lets something go wrong.
func (w *sim) fault() {
	if w.gone != "" && !w.retired && w.regressed < 3 && w.rnd.IntN(8) == 0 {
		// A retirement takes few steps.
		w.restoreWhileRetiring()
	}
	// So does a recovery, and copies of etcd that are made meanwhile are the ones that mislead.
	if w.last > 0 && w.rnd.IntN(24) == 0 && w.filling() {
		if w.rnd.IntN(3) > 0 {
			w.copies = append(w.copies, w.kv.Copy())
		} else {
			w.restoreUnderTheSameCluster(max(0, len(w.copies)-w.rnd.IntN(6)))
		}
	}
	switch n := w.rnd.IntN(61); {
	case n < 2:
		w.copies = append(w.copies, w.kv.Copy())
	case n == 2:
		w.restore()
	case n < 6:
		a := w.actors[w.rnd.IntN(len(w.actors))]
		a.kill()
	case n == 6:
		w.leader = everywhere[w.rnd.IntN(len(everywhere))]
		w.away = ""
		if w.rnd.IntN(3) == 0 {
			w.away = everywhere[w.rnd.IntN(len(everywhere))]
		}
	case n < 35 && len(w.late) > 0:
		i := w.rnd.IntN(len(w.late))
		l := w.late[i]
		w.late = slices.Delete(w.late, i, i+1)
		l.fn()
	case n == 60:
		if w.rnd.IntN(3) == 0 {
			w.restoreUnderTheSameCluster(0)
		}
	}
}

// maxClusters bounds the restores by the book.
const maxClusters = 6

// restore restores etcd by the book. Etcd that is lost with a region at once is more than is promised.
func (w *sim) restore() {
	if len(w.copies) == 0 || w.cluster >= maxClusters || w.gone != "" && !w.retired {
		return
	}
	w.cluster++
	w.logf("etcd is restored as cluster %d", w.cluster)
	revision := w.revision()
	w.restoreTo(w.copies[w.rnd.IntN(len(w.copies))])
	if w.rnd.IntN(2) == 0 {
		return
	}
	// Others use it too: its revision does not tell then.
	for w.revision() < revision {
		_, _ = w.kv.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: "/elsewhere", Value: []byte("x")}}}}})
	}
}

func (w *sim) revision() int64 {
	r, _ := w.kv.Commit(context.Background(), claims.Txn{})
	return r.Revision
}

// restoreTo puts a copy in the place of etcd, which then gets requests that were sent to it long ago: all of them may come late, or twice.
func (w *sim) restoreTo(c *kv.Store) {
	w.kv.Restore(c, w.cluster)
	if w.rnd.IntN(2) == 0 {
		return
	}
	for range w.rnd.IntN(2 * maxSent) {
		if len(w.sent) > 0 {
			_, _ = w.kv.Commit(context.Background(), w.sent[w.rnd.IntN(len(w.sent))])
		}
	}
}

// maxSent bounds the requests that are remembered to come once more.
const maxSent = 24

// remember keeps a request of a collector or reconciler that changes something.
func (w *sim) remember(t claims.Txn) {
	writes := func(p claims.Part) bool { return len(p.Puts)+len(p.Deletes) > 0 }
	if w.quiet || !slices.ContainsFunc(t.Parts, writes) {
		return
	}
	if w.sent = append(w.sent, t); len(w.sent) > maxSent {
		w.sent = slices.Delete(w.sent, 0, 1)
	}
}

// filling: a recovery is under way, or has died.
func (w *sim) filling() bool {
	r, _ := w.kv.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: keys.Epoch()}, {From: keys.Filled()}}}}})
	return len(r.Parts[0].Reads[0]) > 0 && len(r.Parts[0].Reads[1]) == 0
}

// restoreUnderTheSameCluster is noticed by a coordinator that lives, at once: what others are told by the copy before is more than is
// promised. Copies that were made while an epoch was recovered are among them; first is the first copy that may be taken.
func (w *sim) restoreUnderTheSameCluster(first int) {
	of := w.copies[first:]
	if len(of) == 0 || w.last == 0 || w.gone != "" && !w.retired {
		return
	}
	w.faults["same cluster"]++
	w.logf("etcd is restored under the same cluster id, %d", w.cluster)
	w.restoreTo(of[w.rnd.IntN(len(of))])
	w.notice()
}

// notice is what a coordinator does that has lived through a restore under the same cluster id.
func (w *sim) notice() {
	if err := w.calm().Distrust(context.Background(), w.lived); err != nil {
		w.fail("%v", err)
	}
}

// calm is a keeper whose requests never fail.
func (w *sim) calm() *regions.Keeper {
	c := regions.Config{KV: w.kv, Keys: keys, Rand: simRand{w.rnd}, Now: func() int64 { return w.now.UnixNano() }, SealAt: 4}
	for _, r := range everywhere {
		c.Regions = append(c.Regions, regions.Region{Name: r, Store: w.buckets[r]})
	}
	k, err := regions.New(c)
	if err != nil {
		w.fail("%v", err)
	}
	return k
}

// restoreWhileRetiring restores etcd, under any cluster id, while a region is being retired. A copy that was
// made since the region is gone has everything that it had decided. Of an earlier one nothing is promised of these identities; but of those
// of other regions everything is.
func (w *sim) restoreWhileRetiring() {
	if !w.retiring() {
		if w.rnd.IntN(2) == 0 {
			w.copies = append(w.copies, w.kv.Copy())
		}
		return
	}
	var c *kv.Store
	switch since := w.copies[w.copiesGone:]; {
	case len(since) > 0 && w.rnd.IntN(3) > 0:
		c = since[w.rnd.IntN(len(since))]
		w.faults["while retiring"]++
	case len(w.copies) > 0 && w.rnd.IntN(2) == 0:
		c = w.copies[w.rnd.IntN(len(w.copies))]
		for id := range w.had(w.gone) {
			w.forgiven[id] = true
		}
		// Another frame may have been refused because of one that was durable, and not in its journal yet.
		for _, s := range append(w.copies[:len(w.copies):len(w.copies)], w.kv) {
			for _, c := range w.allIn(s) {
				if c.Home == w.gone && c.State != claims.Claimed {
					w.forgiven[c.Identity] = true
				}
			}
		}
		w.faults["older, while retiring"]++
	default:
		return
	}
	same := w.rnd.IntN(2) == 0 || w.cluster == maxClusters
	if !same {
		w.cluster++
	}
	w.regressed++
	w.logf("etcd is restored as cluster %d while %s is retired", w.cluster, w.gone)
	if w.restoreTo(c); same {
		w.notice()
	}
}

// retiring: the records of the regions that are left say that the lost one is retired.
func (w *sim) retiring() bool {
	for _, r := range everywhere {
		b, _, err := w.buckets[r].Get(context.Background(), layout.RegionsKey, objstore.GetOptions{})
		rec, err2 := regions.ParseRecord(b)
		if r != w.gone && (err != nil || err2 != nil || !slices.ContainsFunc(rec.Retired, func(t regions.Retired) bool { return t.Name == w.gone })) {
			return false
		}
	}
	return true
}

// forgives reports whether an identity, or one that meets it, may be told something else than before.
func (w *sim) forgives(id identity.Batch) bool {
	for other := range w.forgiven {
		if other.Intersects(id) {
			return true
		}
	}
	return false
}

// unfilled: etcd does not have everything that was decided.
func (w *sim) unfilled() bool {
	_, err := w.calm().Open(context.Background(), false)
	return err != nil
}

// wholeEtcd is everything in a store of claims that begins with a prefix.
func wholeEtcd(s *kv.Store, prefix string) []claims.Entry {
	r, _ := s.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: prefix, End: prefix[:len(prefix)-1] + "0"}}}}})
	return r.Parts[0].Reads[0]
}
