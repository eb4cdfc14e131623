package engine

import (
	"bytes"
	"context"
	"errors"
	"testing"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

func unpaced(context.Context, int64) error { return nil }

// bytesOf gives what the store counts of a key; "" is what is stored as it is.
func bytesOf(e *testEngine, id string) (n int64) {
	for _, u := range e.KeyUsage() {
		if u.Key == id {
			n += u.Bytes
		}
	}
	return n
}

// TestReseal: from no key to a key, to another one, and to none again, with everything readable at each step, with the
// new key alone afterwards, and with counts that are exact after the index is lost.
func TestReseal(t *testing.T) {
	ctx := context.Background()
	opt := Options{Dir: t.TempDir(), SegmentBytes: 300 << 10, ReclaimBelow: 0.8}
	e := openTest(t, opt)
	want := sealedHistory(e)
	id := e.begin("open")
	part := secretBody(80_000, 7)
	if err := e.part("open", id, 1, part); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		with, alone *seal.Keys
		id          string
	}{
		{testKeys(t, "k1"), testKeys(t, "k1"), "k1"},
		{testKeys(t, "k2", "k1"), testKeys(t, "k2"), "k2"},
		{testKeys(t, "-k2"), testKeys(t, "k2"), "k2"}, // a wrong secret under the id: nothing is done, nothing is lost
		{plainNone(t, "k2"), nil, ""},
	} {
		e.done()
		opt.Keys = step.with
		e = openTest(t, opt)
		stale := e.StaleBytes()
		var paced int64
		out, err := e.Reseal(ctx, func(_ context.Context, n int64) error { paced += n; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if key, _ := step.with.Find(testKeys(t, "-k2").Versions()[0]); key != nil {
			if out.Records != 0 || out.Left == 0 || !errors.Is(out.First, ErrNoKey) || stale == 0 {
				t.Errorf("with another secret: %+v, %d stale", out, stale)
			}
		} else {
			if out.Records == 0 || out.Left != 0 || stale == 0 || e.StaleBytes() != 0 || paced != out.Bytes {
				t.Errorf("%s: %+v, %d bytes were stale, %d are, paced %d", step.id, out, stale, e.StaleBytes(), paced)
			}
			if again, err := e.Reseal(ctx, unpaced); err != nil || again.Records != 0 {
				t.Errorf("%s: a second pass did %+v, %v", step.id, again, err)
			}
		}
		for {
			if n, err := e.Reclaim(ctx); err != nil {
				t.Fatal(err)
			} else if n == 0 {
				break
			}
		}
		e.done()
		if opt.Keys = step.alone; opt.Keys != nil && len(findPhrase(t, opt.Dir+"/blobs")) > 0 {
			t.Errorf("%s: files stand as they are", step.id)
		}
		opt.IndexFS = pebblevfs.NewMem()
		e = openTest(t, opt)
		e.wantAll(want)
		if err := checkKeyUsage(e.Engine); err != nil {
			t.Error(err)
		}
		if bytesOf(e, step.id) == 0 {
			t.Errorf("nothing is counted of %q: %+v", step.id, e.KeyUsage())
		}
		opt.IndexFS = nil
	}
	e.complete("open", id)
	e.want("open", part)
}

// TestResealGivesWay: between the read of a record and its copy clients overwrite it, delete it, tag it, or complete the
// upload that it is a part of. What they did stays, and no file is left behind or lost.
func TestResealGivesWay(t *testing.T) {
	for at := 1; resealGivesWay(t, at) >= at && !t.Failed(); at++ {
	}
}

// resealGivesWay lets the clients come before write number at of a pass, and gives the number of writes.
func resealGivesWay(t *testing.T, at int) int {
	ctx := context.Background()
	opt := Options{Dir: t.TempDir(), Keys: testKeys(t, "k1"), InlineBytes: 8 << 10}
	e := openTest(t, opt)
	old, fresh := secretBody(20_000, 1), secretBody(30_000, 2)
	for _, k := range []string{"overwritten", "deleted", "tagged", "left"} {
		e.put(k+"/log", old[:5000])
		e.putFile(k+"/file", old)
	}
	id := e.begin("uploaded")
	if err := e.part("uploaded", id, 1, old); err != nil {
		t.Fatal(err)
	}
	e.done()
	opt.Keys = testKeys(t, "k2", "k1")
	e = openTest(t, opt)
	calls := 0
	meanwhile := func(context.Context, int64) error {
		if calls++; calls != at {
			return nil
		}
		e.put("overwritten/log", fresh[:100])
		e.putFile("overwritten/file", fresh)
		for _, k := range []string{"deleted/log", "deleted/file"} {
			if _, err := e.Delete(ctx, "bkt", Deletion{Key: k}); err != nil {
				t.Error(err)
			}
		}
		for _, k := range []string{"tagged/log", "tagged/file"} {
			if _, err := e.SetTags(ctx, "bkt", k, "", []Pair{{"a", "b"}}); err != nil {
				t.Error(err)
			}
		}
		e.complete("uploaded", id)
		return nil
	}
	if _, err := e.Reseal(ctx, meanwhile); err != nil || calls == 0 {
		t.Fatal(err, calls)
	}
	if calls < at {
		return calls
	}
	want := map[string][]byte{
		"overwritten/log": fresh[:100], "overwritten/file": fresh, "tagged/log": old[:5000], "tagged/file": old,
		"left/log": old[:5000], "left/file": old, "uploaded": old,
	}
	e.wantAll(want)
	if _, err := e.Reseal(ctx, unpaced); err != nil || bytesOf(e, "k1") != 0 {
		t.Fatal(err, e.KeyUsage())
	}
	if err := errors.Join(tidy(e.Engine), checkKeyUsage(e.Engine)); err != nil {
		t.Error(err)
	}
	if n := e.files(); n != 4 {
		t.Errorf("%d files, want 4", n)
	}
	e.done()
	opt.Keys = testKeys(t, "k2")
	e = openTest(t, opt)
	e.wantAll(want)
	if o, err := e.Stat("bkt", "tagged/file"); err != nil || len(o.Tags) != 1 {
		t.Errorf("the tags are gone: %v", err)
	}
	return calls
}

// TestCompleteOfMovedParts: between the read of the parts and the completion they are written again, by a rotation and by
// reclaiming, which is none of the client's doing; and then by the client.
func TestCompleteOfMovedParts(t *testing.T) {
	ctx := context.Background()
	opt := Options{Dir: t.TempDir(), Keys: testKeys(t, "k1"), SegmentBytes: 4 << 10, ReclaimBelow: 0.99}
	e := openTest(t, opt)
	id := e.begin("k")
	body := secretBody(30_000, 1)
	for n := range 3 {
		if err := e.part("k", id, n+1, body); err != nil {
			t.Fatal(err)
		}
	}
	e.done()
	opt.Keys = testKeys(t, "k2", "k1")
	e = openTest(t, opt)
	stale := e.parts("k", id)
	if out, err := e.Reseal(ctx, unpaced); err != nil || out.Records != 3 {
		t.Fatal(out, err)
	}
	whole := Object{Bucket: "bkt", Key: "k", Modified: epoch, ETag: "whole", Size: 90_000}
	if _, err := e.Engine.Complete(ctx, whole, id, stale, Cond{}); err != nil {
		t.Fatal(err)
	}
	e.want("k", bytes.Repeat(body, 3))
	e.done()
	opt.Keys = testKeys(t, "k2")
	e = openTest(t, opt)
	e.want("k", bytes.Repeat(body, 3))

	id = e.begin("other")
	if err := e.part("other", id, 1, body); err != nil {
		t.Fatal(err)
	}
	stale = e.parts("other", id)
	if err := e.part("other", id, 1, body[:100]); err != nil {
		t.Fatal(err)
	}
	whole.Key, whole.Size = "other", 30_000
	if _, err := e.Engine.Complete(ctx, whole, id, stale, Cond{}); !errors.Is(err, ErrPartChanged) {
		t.Errorf("a part that the client has replaced: %v", err)
	}
}

// TestVersionsAreSealed: versions, null versions and those that are not the current ones are sealed, sealed again, and
// counted.
func TestVersionsAreSealed(t *testing.T) {
	ctx := context.Background()
	opt := Options{Dir: t.TempDir(), Keys: testKeys(t, "k1"), InlineBytes: 8 << 10}
	e := openTest(t, opt)
	bodies := [][]byte{secretBody(3000, 1), secretBody(20_000, 2), secretBody(4000, 3), secretBody(30_000, 4)}
	e.put("k", bodies[0]) // the null version, from before
	if err := e.SetVersioning(ctx, "bkt", Enabled); err != nil {
		t.Fatal(err)
	}
	e.putFile("k", bodies[1])
	e.put("k", bodies[2])
	e.putFile("k", bodies[3])
	if _, err := e.Delete(ctx, "bkt", Deletion{Key: "k", Modified: epoch}); err != nil {
		t.Fatal(err)
	}
	e.done()
	opt.Keys = testKeys(t, "k2", "k1")
	e = openTest(t, opt)
	if out, err := e.Reseal(ctx, unpaced); err != nil || out.Records != 4 || out.Left != 0 || e.StaleBytes() != 0 {
		t.Fatal(out, err, e.KeyUsage())
	}
	e.done()
	opt.Keys = testKeys(t, "k2")
	e = openTest(t, opt)
	page, err := e.Versions("bkt", VersionQuery{Max: 10})
	if err != nil || len(page.Versions) != 5 || !page.Versions[0].Marker || !page.Versions[0].Latest {
		t.Fatalf("%+v, %v", page, err)
	}
	for i, v := range page.Versions[1:] {
		id := v.Version
		if id == "" {
			id = NullVersion
		}
		h, err := e.GetVersion("bkt", "k", id)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := h.Copy(&got, 0, h.Object.Size); err != nil || !bytes.Equal(got.Bytes(), bodies[3-i]) || !h.Object.Sealed() {
			t.Errorf("version %s: %d bytes, %v", id, got.Len(), err)
		}
		h.Close()
	}
	if err := errors.Join(checkKeyUsage(e.Engine), checkUsage(e.Engine), tidy(e.Engine)); err != nil {
		t.Error(err)
	}
	if found := findPhrase(t, opt.Dir); len(found) > 0 {
		t.Errorf("bodies stand as they are in %v", found)
	}
}
