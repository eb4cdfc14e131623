package engine

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// Listings name the checksums of objects whose entries do not: those that were built from the footer of a segment of an
// earlier version.
func TestListingsNameTheChecksumsOfEarlySegments(t *testing.T) {
	opt := Options{Dir: t.TempDir()}
	e := openTest(t, opt)
	sums := map[string]Checksum{"a": {Algorithm: "SHA256", Type: "FULL_OBJECT", Value: "x"}, "b": {}, "c": {Algorithm: "CRC32", Type: "COMPOSITE", Value: "y-2"}}
	for key, sum := range sums {
		o := sized(key, []byte("body"))
		o.Checksum = sum
		if _, err := e.Engine.Put(ctxUp, o, []byte("body"), Cond{}); err != nil {
			t.Fatal(err)
		}
	}
	e.done()
	name := filepath.Join(opt.Dir, segName(1))
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	copy(b, encodeHeader(sumsSince-1, 1, binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint64(b[24:])))
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	e = openTest(t, opt)
	defer e.done()
	forget := func(key string) {
		x, err := e.idx.current("bkt", key)
		if err != nil {
			t.Fatal(err)
		}
		x.sum = 0
		if err := e.idx.db.Set(objectKey("bkt", key), x.encode(nil), pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	for key := range sums {
		forget(key)
	}
	check := func(when string) {
		t.Helper()
		list, err := e.List("bkt", ListQuery{Max: 10})
		if err != nil || len(list.Objects) != len(sums) {
			t.Fatal(when, list, err)
		}
		versions, err := e.Versions("bkt", VersionQuery{Max: 10})
		if err != nil || len(versions.Versions) != len(sums) {
			t.Fatal(when, versions, err)
		}
		for i, o := range list.Objects {
			want := sums[o.Key]
			want.Value = ""
			if o.Checksum != want || versions.Versions[i].Checksum != want {
				t.Errorf("%s: %s has %+v and %+v, want %+v", when, o.Key, o.Checksum, versions.Versions[i].Checksum, want)
			}
		}
	}
	check("an early segment")
	// A segment of this version is believed: there is nothing to look for.
	e.mu.Lock()
	e.segments[1].version = segVersion
	e.mu.Unlock()
	list, err := e.List("bkt", ListQuery{Max: 10})
	if err != nil || list.Objects[0].Checksum != (Checksum{}) {
		t.Errorf("%+v %v", list.Objects, err)
	}
}
