package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// maxOverlapping bounds the batches of a boot that reach one sequence number and are compared with each other.
const maxOverlapping = 1000

// verifyOverlaps looks for records that count twice, over all hours of every boot. Each hour conserves its own inputs,
// and decides among them whose a sequence number is. Hours agree only where all batches with the number are
// inputs of each hour that one of them has samples in.
//
// Manifests are listed in the order of their first numbers, so batches that overlap are found without a request for each,
// however far apart in time their samples are.
func (v *verifier) verifyOverlaps(ctx context.Context) error {
	var before []identity.Batch // of the boot, that may reach further ones
	for i, err := range objstore.List(ctx, v.r.cfg.Store, objstore.ListOptions{Prefix: layout.AcceptedPrefix}) {
		if err != nil {
			return err
		}
		id, err := layout.ParseAccepted(i.Key)
		if err != nil || v.o.Shard != nil && shard.Of(id.Agent, v.r.cfg.Shards) != *v.o.Shard {
			continue // a foreign key, or of another shard
		}
		v.rep.Batches++
		before = slices.DeleteFunc(before, func(o identity.Batch) bool { return o.BootOf() != id.BootOf() || o.SeqEnd < id.SeqStart })
		for _, o := range before {
			if err := v.verifyPair(ctx, o, id); err != nil {
				return err
			}
		}
		if before = append(before, id); len(before) > maxOverlapping {
			before = before[1:]
		}
	}
	return nil
}

// verifyPair checks two accepted batches that share numbers.
func (v *verifier) verifyPair(ctx context.Context, x, y identity.Batch) error {
	v.rep.Overlaps++
	// What is pending is read before the blocks: a batch that is not, is in all of its blocks by then.
	if v.coverage == nil {
		c, err := v.r.Coverage(ctx)
		if err != nil {
			return err
		}
		v.coverage = c
	}
	if v.coverage.pending[x] || v.coverage.pending[y] {
		return nil // on its way
	}
	if err := v.verifyTogether(ctx, x, y); err != nil {
		return err
	}
	return v.verifyTogether(ctx, y, x)
}

// verifyTogether reports hours in which x has samples and counts, and y was not asked whose the numbers are.
func (v *verifier) verifyTogether(ctx context.Context, x, y identity.Batch) error {
	m, err := accept.ReadManifest(ctx, v.r.cfg.Store, x)
	switch {
	case record.Unreadable(err) || errors.Is(err, objstore.ErrNotFound):
		return nil // lmctl fsck reports it; nobody knows what it won
	case err != nil:
		return err
	}
	for _, h := range hoursOfEnds(m.Batch()) {
		if h < v.o.From || h > v.o.To {
			continue
		}
		at := place{h, shard.Of(x.Agent, v.r.cfg.Shards)}
		p, err := v.coverage.publishedIn(ctx, at)
		if err != nil {
			return err
		}
		if p.damaged || !slices.ContainsFunc(p.inputs, func(in catalog.Inputs) bool { return in.Covers(x) && !in.Covers(y) }) {
			continue
		}
		if lost, err := v.lost(ctx, y); err != nil {
			return err
		} else if lost {
			return nil
		}
		v.addFinding(Finding{CountedTwice, h, at.shard, timegrid.Raw, layout.Accepted(y),
			fmt.Sprintf("the hour has %s and not this batch: numbers %d to %d may count for both", x, max(x.SeqStart, y.SeqStart), min(x.SeqEnd, y.SeqEnd))})
	}
	return nil
}

// lost reports whether a batch of one of several regions is none of those that count. Of batches that share numbers the linearizer lets
// one count: one that was written under a claim and counts in neither of the hours of its ends is another one, and one that was
// written before there were claims is, if it has no entry of the journal.
func (v *verifier) lost(ctx context.Context, id identity.Batch) (bool, error) {
	m, err := accept.ReadManifest(ctx, v.r.cfg.Store, id)
	switch {
	case record.Unreadable(err) || errors.Is(err, objstore.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case m.Stamp().IsZero():
		counted, err := v.r.counted(ctx, []accepted.Batch{m.Batch()})
		if errors.Is(err, ErrUnknown) || errors.Is(err, history.ErrIncomplete) {
			return false, nil // nobody can say
		}
		return err == nil && counted != nil && !counted[id], err
	}
	for _, h := range hoursOfEnds(m.Batch()) {
		p, err := v.coverage.publishedIn(ctx, place{h, shard.Of(id.Agent, v.r.cfg.Shards)})
		if err != nil {
			return false, err
		}
		if p.damaged || slices.ContainsFunc(p.inputs, func(in catalog.Inputs) bool { return in.Covers(id) }) {
			return false, nil
		}
	}
	return true, nil
}

// hoursOfEnds gives the hours of the first and the last sample: those between may have none.
func hoursOfEnds(e accepted.Batch) []timegrid.Hour {
	first, last := e.Hours()
	return slices.Compact([]timegrid.Hour{first, last})
}
