package objectstore

import (
	"context"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/redundancy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// codesSegments says which segments of the log become coded bodies; false: none. It takes a policy of shards, which need less room than
// the log's drives take, and as many of which may be lost: anything else would be no gain, or make small objects less safe.
func (c Config) codesSegments() (engine.Coding, bool) {
	r, p, drives := c.Redundancy, c.policy(), 1+len(c.Mirrors)
	if len(c.Places) == 0 || r.SegmentsAfter == 0 || p.Data == 0 || p.Data+p.Parity >= drives*p.Data || p.Parity < drives-1 {
		return engine.Coding{}, false
	}
	return engine.Coding{After: r.SegmentsAfter, Live: r.SegmentsLive, Least: p.Threshold, Most: r.Workers}, true
}

// offerSegments makes the keeper's work of segments that are old enough.
func (s *Service) offerSegments(ctx context.Context, eng *engine.Engine, m *metrics) {
	c, ok := s.cfg.codesSegments()
	keeper := m.keeping.get()
	if !ok || keeper == nil {
		return
	}
	list, err := eng.OfferSegments(ctx, c)
	if err != nil && ctx.Err() == nil {
		s.deps.Telemetry.Log.Error("a closed segment could not be read to be coded", "error", err)
	}
	for _, o := range list {
		keeper.Written(o.Body, o.Size, []string{redundancy.LogPlace})
	}
}

// segments are those of an engine as the keeper sees them.
type segments struct{ eng *engine.Engine }

// Offered implements redundancy.Segments.
func (s segments) Offered() map[string]int64 {
	sizes := map[string]int64{}
	for _, o := range s.eng.Offers() {
		sizes[o.Body] = o.Size
	}
	return sizes
}

// Settle implements redundancy.Segments.
func (s segments) Settle(ctx context.Context, id string) error { return s.eng.Settle(ctx, id) }

// status gives what the status of the redundancy says of segments.
func (s segments) status() redundancy.SegmentStatus {
	st := s.eng.Stats()
	return redundancy.SegmentStatus{Coded: st.CodedSegments, CodedBytes: st.CodedBytes, Waiting: st.UncodedSegments, LogBytes: st.LogBytes}
}

// offered opens a body that the log has to offer.
func (k *keeping) offered(id string) spread.Bytes {
	eng := k.eng.Load()
	if eng == nil {
		return nil
	}
	if o := eng.OpenOffered(id); o != nil {
		return o
	}
	return nil
}
