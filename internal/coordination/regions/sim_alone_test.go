package regions_test

import (
	"context"
	"maps"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// In the simulation asia accepts on its own until somebody adds it, and is prepared meanwhile and afterwards. Some of its batches have
// identities that agents also send to the others: of these each region may have answered something else before it took part, and what
// the linearizer says of them from then on must not change.

// acceptAlone has asia accept a batch on its own: of a boot that is its own, or one that others may know.
func (w *sim) acceptAlone() {
	n := uint64(len(w.alone))
	id, hash := identity.Batch{Agent: "a", Boot: "old", SeqStart: 10 * n, SeqEnd: 10*n + 3}, identity.Digest{9}
	if n > 2 && w.rnd.IntN(2) == 0 {
		from := uint64(w.rnd.IntN(7))
		id = identity.Batch{Agent: "a", Boot: []string{"b", "c"}[w.rnd.IntN(2)], SeqStart: from, SeqEnd: from + uint64(w.rnd.IntN(3))}
		hash = identity.Digest{1 + byte(w.rnd.IntN(2))}
	}
	m := manifestOf("asia", id, hash, claims.Stamp{})
	m.AcceptedAt = w.now.UnixNano() + int64(n)
	if _, err := w.buckets["asia"].Create(context.Background(), m.Key(), m.Marshal(), objstore.PutOptions{}); err != nil {
		return
	}
	// Sometimes the collector dies before it has answered.
	if w.rnd.IntN(6) == 0 && n > 2 {
		return
	}
	err := journaltest.Append(context.Background(), w.buckets["asia"], "authority-asia", m.Entry(journal.Accepted))
	if err == nil && (n > 8 || w.rnd.IntN(3) > 0) {
		_, err = journaltest.Fold(context.Background(), w.buckets["asia"], "authority-asia")
	}
	if err != nil {
		w.fail("%v", err)
	}
	w.alone[id] = hash
	if id.Boot == "old" {
		w.acked[id] = hash
	}
}

// collectAlone is asia's collector while it accepts on its own.
func (a *actor) collectAlone() {
	for a.pause() {
		if !a.closed && len(a.alone) < 12 && a.rnd.IntN(20) == 0 {
			a.acceptAlone()
		}
	}
}

// prepare prepares asia, again and again.
func (a *actor) prepare() {
	k := a.keeper(everywhere...)
	for a.pause() {
		for range a.rnd.IntN(60) {
			a.pause()
		}
		if p, _, err := k.Prepare(context.Background(), "asia", goOn); err == nil && !a.dead {
			a.logf("prepared: %+v", p)
			a.prepared = max(a.prepared, int(p.Batches))
		}
	}
}

// had is everything that a region's journal has.
func (w *sim) had(r claims.Region) map[identity.Batch]identity.Digest {
	out := maps.Clone(w.entries[r])
	if r == "asia" {
		for id, hash := range w.alone {
			if _, there := out[id]; !there && w.acked[id] == hash {
				out[id] = hash
			}
		}
	}
	return out
}
