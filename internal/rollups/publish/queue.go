package publish

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ItemKind is the kind of an item of the delayed queue.
var ItemKind = record.Kind{Schema: "lightmetrics.delayed_gc.v1", Title: "item of the delayed queue", MaxBytes: 2 << 20, Exact: true}

// Bounds of an item.
const (
	MaxItemKeys = 1000
	maxReason   = 64
)

// Item of the delayed queue: keys to check when it comes due. A repeat is harmless, since everything is proven
// again; so is an item about keys that are in use.
type Item struct {
	// Keys of manifests (superseded blocks), chunks, indexes and plans.
	Keys []string
	// Reason in few words, for people.
	Reason string
	// Since is when the keys were first put on the queue, and Due when they are to be checked, in Unix
	// milliseconds. Both only select.
	Since, Due int64
}

type itemJSON struct {
	Reason string   `json:"reason"`
	Since  int64    `json:"since_unix_ms"`
	Due    int64    `json:"due_unix_ms"`
	Keys   []string `json:"keys"`
}

// Queue is the delayed queue: durable, at least once.
type Queue interface {
	// Push puts an item on; an equal one that is there already is no error.
	Push(ctx context.Context, i Item) error
	// Due gives up to limit items that are due at now, the oldest first.
	Due(ctx context.Context, now time.Time, limit int) ([]Item, error)
	// Done takes an item off; one that is gone already is no error.
	Done(ctx context.Context, i Item) error
}

// Marshal writes the item's canonical JSON.
func (i Item) Marshal() []byte {
	return ItemKind.Marshal(itemJSON{i.Reason, i.Since, i.Due, i.Keys})
}

// Key of the item's object.
func (i Item) Key() string {
	return layout.Delayed(time.UnixMilli(i.Due), identity.Sum(i.Marshal()))
}

// ParseItem reads what the key of an item holds. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseItem(key string, b []byte) (Item, error) {
	var j itemJSON
	if err := ItemKind.Unmarshal(b, &j); err != nil {
		return Item{}, ItemKind.Wrap(key, err)
	}
	i := Item{j.Keys, j.Reason, j.Since, j.Due}
	if err := i.validate(); err != nil {
		return Item{}, ItemKind.Wrap(key, err)
	}
	if i.Key() != key {
		return Item{}, ItemKind.Corrupt(key, "it is of another key")
	}
	return i, nil
}

func (i Item) validate() error {
	if len(i.Keys) < 1 || len(i.Keys) > MaxItemKeys || len(i.Reason) > maxReason || !utf8.ValidString(i.Reason) || i.Since < 0 || i.Due < 0 {
		return fmt.Errorf("%d keys, reason %.64q, since %d, due %d", len(i.Keys), i.Reason, i.Since, i.Due)
	}
	for _, k := range i.Keys {
		if _, err := layout.ParseBlockManifest(k); err == nil {
			continue
		}
		if _, ok := targetOf(k); !ok {
			return fmt.Errorf("key %.128q is of no manifest, object or plan", k)
		}
	}
	return nil
}

// queueStore is what the queue needs of an object store.
type queueStore interface {
	objstore.Getter
	objstore.Lister
	objstore.Creator
	objstore.Deleter
}

// ObjectQueue keeps each item as an object under gc/v1/delayed/, named by when it is due.
type ObjectQueue struct {
	store   queueStore
	corrupt func(key string, err error)
}

// NewObjectQueue makes a queue over a store. corrupt is called with items that can't be read, which are left where
// they are and skipped; it may be nil.
func NewObjectQueue(s queueStore, corrupt func(key string, err error)) *ObjectQueue {
	return &ObjectQueue{s, corrupt}
}

var _ Queue = (*ObjectQueue)(nil)

// Push creates the item's object.
func (q *ObjectQueue) Push(ctx context.Context, i Item) error {
	if err := i.validate(); err != nil {
		return fmt.Errorf("delayed queue: %w", err)
	}
	// The key has the item's hash, so an object that exists is the same item.
	_, err := q.store.Create(ctx, i.Key(), i.Marshal(), jsonContent)
	if errors.Is(err, objstore.ErrExists) {
		return nil
	}
	return err
}

// Due lists items, oldest first: keys begin with the due time.
func (q *ObjectQueue) Due(ctx context.Context, now time.Time, limit int) ([]Item, error) {
	var items []Item
	if limit <= 0 {
		return nil, nil
	}
	for info, err := range objstore.List(ctx, q.store, objstore.ListOptions{Prefix: layout.DelayedPrefix, Limit: limit}) {
		if err != nil {
			return nil, err
		}
		if due, err := layout.ParseDelayed(info.Key); err == nil && due.After(now) {
			break
		}
		i, ok, err := q.item(ctx, info.Key)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if items = append(items, i); len(items) == limit {
			break
		}
	}
	return items, nil
}

func (q *ObjectQueue) item(ctx context.Context, key string) (Item, bool, error) {
	i, _, err := record.Read(ctx, q.store, key, ItemKind, func(b []byte) (Item, error) { return ParseItem(key, b) })
	if errors.Is(err, objstore.ErrNotFound) {
		return Item{}, false, nil // another collector is done with it
	}
	if record.Opaque(err) {
		if q.corrupt != nil {
			q.corrupt(key, err)
		}
		return Item{}, false, nil
	}
	return i, err == nil, err
}

// Done deletes the item's object.
func (q *ObjectQueue) Done(ctx context.Context, i Item) error { return q.store.Delete(ctx, i.Key()) }
