package rollup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// An agent that has more in an hour than a worker can make is set aside for that hour: a
// record in the bucket says so, plans leave its batches out, and the others of the shard are
// rolled up. Its batches stay pending, and so in the intake: query nodes hold them in
// memory, or say that they are not rolled up. Where the bounds were raised, or somebody
// deletes the record, they are tried again.

// agentHour is an agent in an hour.
type agentHour struct {
	hour  timegrid.Hour
	agent string
}

// asides are the records of a shard, as they were listed.
type asides struct {
	of     map[agentHour]catalog.Aside
	listed time.Time
}

const (
	// asidesEvery is the time between two listings.
	asidesEvery = time.Minute
	// maxAsides bounds those that are remembered of a shard; what is beyond them is tried again, and set aside again.
	maxAsides = 10_000
)

// isAside reports whether the agent is set aside for the hour.
func (o *owner) isAside(h timegrid.Hour, agent string) bool {
	_, ok := o.aside.of[agentHour{h, agent}]
	return ok
}

// asideBatches counts the pending batches that are set aside in an hour of theirs.
func (o *owner) asideBatches() (n int) {
	if len(o.aside.of) == 0 {
		return 0
	}
	for _, p := range o.log.batches {
		for _, h := range p.hours {
			if o.isAside(h, p.Agent) {
				n++
				break
			}
		}
	}
	return n
}

// limitOfHour is about the memory that an hour may take, all parts together.
func (s *Service) limitOfHour() int64 { return int64(s.cfg.Jobs.Memory) * int64(s.cfg.Jobs.MaxParts) }

// listAsides reads the records of the shard now and then, and deletes those of agents that
// fit by now.
func (o *owner) listAsides(ctx context.Context) error {
	now := o.s.now()
	if o.aside.of != nil && now.Sub(o.aside.listed) < asidesEvery {
		return nil
	}
	found := map[agentHour]catalog.Aside{}
	prefix := layout.RollupAsides(o.grant.Shard)
	for i, err := range objstore.List(ctx, o.s.store, objstore.ListOptions{Prefix: prefix}) {
		if err != nil {
			return fmt.Errorf("list %q: %w", prefix, err)
		}
		if len(found) == maxAsides {
			break
		}
		h, _, agent, err := layout.ParseRollupAside(i.Key)
		if err != nil {
			continue
		}
		if old, ok := o.aside.of[agentHour{h, agent}]; ok {
			found[agentHour{h, agent}] = old
			continue
		}
		a, ok, err := o.readAside(ctx, i.Key)
		if err != nil {
			return err
		}
		if ok {
			found[agentHour{h, agent}] = a
		}
	}
	if o.aside.of != nil {
		for at := range o.aside.of {
			if _, ok := found[at]; !ok {
				o.retryHour(at.hour) // somebody released it
			}
		}
	}
	o.aside = asides{found, now}
	return nil
}

// readAside reads one record; false: it counts for nothing, and is deleted where it may be.
func (o *owner) readAside(ctx context.Context, key string) (catalog.Aside, bool, error) {
	s := o.s
	b, _, err := s.store.Get(ctx, key, objstore.GetOptions{Limit: int64(catalog.AsideKind.MaxBytes)})
	if errors.Is(err, objstore.ErrNotFound) {
		return catalog.Aside{}, false, nil
	}
	var a catalog.Aside
	if err == nil {
		a, err = catalog.ParseAside(key, b)
	}
	switch {
	case record.Unreadable(err):
		// Without it the agent is tried, and set aside again if that is needed.
		s.log.Error("the record of an agent that was set aside can't be read; it is tried again", "key", key, "error", err)
	case err != nil:
		return a, false, fmt.Errorf("read %q: %w", key, err)
	case a.AuthorityID != s.cfg.AuthorityID:
		s.log.Error("the record of an agent that was set aside is of another authority", "key", key, "authority", a.AuthorityID)
		return a, false, nil
	case a.Limit < s.limitOfHour():
		s.log.Info("an agent that was set aside is tried again: an hour may take more memory now", "agent", a.Agent, "shard", a.Shard, "hour", a.Hour,
			"limit_then", a.Limit, "limit_now", s.limitOfHour())
	default:
		return a, true, nil
	}
	if err := s.store.Delete(ctx, key); err != nil {
		return a, false, fmt.Errorf("delete %q: %w", key, err)
	}
	return a, false, nil
}

// retryHour has an hour looked at without a wait.
func (o *owner) retryHour(h timegrid.Hour) {
	if w := o.log.hours[h]; w != nil {
		w.next = time.Time{}
	}
}

// setAside records that the agent is left out of the hour, before any plan leaves it out.
func (o *owner) setAside(ctx context.Context, a catalog.Aside) error {
	if _, err := o.s.store.Put(ctx, a.Key(), a.Marshal(), objstore.PutOptions{ContentType: "application/json"}); err != nil {
		return fmt.Errorf("put %q: %w", a.Key(), err)
	}
	if o.aside.of == nil {
		o.aside.of = map[agentHour]catalog.Aside{}
	}
	o.aside.of[agentHour{a.Hour, a.Agent}] = a
	o.s.m.setAside.Inc()
	o.s.log.Error("an agent is set aside: its hour does not fit into memory; the others of the shard are rolled up", "agent", a.Agent, "shard", a.Shard, "hour", a.Hour,
		"reason", a.Reason, "series", a.Series, "records", a.Records, "bytes", a.Bytes, "limit", a.Limit)
	return nil
}
