package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// testKeys gives keys of these ids, of which the first is current; "-id" is a key with another secret.
func testKeys(t testing.TB, ids ...string) *seal.Keys {
	t.Helper()
	var list []*seal.Key
	current := ""
	for i, id := range ids {
		secret := bytes.Repeat([]byte(id+"."), 32)[:32]
		if id[0] == '-' {
			id = id[1:]
		}
		k, err := seal.NewKey(id, secret)
		if err != nil {
			t.Fatal(err)
		}
		if list = append(list, k); i == 0 {
			current = id
		}
	}
	keys, err := seal.NewKeys(current, list...)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// plainNone gives keys of which none is current.
func plainNone(t testing.TB, ids ...string) *seal.Keys {
	t.Helper()
	var list []*seal.Key
	for _, v := range testKeys(t, ids...).Versions() {
		k, err := testKeys(t, ids...).Find(v)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, k)
	}
	keys, err := seal.NewKeys("", list...)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// phrase is in every body of these tests, and nowhere else.
var phrase = []byte("nobody may read this on the disk")

func secretBody(n int, seed byte) []byte {
	b := pattern(n, seed)
	for i := 0; i+len(phrase) <= n; i += 4000 {
		copy(b[i:], phrase)
	}
	return b
}

// findPhrase gives the files below dir that have the phrase.
func findPhrase(t *testing.T, dir string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, phrase) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// sealedHistory writes objects of many sizes, in the log, in files and of parts.
func sealedHistory(e *testEngine) map[string][]byte {
	e.t.Helper()
	want := map[string][]byte{}
	for i, n := range []int{0, 1, 31, 5000, seal.PlainChunk - 1, seal.PlainChunk, seal.PlainChunk + 1, 3 * seal.PlainChunk, 400_000} {
		k := fmt.Sprintf("log/%d", n)
		want[k] = secretBody(n, byte(i))
		e.put(k, want[k])
	}
	for i, n := range []int{0, 1, seal.PlainChunk, sealedPerBlock - 1, sealedPerBlock, sealedPerBlock + 1, BlockSize, 2*sealedPerBlock + 70_000} {
		k := fmt.Sprintf("file/%d", n)
		want[k] = secretBody(n, byte(i))
		e.putFile(k, want[k])
	}
	id := e.begin("parts")
	for i, n := range []int{70_000, sealedPerBlock + 5, 1, 0} {
		b := secretBody(n, byte(i))
		if err := e.part("parts", id, i+1, b); err != nil {
			e.t.Fatal(err)
		}
		want["parts"] = append(want["parts"], b...)
	}
	e.complete("parts", id)
	return want
}

func (e *testEngine) complete(key, id string) {
	e.t.Helper()
	o := Object{Bucket: "bkt", Key: key, Modified: epoch, ETag: "whole"}
	parts := e.parts(key, id)
	for _, p := range parts {
		o.Size += p.Size
	}
	if _, err := e.Engine.Complete(context.Background(), o, id, parts, Cond{}); err != nil {
		e.t.Fatal(err)
	}
}

// TestSealedBodies: what was written is read, whole and in ranges, over restarts and rebuilds; and nothing of it stands
// on the disk.
func TestSealedBodies(t *testing.T) {
	opt := Options{Dir: t.TempDir(), Keys: testKeys(t, "k1"), SegmentBytes: 300 << 10}
	e := openTest(t, opt)
	want := sealedHistory(e)
	for range 3 {
		e.wantAll(want)
		rng := rand.New(rand.NewPCG(1, 9))
		for k, body := range want {
			h, err := e.Get("bkt", k)
			if err != nil {
				t.Fatal(err)
			}
			if !h.Object.Sealed() || h.Object.Size != int64(len(body)) {
				t.Errorf("%s: sealed %v, %d bytes", k, h.Object.Sealed(), h.Object.Size)
			}
			for range 20 {
				off := rng.IntN(len(body) + 1)
				n := rng.IntN(len(body) - off + 1)
				var got bytes.Buffer
				if err := h.Copy(&got, int64(off), int64(n)); err != nil || !bytes.Equal(got.Bytes(), body[off:off+n]) {
					t.Fatalf("%s: %d bytes from %d on: %d, %v", k, n, off, got.Len(), err)
				}
			}
			h.Close()
		}
		e.done()
		if found := findPhrase(t, opt.Dir); len(found) > 0 {
			t.Errorf("bodies stand as they are in %v", found)
		}
		opt.IndexFS = pebblevfs.NewMem() // built again
		e = openTest(t, opt)
	}
}

// TestStoreWithoutItsKey: everything but the bytes of objects works, nothing is written as it is, and nothing is lost.
func TestStoreWithoutItsKey(t *testing.T) {
	ctx := context.Background()
	opt := Options{Dir: t.TempDir(), Keys: testKeys(t, "k1"), SegmentBytes: 300 << 10, ReclaimBelow: 0.9}
	e := openTest(t, opt)
	want := sealedHistory(e)
	id := e.begin("open")
	if err := e.part("open", id, 1, secretBody(5000, 3)); err != nil {
		t.Fatal(err)
	}
	e.done()
	for _, keys := range []*seal.Keys{nil, testKeys(t, "-k1"), testKeys(t, "k2")} {
		opt.Keys = keys
		e = openTest(t, opt)
		for k := range want {
			if _, err := e.body(k); !errors.Is(err, ErrNoKey) && len(want[k]) > 0 {
				t.Errorf("%s is read without its key: %v", k, err)
			}
			if o, err := e.Stat("bkt", k); err != nil || !o.Sealed() {
				t.Errorf("HEAD of %s: %v", k, err)
			}
			if _, err := e.SetTags(ctx, "bkt", k, "", []Pair{{"a", "b"}}); err != nil {
				t.Errorf("tags of %s: %v", k, err)
			}
		}
		if v, err := e.Verify(ctx); err != nil || len(v.Damages)+len(v.Lost) > 0 {
			t.Errorf("verify: %v, %+v", err, v)
		}
		for {
			if n, err := e.Reclaim(ctx); err != nil {
				t.Fatal(err)
			} else if n == 0 {
				break
			}
		}
		if keys == nil {
			if _, err := e.Put(ctx, sized("new", phrase), phrase, Cond{}); !errors.Is(err, ErrNoKey) {
				t.Errorf("an object is written as it is: %v", err)
			}
			if _, err := e.NewBlob("bkt", "new"); !errors.Is(err, ErrNoKey) {
				t.Errorf("a body is written as it is: %v", err)
			}
		}
		e.done()
	}
	if found := findPhrase(t, opt.Dir); len(found) > 0 {
		t.Errorf("bodies stand as they are in %v", found)
	}
	r := repairTest(t, Options{Dir: opt.Dir})
	if len(r.Lost)+len(r.Files) > 0 {
		t.Errorf("a repair without the key: %+v", r)
	}
	opt.Keys = testKeys(t, "k2", "k1")
	e = openTest(t, opt)
	e.wantAll(want)
	e.complete("open", id)
	e.want("open", secretBody(5000, 3))
}

func repairTest(t *testing.T, opt Options) Repaired {
	t.Helper()
	e := openTest(t, opt)
	defer e.done()
	r, err := e.Repair(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestEncryptionIsTurnedOff: with keys of which none is current new bodies are written as they are, old ones are read, and
// the next start needs no key for the new ones.
func TestEncryptionIsTurnedOff(t *testing.T) {
	opt := Options{Dir: t.TempDir(), Keys: testKeys(t, "k1")}
	e := openTest(t, opt)
	e.put("sealed", phrase)
	e.done()
	opt.Keys = plainNone(t, "k1")
	e = openTest(t, opt)
	e.put("plain", phrase)
	e.want("sealed", phrase)
	e.done()
	opt.Keys = nil
	e = openTest(t, opt)
	e.want("plain", phrase)
	e.put("plain/2", phrase)
	if _, err := e.body("sealed"); !errors.Is(err, ErrNoKey) {
		t.Error(err)
	}
}

// TestBodiesAreNotExchanged: stored bytes, and the records' own words about them, are put under other keys, with all
// checksums right, as by somebody who can write the disk and read one of the objects.
func TestBodiesAreNotExchanged(t *testing.T) {
	ctx := context.Background()
	e := openTest(t, Options{Dir: t.TempDir(), Keys: testKeys(t, "k1"), InlineBytes: 1 << 20})
	secret := secretBody(200_000, 1)
	e.put("secret", secret)
	e.putFile("secret/file", secret)
	for _, k := range []string{"secret", "secret/file"} {
		h, err := e.Get("bkt", k)
		if err != nil {
			t.Fatal(err)
		}
		o := h.Object
		o.Key = "mine/" + k
		if _, err := e.Engine.put(ctx, &op{}, o, h.body, 0); err != nil {
			t.Fatal(err)
		}
		h.Close()
		if _, err := e.body(o.Key); !errors.Is(err, ErrCorrupt) {
			t.Errorf("the bytes of %s are read as another object: %v", k, err)
		}
		e.want(k, secret)
	}
	// A blob that is put under another key than it was made for could never be read.
	b, err := e.NewBlob("bkt", "one")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Discard()
	_, _ = b.Write(secret)
	x, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	o := sized("two", secret)
	o.Extents = []Extent{x}
	if _, err := e.Engine.Put(ctx, o, nil, Cond{}); err == nil {
		t.Error("a body that was made for another key is taken")
	}
}

// TestForgedFiles: chunks of a file are exchanged, with the checksums in the record made right.
func TestForgedFiles(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir, Keys: testKeys(t, "k1")})
	e.putFile("k", secretBody(sealedPerBlock+3*seal.PlainChunk, 1))
	h, err := e.Get("bkt", "k")
	if err != nil {
		t.Fatal(err)
	}
	o, raw := h.Object, h.body
	h.Close()
	path := filepath.Join(dir, body.Name(o.Extents[0].File))
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, forge := range map[string]func(b []byte){
		"two chunks":           func(b []byte) { swap(b[:seal.Chunk], b[seal.Chunk:2*seal.Chunk]) },
		"chunks of two blocks": func(b []byte) { swap(b[:seal.Chunk], b[BlockSize:BlockSize+seal.Chunk]) },
		"a byte":               func(b []byte) { b[100] ^= 1 },
	} {
		bad := bytes.Clone(good)
		forge(bad)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		for i := range o.Extents[0].Blocks {
			o.Extents[0].Blocks[i] = crc32.Checksum(bad[i*BlockSize:min((i+1)*BlockSize, len(bad))], castagnoli)
		}
		if _, err := e.Engine.put(ctx, &op{}, o, raw, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := e.body("k"); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// TestMixedParts: an object of parts of which some were uploaded before encryption was turned on, or with another key.
func TestMixedParts(t *testing.T) {
	opt := Options{Dir: t.TempDir()}
	e := openTest(t, opt)
	id := e.begin("k")
	var want []byte
	for i, keys := range []*seal.Keys{nil, testKeys(t, "k1"), testKeys(t, "k2", "k1")} {
		e.done()
		opt.Keys = keys
		e = openTest(t, opt)
		b := secretBody(100_000+i, byte(i))
		want = append(want, b...)
		if err := e.part("k", id, i+1, b); err != nil {
			t.Fatal(err)
		}
	}
	e.complete("k", id)
	e.want("k", want)
	if o, err := e.Stat("bkt", "k"); err != nil || o.Sealed() {
		t.Errorf("an object with a plain part counts as encrypted: %v", err)
	}
}
