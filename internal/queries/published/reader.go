package published

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Config of a Reader. Except for Store, the zero value of a field is its default.
type Config struct {
	Store objstore.Reader
	// IndexCache and BlockCache bound memory in bytes: 64 and 128 MiB. A quarter of IndexCache is for what
	// matchers found in indexes; a quarter of BlockCache for columns that were decoded from blocks, an eighth for late
	// batches, some more than an eighth for decoded rows of resolutions.
	IndexCache, BlockCache int64
	// Gap is the most bytes between two wanted blocks that one request reads: 512 KiB.
	Gap int64
	// MaxRange is the most bytes of one request, unless a single block is larger: 8 MiB.
	MaxRange int64
	// Parallel requests of all queries together: 32.
	Parallel int
	// Limits of what is decoded.
	Limits chunk.Limits
	// AgentLabel names the label with the agent that is added to each series. With an empty name none is added,
	// and equal labels of several agents are one series.
	AgentLabel agentlabel.Name
}

// Reader has the caches that all queries share. It is safe for concurrent use.
type Reader struct {
	cfg     Config
	fetch   block.Fetch
	indexes *lru.Cache[string, *index]
	chosen  *lru.Cache[chosenKey, *index] // the series of an index that matchers found
	blocks  *lru.Cache[blockKey, []byte]
	columns *lru.Cache[columnKey, *columns]
	rolled  *lru.Cache[rolledKey, *chunk.Columns] // decoded rows of resolutions
	found   *lru.Cache[foundKey, []Rolled]        // such rows of whole selections
	deltas  *lru.Cache[string, [][]byte]          // frames by the delta's key
	lates   *lru.Cache[string, *catalog.Block]    // made of deltas, by what they are made of
	texts   *lru.Cache[identity.Digest, []string] // names and values of labels, by what they are of
	plans   plans
	one     singleflight.Group // indexes by key
	slots   *semaphore.Weighted
	metas   *metas // of the series of all indexes
}

type blockKey struct {
	chunk          string
	offset, length int64
}

// New makes a Reader with empty caches; it makes no request.
func New(c Config) (*Reader, error) {
	if c.Store == nil {
		return nil, errors.New("published: a store is needed")
	}
	if c.IndexCache < 0 || c.BlockCache < 0 || c.Gap < 0 || c.MaxRange < 0 || c.Parallel < 0 {
		return nil, errors.New("published: bounds must not be negative")
	}
	if err := c.AgentLabel.Validate(); err != nil {
		return nil, fmt.Errorf("published: agent label: %w", err)
	}
	set := func(v *int64, def int64) {
		if *v == 0 {
			*v = def
		}
	}
	set(&c.IndexCache, 64<<20)
	set(&c.BlockCache, 128<<20)
	set(&c.Gap, block.DefaultGap)
	set(&c.MaxRange, block.DefaultMaxRange)
	if c.Parallel == 0 {
		c.Parallel = 32
	}
	return &Reader{
		cfg: c, fetch: block.From(c.Store), indexes: lru.New[string, *index](c.IndexCache - c.IndexCache/4 - c.IndexCache/32), chosen: lru.New[chosenKey, *index](c.IndexCache / 4), blocks: lru.New[blockKey, []byte](c.BlockCache - c.BlockCache/4 - c.BlockCache/8 - c.BlockCache/8 - c.BlockCache/32),
		// Decoded columns get the smaller part: they are several times as large as their blocks, and can be made
		// from them again.
		columns: lru.New[columnKey, *columns](c.BlockCache / 4), rolled: lru.New[rolledKey, *chunk.Columns](c.BlockCache / 32), found: lru.New[foundKey, []Rolled](c.BlockCache / 8),
		// Frames of deltas, and the blocks that are made of them, are few: late data that no block has yet.
		deltas: lru.New[string, [][]byte](c.BlockCache / 16), lates: lru.New[string, *catalog.Block](c.BlockCache / 16),
		texts: lru.New[identity.Digest, []string](c.IndexCache / 32),
		slots: semaphore.NewWeighted(int64(c.Parallel)), metas: new(metas),
	}, nil
}

// CacheBytes is the memory of the caches: of indexes; and of blocks, with the columns decoded from them.
func (r *Reader) CacheBytes() (indexes, blocks int64) {
	return r.indexes.Weight() + r.chosen.Weight() + r.texts.Weight(), r.blocks.Weight() + r.columns.Weight() + r.rolled.Weight() + r.found.Weight() + r.deltas.Weight() + r.lates.Weight()
}

// LabelBytes is the memory of the labels of series that cached indexes and running queries have named, estimated. It comes
// on top of CacheBytes: how much of it an index has alone changes with the others.
func (r *Reader) LabelBytes() int64 { return r.metas.Bytes() }

// get makes one request for exactly length bytes, within the bound on parallel requests.
func (r *Reader) get(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if err := r.slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer r.slots.Release(1)
	return r.fetch(ctx, key, offset, length)
}
