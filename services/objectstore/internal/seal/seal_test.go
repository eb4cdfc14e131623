package seal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((i*7 + n) % 251)
	}
	return b
}

func testKey(t testing.TB, id string, first byte) *Key {
	t.Helper()
	secret := make([]byte, keySize)
	for i := range secret {
		secret[i] = first + byte(i)
	}
	k, err := NewKey(id, secret)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func testBody(t testing.TB, k *Key, salt byte, n Name) *Body {
	t.Helper()
	var s Salt
	for i := range s {
		s[i] = salt + byte(i)
	}
	b, err := k.Body(s, n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// open opens a whole sealed body.
func open(b *Body, sealed []byte) ([]byte, error) {
	n, ok := Plain(int64(len(sealed)))
	if !ok {
		return nil, ErrForged
	}
	buf := bytes.Clone(sealed)
	if err := b.OpenInPlace(buf, 0, true); err != nil {
		return nil, err
	}
	out := make([]byte, 0, n)
	for at := int64(0); at < n; at += PlainChunk {
		out = append(out, buf[Offset(at):][:min(PlainChunk, n-at)]...)
	}
	return out, nil
}

// TestKnownAnswers: the values were computed with another implementation of HKDF and AES-GCM (Python's cryptography),
// from the description of the format alone.
func TestKnownAnswers(t *testing.T) {
	k := testKey(t, "k1", 0)
	if got := k.Version().String(); got != "k1/6009cf8e74a349c3" {
		t.Errorf("version %s", got)
	}
	in := testBody(t, k, 100, Name{Bucket: "bkt", Key: "k/1"})
	for n, want := range map[int]string{
		0:      "2e5bb8b9c47d50e6461ad22de5c3a05e948171e3f96b63dac63391e80b8d22c0",
		5:      "66f24bd742a7f0300952b18da35587b3130007673658abb4ffe7193534aeb49a",
		65520:  "96380a8fbd89eec959e5f4a06cbc259b8f54a46c5a4022ab732ec26b19ee0290",
		65521:  "0e172c204ae0436aa1adafed46ed339ed15d7a676309461a514d077439771b3f",
		200000: "ee468eecd5ac20bf11ebb1e6ec96a57b1f9b07014c7387952cd45595368beda5",
	} {
		sealed := in.SealWhole(nil, pattern(n))
		if got := sha256.Sum256(sealed); hex.EncodeToString(got[:]) != want || int64(len(sealed)) != Sealed(int64(n)) {
			t.Errorf("%d bytes: %d sealed, %x", n, len(sealed), got)
		}
	}
	file := testBody(t, k, 100, Name{Bucket: "bkt", Key: "k/1", Body: "00112233445566778899aabbccddeeff"})
	if got := file.SealWhole(nil, pattern(5)); hex.EncodeToString(got) != "e5741ac9c1e72a0604d0a12372dac6b591696715f7" {
		t.Errorf("a body of its own: %x", got)
	}
}

func TestLengths(t *testing.T) {
	for _, n := range []int64{0, 1, PlainChunk - 1, PlainChunk, PlainChunk + 1, 16 * PlainChunk, 5 << 30} {
		if got, ok := Plain(Sealed(n)); got != n || !ok {
			t.Errorf("%d sealed and back is %d, %v", n, got, ok)
		}
	}
	for _, n := range []int64{-1, 0, 1, Tag - 1, Chunk + 1, Chunk + Tag} {
		if got, ok := Plain(n); ok {
			t.Errorf("a sealed body of %d bytes has %d", n, got)
		}
	}
}

// TestInPlace: blocks that are sealed where they lie are the same bytes as the whole, and every run of chunks opens.
func TestInPlace(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	b := testBody(t, testKey(t, "k", 3), 1, Name{"b", "k", "id"})
	const perBlock = 4
	for range 60 {
		body := pattern(rng.IntN(12 * PlainChunk))
		if rng.IntN(4) == 0 {
			body = pattern(rng.IntN(4) * perBlock * PlainChunk)
		}
		var sealed []byte
		for at := 0; ; {
			n := min(perBlock*PlainChunk, len(body)-at)
			buf := make([]byte, perBlock*Chunk)
			for i := 0; i < n; i += PlainChunk {
				copy(buf[Offset(int64(i)):], body[at+i:min(at+i+PlainChunk, at+n)])
			}
			last := at+n == len(body)
			sealed = append(sealed, b.SealInPlace(buf, n, uint64(at/PlainChunk), last)...)
			if at += n; last {
				break
			}
		}
		if !bytes.Equal(sealed, b.SealWhole(nil, body)) {
			t.Fatalf("%d bytes: sealed in blocks they differ", len(body))
		}
		got, err := open(b, sealed)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%d bytes: %v", len(body), err)
		}
		chunks := (len(sealed) + Chunk - 1) / Chunk
		from := rng.IntN(chunks)
		to := from + 1 + rng.IntN(chunks-from)
		run := bytes.Clone(sealed[from*Chunk : min(to*Chunk, len(sealed))])
		if err := b.OpenInPlace(run, uint64(from), to == chunks); err != nil {
			t.Fatalf("chunks %d to %d of %d: %v", from, to, chunks, err)
		}
		if want := body[from*PlainChunk : min((from+1)*PlainChunk, len(body))]; !bytes.Equal(run[:len(want)], want) {
			t.Fatalf("chunk %d of %d has other bytes", from, chunks)
		}
	}
}

// TestForgedBytes: whatever is done to the chunks of a body, it does not open.
func TestForgedBytes(t *testing.T) {
	k := testKey(t, "k", 3)
	name := Name{"bucket", "key", "id"}
	b := testBody(t, k, 1, name)
	sealed := b.SealWhole(nil, pattern(3*PlainChunk))
	chunk := func(i int) []byte { return sealed[i*Chunk : (i+1)*Chunk] }
	other := testBody(t, k, 2, name).SealWhole(nil, pattern(3*PlainChunk))
	for what, forged := range map[string][]byte{
		"a chunk is missing at the end":   slices.Concat(chunk(0), chunk(1)),
		"a chunk is missing at the start": slices.Concat(chunk(1), chunk(2)),
		"a chunk is missing in between":   slices.Concat(chunk(0), chunk(2)),
		"chunks in another order":         slices.Concat(chunk(1), chunk(0), chunk(2)),
		"a chunk twice":                   slices.Concat(chunk(0), chunk(1), chunk(1), chunk(2)),
		"the last chunk twice":            slices.Concat(chunk(0), chunk(1), chunk(2), chunk(2)),
		"cut off in a chunk":              sealed[:2*Chunk+100],
		"a chunk of another body":         slices.Concat(chunk(0), other[Chunk:2*Chunk], chunk(2)),
		"another body":                    other,
		"nothing":                         {},
		"a tag":                           sealed[:Tag],
		"an empty body":                   testBody(t, k, 2, name).SealWhole(nil, nil),
	} {
		if _, err := open(b, forged); !errors.Is(err, ErrForged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := 0; i < len(sealed); i += 1021 {
		forged := bytes.Clone(sealed)
		forged[i] ^= 1 << (i % 8)
		if _, err := open(b, forged); !errors.Is(err, ErrForged) {
			t.Fatalf("a changed bit in byte %d: %v", i, err)
		}
	}
	for what, n := range map[string]Name{
		"another bucket": {"buckeT", "key", "id"}, "another key": {"bucket", "other", "id"}, "another body": {"bucket", "key", "di"},
		"in the log": {"bucket", "key", ""}, "shifted": {"bucketk", "ey", "id"}, "shifted again": {"bucket", "keyid", ""},
	} {
		if _, err := open(testBody(t, k, 1, n), sealed); !errors.Is(err, ErrForged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := open(testBody(t, testKey(t, "k", 4), 1, name), sealed); !errors.Is(err, ErrForged) {
		t.Errorf("another secret: %v", err)
	}
}

func TestKeysFindVersions(t *testing.T) {
	one, two := testKey(t, "one", 1), testKey(t, "two", 2)
	keys, err := NewKeys("two", one, two)
	if err != nil || keys.Current() != two || len(keys.Versions()) != 2 {
		t.Fatal(keys, err)
	}
	if k, err := keys.Find(one.Version()); k != one || err != nil {
		t.Error(k, err)
	}
	var missing *MissingError
	if _, err := keys.Find(testKey(t, "three", 3).Version()); !errors.As(err, &missing) || missing.Other || missing.Want.ID != "three" {
		t.Errorf("a key that was not given: %v", err)
	}
	if _, err := keys.Find(testKey(t, "one", 9).Version()); !errors.As(err, &missing) || !missing.Other {
		t.Errorf("another secret under the id: %v", err)
	}
	var none *Keys
	if _, err := none.Find(one.Version()); !errors.As(err, &missing) || none.Current() != nil || none.Versions() != nil {
		t.Errorf("no keys: %v", err)
	}
	if _, err := NewKeys("three", one); err == nil {
		t.Error("the current key is not there")
	}
	if _, err := NewKeys("one", one, testKey(t, "one", 2)); err == nil {
		t.Error("an id twice")
	}
}

func TestKeysAreNeverPrinted(t *testing.T) {
	k := testKey(t, "k", 0x41) // ABC...
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, k); bytes.Contains([]byte(s), []byte("BCD")) || bytes.Contains([]byte(s), []byte("4243")) || bytes.Contains([]byte(s), []byte("0x42")) {
			t.Errorf("%s prints %s", format, s)
		}
	}
}

func FuzzOpen(f *testing.F) {
	k := testKey(f, "k", 1)
	b := testBody(f, k, 1, Name{"b", "k", ""})
	f.Add([]byte("body"), uint16(0), byte(0), uint16(0))
	f.Add(bytes.Repeat([]byte("x"), PlainChunk+5), uint16(3), byte(1), uint16(9))
	f.Fuzz(func(t *testing.T, body []byte, at uint16, flip byte, cut uint16) {
		sealed := b.SealWhole(nil, body)
		if got, err := open(b, sealed); err != nil || !bytes.Equal(got, body) {
			t.Fatalf("what was sealed does not open: %v", err)
		}
		forged := bytes.Clone(sealed)
		forged[int(at)%len(forged)] ^= flip
		forged = forged[:len(forged)-int(cut)%len(forged)]
		if bytes.Equal(forged, sealed) {
			return
		}
		if got, err := open(b, forged); err == nil {
			t.Fatalf("forged bytes open as %q", got)
		}
		// Bytes that were never sealed.
		if _, err := open(b, body); err == nil {
			t.Fatal("bytes that were not sealed open")
		}
	})
}
