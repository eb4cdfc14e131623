package reconciler

import (
	"context"
	"errors"
	"math"
	"slices"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

const (
	// maxBatchRecords is above the records of a batch: one that covers a number begins at most so far before it.
	maxBatchRecords = 1_000_000
	// usualRecords is how far before a number batches are looked for first. Agents close a batch at 10,000 records.
	usualRecords = 10_000
	// maxOverlapKeys bounds the keys that are listed to find the batches that cover a number.
	maxOverlapKeys = 20_000
	// maxOverlapManifests bounds the manifests that are read, of which some may not count here, and maxOverlapBatches the batches
	// that are compared.
	maxOverlapManifests = 1000
	maxOverlapBatches   = 16
)

// covering is an accepted batch with a number.
type covering struct {
	id    identity.Batch
	m     accept.Manifest
	err   error // why its manifest can't be read
	frame frame.Batch
}

// GetOverlap compares the accepted batches that cover one number.
func (g server) GetOverlap(ctx context.Context, req *reconcilerv1.GetOverlapRequest) (*reconcilerv1.GetOverlapResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, conflictsTimeout)
	defer cancel()
	boot := identity.Boot{Agent: req.GetAgentId(), Boot: req.GetBootId()}
	if err := boot.Validate(); err != nil {
		return nil, invalid(err.Error())
	}
	limit := int(req.GetDifferences())
	if limit <= 0 {
		limit = defaultDifferences
	}
	limit = min(limit, maxDifferences)
	ids, complete, err := g.covering(ctx, boot, req.GetSeq())
	if err != nil {
		return nil, err
	}
	out := &reconcilerv1.GetOverlapResponse{Incomplete: !complete}
	if len(ids) > maxOverlapManifests {
		ids, out.Incomplete = ids[:maxOverlapManifests], true
	}
	list := make([]*covering, len(ids))
	err = readEach(ctx, len(ids), func(ctx context.Context, i int) error {
		list[i] = &covering{id: ids[i]}
		m, err := accept.ReadManifest(ctx, g.s.store, ids[i])
		if err != nil && !record.Opaque(err) && !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
		list[i].m, list[i].err = m, err
		return nil
	})
	if err != nil {
		return nil, err
	}
	if list, err = g.ofThisRegion(ctx, list); err != nil {
		return nil, err
	}
	// Those that can't be read come last: nobody knows what counts for them.
	slices.SortFunc(list, func(a, b *covering) int {
		if (a.err == nil) != (b.err == nil) {
			if a.err == nil {
				return -1
			}
			return 1
		}
		return accepted.Claim{Identity: a.id, AcceptedAt: a.m.AcceptedAt}.Compare(accepted.Claim{Identity: b.id, AcceptedAt: b.m.AcceptedAt})
	})
	// Only now: the one that counts is the first of all of them, and what does not count here takes no place.
	if len(list) > maxOverlapBatches {
		list, out.Incomplete = list[:maxOverlapBatches], true
	}
	return out, g.compareAll(ctx, out, list, limit)
}

// covering lists the accepted batches of a boot with a number: keys are in the order of first numbers, so those that
// have it begin within the records of a batch before it. The nearest ones are looked at first.
func (g server) covering(ctx context.Context, boot identity.Boot, seq uint64) (ids []identity.Batch, complete bool, err error) {
	seen := 0
	before := func(n uint64) uint64 { return seq - min(seq, n) }
	look := func(from, to uint64) error { // those that begin in [from, to]
		for o, err := range objstore.List(ctx, g.s.store, objstore.ListOptions{Prefix: layout.AcceptedBoot(boot), StartAfter: layout.BootFrom(layout.AcceptedPrefix, boot, from)}) {
			if err != nil {
				return err
			}
			id, err := layout.ParseAccepted(o.Key)
			if err != nil {
				continue // a foreign key; audits report it
			}
			if id.SeqStart > to {
				return nil
			}
			if seen++; seen > maxOverlapKeys {
				return nil
			}
			if id.SeqEnd >= seq {
				ids = append(ids, id)
			}
		}
		return nil
	}
	if err := look(before(usualRecords), seq); err != nil {
		return nil, false, err
	}
	if first := before(usualRecords); first > 0 && seen <= maxOverlapKeys {
		if err := look(before(maxBatchRecords), first-1); err != nil {
			return nil, false, err
		}
	}
	return ids, seen <= maxOverlapKeys, nil
}

// ofThisRegion leaves out the batches that this region does not count, where there are several: copies of what another region
// counts, those that lost, and what is not decided. Their manifests may be older than that of the batch that counts. One whose
// manifest can't be read stays, since it may be the one.
func (g server) ofThisRegion(ctx context.Context, list []*covering) ([]*covering, error) {
	if g.s.cfg.Region == "" {
		return list, nil
	}
	var readable []accepted.Batch
	for _, c := range list {
		if c.err == nil {
			readable = append(readable, c.m.Batch())
		}
	}
	authority, err := g.s.journal.authority(ctx)
	if err != nil {
		return nil, err
	}
	counted, err := history.Reader{Store: g.s.store, Authority: authority}.Counted(ctx, readable)
	if errors.Is(err, history.ErrIncomplete) {
		return nil, rpc.Failure{Code: codes.Unavailable, Reason: rpc.ReasonNotReady, Message: err.Error(), RetryAfter: g.s.cfg.Queue.RetryMax}.Err()
	}
	return slices.DeleteFunc(list, func(c *covering) bool { return c.err == nil && !counted[c.id] }), err
}

// compareAll decodes the frames, two at a time, and compares each with the one that counts.
func (g server) compareAll(ctx context.Context, out *reconcilerv1.GetOverlapResponse, list []*covering, limit int) error {
	g.s.conflicts.comparing.Lock()
	defer g.s.conflicts.comparing.Unlock()
	var firstOK bool
	for i, c := range list {
		b := &reconcilerv1.OverlappingBatch{SeqStart: c.id.SeqStart, SeqEnd: c.id.SeqEnd, ManifestKey: layout.Accepted(c.id), Frame: &reconcilerv1.FrameSide{}}
		out.Batches = append(out.Batches, b)
		if c.err != nil {
			b.Frame.Error = c.err.Error()
			continue
		}
		b.FrameSha256, b.FrameKey = c.m.FrameSHA256.String(), c.m.FrameKey()
		b.Frame.AtUnixNs, b.Frame.CollectorId = c.m.AcceptedAt, c.m.CollectorID
		body, err := accept.ReadFrame(ctx, g.s.store, c.m.FrameKey(), c.m.FrameSHA256, c.m.FrameBytes)
		ok, err := decodeSide(body, err, &c.frame, b.Frame)
		if err != nil {
			return err
		}
		if i == 0 {
			firstOK = ok
			continue
		}
		first := list[0]
		b.Shared = &reconcilerv1.SeqRange{Start: max(first.id.SeqStart, c.id.SeqStart), End: min(first.id.SeqEnd, c.id.SeqEnd)}
		if !ok || !firstOK {
			continue
		}
		d := resolution.CompareNumbers(&first.frame, &c.frame, limit-len(out.GetDifferences()))
		c.frame = frame.Batch{} // one that is compared is not needed any more
		b.Same, b.Different = d.Same, d.Different
		for _, n := range d.Differences {
			out.Differences = append(out.Differences, &reconcilerv1.NumberDifference{Seq: n.Seq, Counts: numberedView(n.Counts), Other: numberedView(n.Other), OtherBatch: uint32(min(i, math.MaxInt32))})
		}
	}
	return nil
}

func numberedView(n resolution.Numbered) *reconcilerv1.NumberedRecord {
	return &reconcilerv1.NumberedRecord{Series: n.Series, TimeUnixNs: n.Time, Value: n.Value}
}
