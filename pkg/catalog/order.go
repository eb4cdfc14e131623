package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// OrderSchema names the JSON schema of orders.
const OrderSchema = "lightmetrics.rollup_order.v1"

// Bounds of an order.
const (
	MaxOrderBytes = 1 << 20
	maxDamaged    = 1000
)

// Order is an operator's word that a shard's hour is to be made anew: its owner publishes
// a generation above Above in every window, from frames, and then deletes the order.
type Order struct {
	AuthorityID string
	Shard       shard.ID
	Hour        window.Hour
	// Above is the highest generation that was decided in any window when it was ordered.
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
	Schema      string   `json:"schema"`
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
	return canonical(orderJSON{OrderSchema, o.AuthorityID, uint32(o.Shard), o.Hour.Start().Format(hourLayout), o.Above, damaged, o.Reason, o.By, o.OrderedAt})
}

// ParseOrder reads what the key of an order holds. Errors wrap ErrCorruptRecord.
func ParseOrder(key string, b []byte) (Order, error) {
	o, err := parseOrder(key, b)
	if err != nil {
		return Order{}, fmt.Errorf("order %q: %w: %w", key, ErrCorruptRecord, err)
	}
	return o, nil
}

func parseOrder(key string, b []byte) (Order, error) {
	if len(b) > MaxOrderBytes {
		return Order{}, fmt.Errorf("%d bytes, at most %d", len(b), MaxOrderBytes)
	}
	var j orderJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return Order{}, err
	}
	t, err := time.Parse(hourLayout, j.Hour)
	if err != nil {
		return Order{}, err
	}
	o := Order{j.AuthorityID, shard.ID(j.Shard), window.HourStarting(t), j.Above, j.Damaged, j.Reason, j.By, j.OrderedAt}
	switch {
	case j.Schema != OrderSchema:
		return Order{}, fmt.Errorf("schema %.64q", j.Schema)
	case j.Shard >= shard.Max || o.Key() != key:
		return Order{}, fmt.Errorf("it is of shard %d, hour %s", j.Shard, j.Hour)
	case !bytes.Equal(o.Marshal(), b):
		return Order{}, errors.New("not in canonical form")
	}
	return o, o.Validate()
}
