package engine

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

// Memtables take their memory out of the cache, so a cache of their size keeps no block of a table.
func TestIndexCacheHasRoomBesideMemtables(t *testing.T) {
	x, err := openIndex(pebblevfs.NewMem(), "index")
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()
	key := func(i int) []byte { return objectKey("bucket", fmt.Sprintf("raw/%08d", i)) }
	// Enough that the memtables have grown to their full size, one of them kept for the next.
	value := make([]byte, 1<<10)
	for i := range 5 * indexMemtable / len(value) {
		if err := x.db.Set(key(i), value, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	read := func() {
		for i := range 100 {
			if err := x.get(key(i), func([]byte) error { return nil }); err != nil {
				t.Fatal(err)
			}
			if err := x.get(append(key(i), 'x'), nil); err != ErrNotFound {
				t.Fatal(err)
			}
		}
	}
	read()
	before := x.db.Metrics().BlockCache
	read()
	after := x.db.Metrics().BlockCache
	// A compaction beside it may read some blocks, and take blocks away.
	if hits, misses := after.Hits-before.Hits, after.Misses-before.Misses; misses > hits/10 {
		t.Errorf("%d blocks from the cache and %d from tables; the cache has %d bytes", hits, misses, after.Size)
	}
}
