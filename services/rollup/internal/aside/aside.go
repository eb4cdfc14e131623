// Package aside keeps the agents of one shard that are left out of an hour because the hour
// does not fit into memory with them. A record in the bucket says so, plans leave the agent's
// batches out, and the other agents of the shard are rolled up.
//
// The batches stay pending, and so does what says it of them: query nodes hold them in memory, or
// say that they are not rolled up. They are tried again where the bounds were raised, or where
// somebody deletes the record.
package aside

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/listing"
)

const (
	// listEvery is the time between two listings.
	listEvery = time.Minute
	// maxListed bounds the records that are remembered of a shard. Agents beyond them are tried
	// again, and set aside again.
	maxListed = 10_000
)

// Config of the agents of one shard.
type Config struct {
	Store       objstore.Store
	Log         *slog.Logger
	AuthorityID string
	Shard       shard.ID
	// Limit in bytes that an hour may take now; records of a lower limit count no more.
	Limit int64
	// Listing is of the records of all shards.
	Listing *listing.Listing
}

// Agents are the records of one shard, as they were listed. Not for concurrent use.
type Agents struct {
	cfg    Config
	of     map[agentHour]catalog.Aside // nil: not listed yet
	listed time.Time
	added  bool // a record, since it was listed
}

type agentHour struct {
	hour  timegrid.Hour
	agent string
}

// New has listed nothing yet.
func New(c Config) *Agents { return &Agents{cfg: c} }

// Known reports whether the records were listed. Before that nothing may be planned: a plan
// that has an agent which is set aside would have to be aborted.
func (a *Agents) Known() bool { return a.of != nil }

// Len is the number of hours of agents.
func (a *Agents) Len() int { return len(a.of) }

// SetAside reports whether the agent is left out of the hour.
func (a *Agents) SetAside(h timegrid.Hour, agent string) bool {
	_, ok := a.of[agentHour{h, agent}]
	return ok
}

// ForgetWaits has the next List list: the clock went back.
func (a *Agents) ForgetWaits() { a.listed = time.Time{} }

// List reads the records of the shard now and then, and deletes those of agents that fit by
// now. It gives the hours of which somebody deleted a record, so that they are tried at once.
func (a *Agents) List(ctx context.Context, now time.Time) (released []timegrid.Hour, err error) {
	if a.of != nil && now.Sub(a.listed) < listEvery {
		return nil, nil
	}
	after := a.listed
	if a.of == nil || a.added {
		after = now // what was listed before may lack a record of this owner, or of the one before
	}
	keys, begun, err := a.cfg.Listing.Under(ctx, layout.RollupAsides(a.cfg.Shard), after, now)
	if err != nil {
		return nil, err
	}
	found := map[agentHour]catalog.Aside{}
	for _, key := range keys {
		if len(found) == maxListed {
			break
		}
		h, _, agent, err := layout.ParseRollupAside(key)
		if err != nil {
			continue
		}
		// A record is never changed, so one that is known need not be read again.
		if old, ok := a.of[agentHour{h, agent}]; ok {
			found[agentHour{h, agent}] = old
			continue
		}
		one, ok, err := a.read(ctx, key)
		if err != nil {
			return nil, err
		}
		if ok {
			found[agentHour{h, agent}] = one
		}
	}
	for at := range a.of {
		if _, ok := found[at]; !ok {
			released = append(released, at.hour)
		}
	}
	a.of, a.listed, a.added = found, begun, false
	return released, nil
}

// read reads one record; false: it counts for nothing, and is deleted where it may be.
func (a *Agents) read(ctx context.Context, key string) (catalog.Aside, bool, error) {
	b, _, err := a.cfg.Store.Get(ctx, key, objstore.GetOptions{Limit: int64(catalog.AsideKind.MaxBytes)})
	if errors.Is(err, objstore.ErrNotFound) {
		return catalog.Aside{}, false, nil
	}
	var r catalog.Aside
	if err == nil {
		r, err = catalog.ParseAside(key, b)
	}
	switch {
	case record.Unreadable(err):
		// Without it the agent is tried, and set aside again if that is needed.
		a.cfg.Log.Error("the record of an agent that was set aside can't be read; it is tried again", "key", key, "error", err)
	case err != nil:
		return r, false, fmt.Errorf("read %q: %w", key, err)
	case r.AuthorityID != a.cfg.AuthorityID:
		// It is not this authority's to delete.
		a.cfg.Log.Error("the record of an agent that was set aside is of another authority", "key", key, "authority", r.AuthorityID)
		return r, false, nil
	case r.Limit < a.cfg.Limit:
		a.cfg.Log.Info("an agent that was set aside is tried again: an hour may take more memory now", "agent", r.Agent, "shard", r.Shard, "hour", r.Hour,
			"limit_then", r.Limit, "limit_now", a.cfg.Limit)
	default:
		return r, true, nil
	}
	if err := a.cfg.Store.Delete(ctx, key); err != nil {
		return r, false, fmt.Errorf("delete %q: %w", key, err)
	}
	return r, false, nil
}

// Add records that an agent is left out of an hour. It must return before a plan without the
// agent is fixed: a new owner reads the records before its first job, and then plans the same.
func (a *Agents) Add(ctx context.Context, r catalog.Aside) error {
	if _, err := a.cfg.Store.Put(ctx, r.Key(), r.Marshal(), objstore.PutOptions{ContentType: "application/json"}); err != nil {
		return fmt.Errorf("put %q: %w", r.Key(), err)
	}
	if a.of == nil {
		a.of = map[agentHour]catalog.Aside{}
	}
	a.of[agentHour{r.Hour, r.Agent}], a.added = r, true
	a.cfg.Log.Error("an agent is set aside: its hour does not fit into memory; the others of the shard are rolled up", "agent", r.Agent, "shard", r.Shard, "hour", r.Hour,
		"reason", r.Reason, "series", r.Series, "records", r.Records, "bytes", r.Bytes, "limit", r.Limit)
	return nil
}
