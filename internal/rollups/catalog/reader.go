package catalog

import (
	"context"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
)

// maxCompactions bounds the compactions that a Reader caches; it reads a dropped one again.
const maxCompactions = 1000

// ReaderConfig says how a Reader gets and keeps records. Read is required.
type ReaderConfig struct {
	// Read gets a record from the store, as the function Read does.
	Read func(ctx context.Context, key string) (Record, objstore.Info, error)
	// Trim drops the fields of a block that the caller has no use for, before it is cached. It may be nil.
	Trim func(*Block)
	// Follow reads the compactions that blocks redirect to, into Redirect.Block. A block whose compaction can't be
	// read counts as unreadable itself.
	Follow bool
	// Limit of the cached objects and records, approximately; 0 caches nothing.
	Limit int64
}

// Reader reads the records of generations and caches them by key and ETag, so that a listing tells which have to
// be read again. It is safe for concurrent use; what it returns must not be changed.
type Reader struct {
	cfg         ReaderConfig
	known       *lru.Cache[string, known]
	compactions *lru.Cache[Name, *Block]
}

type known struct {
	name   Name
	etag   string
	record Record
}

// weight approximates the memory of a record: the keys of its objects are most of it.
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

// NewReader makes an empty Reader; it makes no request.
func NewReader(c ReaderConfig) *Reader {
	return &Reader{c, lru.New[string, known](c.Limit), lru.New[Name, *Block](maxCompactions)}
}

// State reads a slot from its highest generation down to the one that counts. An error means that the store could
// not be asked; what was read until then is cached.
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
	// The walk stops early, so the listing tells the highest generation.
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

// Generation reads one record. If it can't be used, Generation.Err says why; an error means that the store could
// not be asked.
func (r *Reader) Generation(ctx context.Context, l Listed) (Generation, error) {
	g := Generation{Name: l.Name}
	// Some stores give no ETag; then nothing proves that the record is unchanged.
	if k, ok := r.known.Get(l.Info.Key); ok && k.etag != "" && k.etag == l.Info.ETag {
		g.Record = k.record
		return g, nil
	}
	rec, info, err := r.cfg.Read(ctx, l.Info.Key)
	if err == nil && rec.Block != nil {
		err = r.prepare(ctx, rec.Block)
	}
	if Unreadable(err) {
		g.Err = err
		return g, nil
	}
	if err != nil {
		return g, err
	}
	g.Record = rec
	// The ETag is that of the read, not of the listing: the record may have been replaced in between.
	k := known{l.Name, info.ETag, rec}
	r.known.Put(l.Info.Key, k, k.weight())
	return g, nil
}

func (r *Reader) prepare(ctx context.Context, s *Block) error {
	if r.cfg.Follow && s.Redirect != nil {
		c, err := r.Compaction(ctx, s.Redirect.Name)
		if err != nil {
			return err
		}
		s.Redirect.Block = c
	}
	if r.cfg.Trim != nil {
		r.cfg.Trim(s)
	}
	return nil
}

// has reports that the record is cached as it was listed.
func (r *Reader) has(l Listed) bool {
	k, ok := r.known.Get(l.Info.Key)
	return ok && k.etag != "" && k.etag == l.Info.ETag
}

// hasCompaction reports that the record of a compaction is cached.
func (r *Reader) hasCompaction(n Name) bool {
	_, ok := r.compactions.Get(n)
	return ok
}

// Compaction reads the compaction that a block redirects to. Its record can't change while a block does, so it is
// cached without its ETag.
func (r *Reader) Compaction(ctx context.Context, n Name) (*Block, error) {
	// By its name, as most blocks of a week redirect, and their keys would be made for nothing.
	if c, ok := r.compactions.Get(n); ok {
		return c, nil
	}
	key := n.Key()
	rec, _, err := r.cfg.Read(ctx, key)
	if err != nil {
		return nil, err
	}
	if rec.Block == nil {
		return nil, CompactionKind.Corrupt(key, "it is not committed, or removed")
	}
	r.compactions.Put(n, rec.Block, 1)
	return rec.Block, nil
}

// Forget drops a generation's record from the cache.
func (r *Reader) Forget(n Name) { r.known.Remove(n.Key()) }

// Keep drops the records of all generations for which keep is false.
func (r *Reader) Keep(keep func(Name) bool) {
	for _, k := range r.known.Values() {
		if !keep(k.name) {
			r.Forget(k.name)
		}
	}
}
