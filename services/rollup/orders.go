package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// An operator's order says that an hour is to be made anew: of its plan's frames, with
// every object looked at, over records that can't be read. The order is deleted when every
// resolution has a generation above what there was.

// order is one that is pending.
type order struct {
	catalog.RepairRequest
	next  time.Time // not looked at before
	fails int
}

// damaged are the records that may be passed over; none without an order.
func (o *order) damaged() []string {
	if o == nil {
		return nil
	}
	return o.Damaged
}

const (
	ordersEvery = time.Minute // between two listings
	// ordersAtOnce bounds those that are done between two looks at the intake, and
	// maxOrders those that are remembered of a shard: the others are listed again.
	ordersAtOnce = 4
	maxOrders    = 1000
)

// obey does orders of the shard. One that can't be done keeps nothing else from going on.
func (o *owner) obey(ctx context.Context) (again bool, err error) {
	if err := o.listOrders(ctx); err != nil {
		return false, err
	}
	now, did := o.s.now(), 0
	for _, h := range sortedOrders(o.orders) {
		ord := o.orders[h]
		if now.Before(ord.next) {
			continue
		}
		if did++; did > ordersAtOnce {
			return true, err
		}
		one, oerr := o.obeyOne(ctx, ord)
		again = again || one
		if oerr != nil && ctx.Err() == nil {
			ord.fails++
			ord.next = o.s.now().Add(o.s.retryWait(ord.fails))
			o.s.m.orders.WithLabelValues("failed").Inc()
			err = errors.Join(err, fmt.Errorf("order for hour %s: %w", h, oerr))
		}
	}
	o.s.m.ordered.WithLabelValues(o.grant.Shard.String()).Set(float64(len(o.orders)))
	return again, err
}

func sortedOrders(m map[timegrid.Hour]*order) []timegrid.Hour {
	hs := make([]timegrid.Hour, 0, len(m))
	for h := range m {
		hs = append(hs, h)
	}
	slices.Sort(hs)
	return hs
}

// listOrders looks for orders that came, or changed, or went, now and then.
func (o *owner) listOrders(ctx context.Context) error {
	now := o.s.now()
	if o.orders != nil && now.Sub(o.listed) < ordersEvery {
		return nil
	}
	orders := map[timegrid.Hour]*order{}
	prefix := layout.RepairRequests(o.grant.Shard)
	for i, err := range objstore.List(ctx, o.s.store, objstore.ListOptions{Prefix: prefix}) {
		if err != nil {
			return fmt.Errorf("list %q: %w", prefix, err)
		}
		ord, err := o.readOrder(ctx, i.Key)
		if err != nil {
			return err
		}
		if ord == nil {
			continue
		}
		if was := o.orders[ord.Hour]; was != nil {
			ord.next, ord.fails = was.next, was.fails
		}
		if orders[ord.Hour] = ord; len(orders) == maxOrders {
			break
		}
	}
	o.orders, o.listed = orders, now
	return nil
}

// orderOf is the hour's order, also when it came since they were listed: whoever makes a
// generation after an order was given makes it as ordered.
func (o *owner) orderOf(ctx context.Context, h timegrid.Hour) (*order, error) {
	if ord := o.orders[h]; ord != nil {
		return ord, nil
	}
	ord, err := o.readOrder(ctx, layout.RepairRequest(h, o.grant.Shard))
	if err != nil || ord == nil {
		return nil, err
	}
	if o.orders == nil {
		o.orders = map[timegrid.Hour]*order{}
	}
	o.orders[h] = ord
	return ord, nil
}

// readOrder gives nil for what is gone, or is no order of this authority.
func (o *owner) readOrder(ctx context.Context, key string) (*order, error) {
	b, _, err := o.s.store.Get(ctx, key, objstore.GetOptions{Limit: int64(catalog.RepairRequestKind.MaxBytes)})
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, nil
	}
	var ord catalog.RepairRequest
	if err == nil {
		ord, err = catalog.ParseRepairRequest(key, b)
	}
	switch {
	case record.Unreadable(err):
		o.s.log.Error("an order can't be read; give it again", "key", key, "error", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %q: %w", key, err)
	case ord.AuthorityID != o.s.cfg.AuthorityID:
		o.s.log.Error("an order is of another authority", "key", key, "authority", ord.AuthorityID)
		return nil, nil
	}
	return &order{RepairRequest: ord}, nil
}

// obeyOne makes the next generation of an ordered hour, or deletes an order that is done.
func (o *owner) obeyOne(ctx context.Context, ord *order) (did bool, err error) {
	s, id := o.s, o.grant.Shard
	pub, err := s.publishedBut(ctx, ord.Hour, id, ord.Damaged)
	if err != nil {
		s.m.damage(err)
		return false, err
	}
	if pub.above(ord.Above) {
		// It may have been given again since it was listed.
		if now, err := o.readOrder(ctx, ord.Key()); err != nil {
			return false, err
		} else if now != nil && !pub.above(now.Above) {
			o.orders[ord.Hour] = now
			return true, nil
		}
		if err := s.store.Delete(ctx, ord.Key()); err != nil {
			return false, fmt.Errorf("delete %q: %w", ord.Key(), err)
		}
		delete(o.orders, ord.Hour)
		s.m.orders.WithLabelValues("done").Inc()
		s.log.Info("an order is done", "shard", id, "hour", ord.Hour, "above", ord.Above, "reason", ord.Reason, "by", ord.By)
		return false, nil
	}
	if err := s.do(ctx, o, ord.Hour, pub.next()); err != nil {
		return false, err
	}
	return true, nil
}

// above reports whether every resolution has a committed generation above gen.
func (p *published) above(gen uint64) bool {
	for _, res := range timegrid.Resolutions() {
		if block := p.sets[res]; block == nil || block.Name.Generation <= gen {
			return false
		}
	}
	return true
}

// errNoPlan: only the plan that came with the order knows the inputs of what is damaged.
var errNoPlan = errors.New("the order's plan is not there: give the order again")

// ordered makes sure that a generation over damaged records has the plan that was made for
// it: what they had as inputs, nothing else tells.
func (s *Service) ordered(ctx context.Context, ord *order, pub *published, gen uint64) error {
	if ord == nil || len(pub.damaged) == 0 || gen <= ord.Above {
		return nil
	}
	_, err := s.readPlan(ctx, ord.Hour, ord.Shard, gen)
	if errors.Is(err, objstore.ErrNotFound) {
		return errNoPlan
	}
	return err
}

// makeOrdered makes an ordered generation of all its frames, so that nothing of former
// generations is taken over. Where a frame is gone for good, and the rows of the former raw
// set can be read and have the hashes that its manifest says, they are as good.
func (s *Service) makeOrdered(ctx context.Context, ord *order, p *planned, raw *catalog.Block, resolutions []timegrid.Resolution, step func() error) (*made, error) {
	if ord == nil {
		return s.make(ctx, p, raw, resolutions, step)
	}
	m, err := s.make(ctx, p, nil, resolutions, step)
	var bad *UnreadableError
	if errors.As(err, &bad) && raw != nil {
		s.log.Warn("a frame can't be read; the rows of the former raw set are tried", "shard", p.Shard, "hour", p.Hour, "identity", bad.Entry.Identity, "set", raw.Name.Key())
		return s.make(ctx, p, raw, resolutions, step)
	}
	return m, err
}

// damage counts looks that met something that can't be read.
func (m *metrics) damage(err error) {
	switch {
	case errors.Is(err, record.ErrCorrupt) && rollup.PlanKind.Is(err):
		m.damaged.WithLabelValues("plan").Inc()
	case errors.Is(err, record.ErrCorrupt):
		m.damaged.WithLabelValues("record").Inc()
	case err != nil && objstore.Unreadable(err):
		m.damaged.WithLabelValues("object").Inc()
	}
}
