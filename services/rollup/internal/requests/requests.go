// Package requests keeps the repair requests of one shard. An operator's request says that an
// hour is to be rebuilt: from its plan's frames, with every object verified, and over records
// that can't be read. It is deleted when every resolution has a generation above what there
// was when it was made.
package requests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/listing"
)

const (
	// ListEvery is the time between two listings.
	ListEvery = time.Minute
	// maxListed bounds those that are remembered of a shard; the others are listed later.
	maxListed = 1000
)

// Request is one that is pending.
type Request struct {
	catalog.RepairRequest
	next  time.Time // it is not tried before
	fails int
}

// PassOver are the keys of records that may be passed over; none where there is no request.
func (r *Request) PassOver() []string {
	if r == nil {
		return nil
	}
	return r.Damaged
}

// errNoPlan: only the plan that came with the request knows the inputs of what is damaged.
var errNoPlan = errors.New("the repair request's plan is not there: make the request again")

// CheckPlan makes sure that a generation over damaged records has the plan that came with the
// request. A plan made now would lack what the damaged records had as inputs: nothing else tells.
func (r *Request) CheckPlan(ctx context.Context, records hour.Records, st *hour.State, gen uint64) error {
	if r == nil || len(st.Damaged) == 0 || gen <= r.Above {
		return nil
	}
	_, err := records.Plan(ctx, r.Hour, r.Shard, gen)
	if errors.Is(err, objstore.ErrNotFound) {
		return errNoPlan
	}
	return err
}

// Config of the requests of one shard.
type Config struct {
	Store       objstore.Store
	Log         *slog.Logger
	AuthorityID string
	Shard       shard.ID
	// Listing is of the requests of all shards.
	Listing *listing.Listing
}

// Requests are those of one shard, as they were listed. Not for concurrent use.
type Requests struct {
	cfg    Config
	of     map[timegrid.Hour]*Request // nil: not listed yet
	listed time.Time
}

// New has listed nothing yet.
func New(c Config) *Requests { return &Requests{cfg: c} }

// Len is the number of hours with a request.
func (r *Requests) Len() int { return len(r.of) }

// List finds requests that came, or changed, or went, now and then.
func (r *Requests) List(ctx context.Context, now time.Time) error {
	if r.of != nil && now.Sub(r.listed) < ListEvery {
		return nil
	}
	after := r.listed
	if r.of == nil {
		after = now // what was listed before the shard was owned may be old
	}
	keys, begun, err := r.cfg.Listing.Under(ctx, layout.RepairRequests(r.cfg.Shard), after, now)
	if err != nil {
		return err
	}
	found := map[timegrid.Hour]*Request{}
	for _, key := range keys {
		q, err := r.read(ctx, key)
		if err != nil {
			return err
		}
		if q == nil {
			continue
		}
		// One that fails keeps its wait, though its record was read again.
		if was := r.of[q.Hour]; was != nil {
			q.next, q.fails = was.next, was.fails
		}
		if found[q.Hour] = q; len(found) == maxListed {
			break
		}
	}
	r.of, r.listed = found, begun
	return nil
}

// Due gives the requests whose turn it is, in the order of their hours.
func (r *Requests) Due(now time.Time) (due []*Request) {
	for _, h := range slices.Sorted(maps.Keys(r.of)) {
		if q := r.of[h]; !now.Before(q.next) {
			due = append(due, q)
		}
	}
	return due
}

// Pending reports whether the hour has a request that is known.
func (r *Requests) Pending(h timegrid.Hour) bool { return r.of[h] != nil }

// Of is the hour's request, nil for none, also where it was made since they were listed: whoever
// makes a generation after a request was made makes it as requested.
func (r *Requests) Of(ctx context.Context, h timegrid.Hour) (*Request, error) {
	if q := r.of[h]; q != nil {
		return q, nil
	}
	q, err := r.read(ctx, layout.RepairRequest(h, r.cfg.Shard))
	if err != nil || q == nil {
		return nil, err
	}
	// It is kept, so that the owner processes it in its next round and not after the next listing.
	if r.of == nil {
		r.of = map[timegrid.Hour]*Request{}
	}
	r.of[h] = q
	return q, nil
}

// Finish deletes a request that the hour's blocks satisfy. It is read once more: it may have been
// made again since it was listed, and then asks for more. again: it did, and stays.
func (r *Requests) Finish(ctx context.Context, q *Request, st *hour.State) (again bool, err error) {
	now, err := r.read(ctx, q.Key())
	if err != nil {
		return false, err
	}
	if now != nil && !st.CommittedAbove(now.Above) {
		r.of[q.Hour] = now
		return true, nil
	}
	if err := r.cfg.Store.Delete(ctx, q.Key()); err != nil {
		return false, fmt.Errorf("delete %q: %w", q.Key(), err)
	}
	delete(r.of, q.Hour)
	r.cfg.Log.Info("a repair request is done", "shard", r.cfg.Shard, "hour", q.Hour, "above", q.Above, "reason", q.Reason, "by", q.By)
	return false, nil
}

// Fail puts a request off after a failure; wait gives the wait after the nth failure in a row.
func (q *Request) Fail(now time.Time, wait func(n int) time.Duration) {
	q.fails++
	q.next = now.Add(wait(q.fails))
}

// ForgetWaits makes all requests due, and the next List list: the clock went back.
func (r *Requests) ForgetWaits() {
	for _, q := range r.of {
		q.next = time.Time{}
	}
	r.listed = time.Time{}
}

// read gives nil for what is gone, or is no request of this authority.
func (r *Requests) read(ctx context.Context, key string) (*Request, error) {
	b, _, err := r.cfg.Store.Get(ctx, key, objstore.GetOptions{Limit: int64(catalog.RepairRequestKind.MaxBytes)})
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, nil
	}
	var o catalog.RepairRequest
	if err == nil {
		o, err = catalog.ParseRepairRequest(key, b)
	}
	switch {
	case record.Unreadable(err):
		// It is left where it is: only who made it knows what it was to say.
		r.cfg.Log.Error("a repair request can't be read; make it again", "key", key, "error", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %q: %w", key, err)
	case o.AuthorityID != r.cfg.AuthorityID:
		r.cfg.Log.Error("a repair request is of another authority", "key", key, "authority", o.AuthorityID)
		return nil, nil
	}
	return &Request{RepairRequest: o}, nil
}
