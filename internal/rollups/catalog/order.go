package catalog

import (
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// OrderKind is the kind of orders.
var OrderKind = record.Kind{Schema: "lightmetrics.rollup_order.v1", Title: "order", MaxBytes: 1 << 20, Exact: true}

// maxDamaged bounds an order's list of damaged records.
const maxDamaged = 1000

// Order is an operator's word that a shard's hour is to be made anew: its owner publishes
// a generation above Above in every resolution, from frames, and then deletes the order.
type Order struct {
	AuthorityID string
	Shard       shard.ID
	Hour        timegrid.Hour
	// Above is the highest generation that was decided in any resolution when it was ordered.
	Above uint64
	// Damaged are keys of records that can't be read, and that may be replaced unread.
	Damaged []string
	// Reason in few words, for people; By names who ordered.
	Reason string
	By     string
	// OrderedAt in Unix nanoseconds.
	OrderedAt int64
}

type orderJSON struct {
	AuthorityID string   `json:"authority_id"`
	Shard       uint32   `json:"shard"`
	Hour        string   `json:"hour"`
	Above       uint64   `json:"above"`
	Damaged     []string `json:"damaged"`
	Reason      string   `json:"reason"`
	By          string   `json:"by"`
	OrderedAt   int64    `json:"ordered_at_unix_ns"`
}

// Key of the order's object.
func (o *Order) Key() string { return layout.RollupOrder(o.Hour, o.Shard) }

// Validate refuses what can't be an order.
func (o *Order) Validate() error {
	err := errors.Join(text("authority_id", o.AuthorityID, MaxNameBytes), text("by", o.By, MaxNameBytes), text("reason", o.Reason, MaxNameBytes),
		notNegative("ordered_at_unix_ns", o.OrderedAt))
	if err != nil {
		return err
	}
	if o.Shard >= shard.Max || o.Above == 0 || len(o.Damaged) > maxDamaged {
		return fmt.Errorf("order of shard %d above generation %d, %d damaged records", o.Shard, o.Above, len(o.Damaged))
	}
	for _, key := range o.Damaged {
		n, err := layout.ParseRollupSet(key)
		if err != nil {
			return err
		}
		if n.Hour != o.Hour || n.Shard != o.Shard || n.Span > 0 || n.Generation > o.Above {
			return fmt.Errorf("%q is not a generation of the order's hour", key)
		}
	}
	return nil
}

// Marshal writes the canonical JSON. It does not validate.
func (o *Order) Marshal() []byte {
	damaged := o.Damaged
	if damaged == nil {
		damaged = []string{}
	}
	return OrderKind.Marshal(orderJSON{o.AuthorityID, uint32(o.Shard), o.Hour.Start().Format(hourLayout), o.Above, damaged, o.Reason, o.By, o.OrderedAt})
}

// ParseOrder reads what the key of an order holds. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseOrder(key string, b []byte) (Order, error) {
	o, err := parseOrder(key, b)
	if err != nil {
		return Order{}, OrderKind.Wrap(key, err)
	}
	return o, nil
}

func parseOrder(key string, b []byte) (Order, error) {
	var j orderJSON
	if err := OrderKind.Decode(b, &j); err != nil {
		return Order{}, err
	}
	h, err := parseHour(j.Hour)
	if err != nil {
		return Order{}, err
	}
	o := Order{j.AuthorityID, shard.ID(j.Shard), h, j.Above, j.Damaged, j.Reason, j.By, j.OrderedAt}
	if j.Shard >= shard.Max || o.Key() != key {
		return Order{}, fmt.Errorf("it is of shard %d, hour %s", j.Shard, j.Hour)
	}
	return o, errors.Join(OrderKind.Verify(b, o.Marshal(), j), o.Validate())
}
