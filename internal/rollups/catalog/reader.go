package catalog

import (
	"context"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
)

// maxCompactions bounds the compactions that a Reader remembers; it reads one again that it forgot.
const maxCompactions = 1000

// ReaderConfig says what a Reader makes of records. Read is required.
type ReaderConfig struct {
	// Read gets a record from the store, as the function Read does.
	Read func(ctx context.Context, key string) (Record, objstore.Info, error)
	// Trim drops what the caller has no use for of a set that was read, before it is remembered. It may be nil.
	Trim func(*Block)
	// Follow reads the compactions that sets point at, for Into.Set. A set whose compaction can't be had
	// counts as one that can't be had itself.
	Follow bool
	// Limit of the objects and records that are remembered, about; 0 remembers nothing.
	Limit int64
}

// Reader reads the records of generations. It remembers them by key and ETag, so that a listing tells
// which have to be read again. It is safe for concurrent use; what it gives must not be changed.
type Reader struct {
	cfg         ReaderConfig
	known       *lru.Cache[string, known]
	compactions *lru.Cache[string, *Block]
}

type known struct {
	name   Name
	etag   string
	record Record
}

// weight is about what a record takes: its objects' keys are the most of it.
func (k known) weight() int64 {
	n := 1
	if k.record.Block != nil {
		n += 2 * len(k.record.Block.Objects)
	}
	if k.record.Removed != nil {
		n += len(k.record.Removed.Keys)
	}
	return int64(n)
}

// NewReader makes one that remembers nothing yet; it makes no request.
func NewReader(c ReaderConfig) *Reader {
	return &Reader{c, lru.New[string, known](c.Limit), lru.New[string, *Block](maxCompactions)}
}

// State reads a slot from its highest generation down to the one that counts. An error is a store that
// could not be asked; what was read until then is remembered.
func (r *Reader) State(ctx context.Context, of Slot) (State, error) {
	var s State
	for _, l := range slices.Backward(of.Listed) {
		g, err := r.Generation(ctx, l)
		if err != nil {
			return s, err
		}
		if !s.add(g) {
			break
		}
	}
	s.Top = of.Top()
	return s, nil
}

// All reads every generation of a slot, ascending.
func (r *Reader) All(ctx context.Context, of Slot) ([]Generation, error) {
	var out []Generation
	for _, l := range of.Listed {
		g, err := r.Generation(ctx, l)
		if err != nil {
			return out, err
		}
		out = append(out, g)
	}
	return out, nil
}

// Generation reads one. A record that can't be had is its Err; an error is a store that could not be asked.
func (r *Reader) Generation(ctx context.Context, l Listed) (Generation, error) {
	g := Generation{Name: l.Name}
	if k, ok := r.known.Get(l.Info.Key); ok && k.etag != "" && k.etag == l.Info.ETag {
		g.Record = k.record
		return g, nil
	}
	rec, info, err := r.cfg.Read(ctx, l.Info.Key)
	if err == nil && rec.Block != nil {
		err = r.prepare(ctx, rec.Block)
	}
	if Doubtful(err) {
		g.Err = err
		return g, nil
	}
	if err != nil {
		return g, err
	}
	g.Record = rec
	k := known{l.Name, info.ETag, rec}
	r.known.Put(l.Info.Key, k, k.weight())
	return g, nil
}

func (r *Reader) prepare(ctx context.Context, s *Block) error {
	if r.cfg.Follow && s.Into != nil {
		c, err := r.Compaction(ctx, s.Into.Name)
		if err != nil {
			return err
		}
		s.Into.Block = c
	}
	if r.cfg.Trim != nil {
		r.cfg.Trim(s)
	}
	return nil
}

// Compaction reads the compaction that a set points at. While one does, its record never changes.
func (r *Reader) Compaction(ctx context.Context, n Name) (*Block, error) {
	key := n.Key()
	if c, ok := r.compactions.Get(key); ok {
		return c, nil
	}
	rec, _, err := r.cfg.Read(ctx, key)
	if err != nil {
		return nil, err
	}
	if rec.Block == nil {
		return nil, CompactionKind.Corrupt(key, "it is not committed, or removed")
	}
	r.compactions.Put(key, rec.Block, 1)
	return rec.Block, nil
}

// Forget forgets a generation's record.
func (r *Reader) Forget(n Name) { r.known.Remove(n.Key()) }

// Keep forgets the records of all other generations than those that keep reports.
func (r *Reader) Keep(keep func(Name) bool) {
	for _, k := range r.known.Values() {
		if !keep(k.name) {
			r.Forget(k.name)
		}
	}
}
