package storetest

import (
	"bytes"
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func (t *suite) create() {
	info := t.mustCreate("a/one.json", []byte("one"))
	t.describes(info, "a/one.json", []byte("one"), "")
	if info.SHA256 != identity.Sum([]byte("one")) {
		t.Errorf("create: SHA256 %s", info.SHA256)
	}
	t.holds("a/one.json", []byte("one"), info.ETag)
	for _, body := range []string{"one", "two", ""} {
		_, err := t.s.Create(t.ctx(), "a/one.json", []byte(body), objstore.PutOptions{})
		t.want(err, objstore.ErrExists, "second create")
	}
	t.holds("a/one.json", []byte("one"), info.ETag)
	t.want(t.s.Delete(t.ctx(), "a/one.json"), nil, "delete")
	t.mustCreate("a/one.json", []byte("two"))
	t.holds("a/one.json", []byte("two"), "")
}

func (t *suite) replace() {
	_, err := t.s.Replace(t.ctx(), "r", []byte("x"), `"0123456789abcdef0123456789abcdef"`, objstore.PutOptions{})
	t.want(err, objstore.ErrPreconditionFailed, "replace of an absent key")
	_, err = t.s.Head(t.ctx(), "r")
	t.want(err, objstore.ErrNotFound, "head after a refused replace")

	one := t.mustCreate("r", []byte("one"))
	_, err = t.s.Replace(t.ctx(), "r", []byte("x"), `"0123456789abcdef0123456789abcdef"`, objstore.PutOptions{})
	t.want(err, objstore.ErrPreconditionFailed, "replace with a wrong ETag")
	t.holds("r", []byte("one"), one.ETag)

	two, err := t.s.Replace(t.ctx(), "r", []byte("two"), one.ETag, objstore.PutOptions{})
	t.want(err, nil, "replace")
	if two.ETag == one.ETag {
		t.Errorf("other bytes, same ETag %s", two.ETag)
	}
	t.holds("r", []byte("two"), two.ETag)
	_, err = t.s.Replace(t.ctx(), "r", []byte("x"), one.ETag, objstore.PutOptions{})
	t.want(err, objstore.ErrPreconditionFailed, "replace with an old ETag")
	t.holds("r", []byte("two"), two.ETag)

	t.want(t.s.Delete(t.ctx(), "r"), nil, "delete")
	_, err = t.s.Replace(t.ctx(), "r", []byte("x"), two.ETag, objstore.PutOptions{})
	t.want(err, objstore.ErrPreconditionFailed, "replace of a deleted key")
}

func (t *suite) put() {
	for _, body := range []string{"one", "two", "two"} {
		info, err := t.s.Put(t.ctx(), "p", []byte(body), objstore.PutOptions{})
		t.want(err, nil, "put")
		t.holds("p", []byte(body), info.ETag)
	}
}

func (t *suite) delete() {
	t.want(t.s.Delete(t.ctx(), "d"), nil, "delete of an absent key")
	t.mustCreate("d", []byte("x"))
	for range 2 {
		t.want(t.s.Delete(t.ctx(), "d"), nil, "delete")
		_, _, err := t.s.Get(t.ctx(), "d", objstore.GetOptions{})
		t.want(err, objstore.ErrNotFound, "get after delete")
	}
	if p := t.listed(objstore.ListOptions{}); len(p.Objects) != 0 {
		t.Errorf("listed after delete: %+v", p.Objects)
	}
}

func (t *suite) checksums() {
	wrong := identity.Sum([]byte("other"))
	_, err := t.s.Create(t.ctx(), "c", []byte("body"), objstore.PutOptions{SHA256: wrong})
	t.want(err, objstore.ErrChecksum, "create with a wrong checksum")
	_, err = t.s.Put(t.ctx(), "c", []byte("body"), objstore.PutOptions{SHA256: wrong})
	t.want(err, objstore.ErrChecksum, "put with a wrong checksum")
	_, err = t.s.Head(t.ctx(), "c")
	t.want(err, objstore.ErrNotFound, "head after refused bodies")

	_, err = t.s.Create(t.ctx(), "c", []byte("body"), objstore.PutOptions{SHA256: identity.Sum([]byte("body"))})
	t.want(err, nil, "create with its checksum")
	t.holds("c", []byte("body"), "")
}

func (t *suite) options() {
	o := objstore.PutOptions{ContentType: "application/json", Tags: map[string]string{"kind": "manifest", "with space": "a+b/c=d"}}
	info, err := t.s.Create(t.ctx(), "o", []byte("{}"), o)
	t.want(err, nil, "create with tags")
	t.holds("o", []byte("{}"), info.ETag)
}

func (t *suite) bodies() {
	pattern := []byte("0123456789abcdef-lightmetrics-\x00\xff")
	for _, n := range []int{0, 1, 4095, 64<<10 + 1, 8 << 20} {
		key := fmt.Sprintf("b/%d", n)
		body := bytes.Repeat(pattern, n/len(pattern)+1)[:n]
		info := t.mustCreate(key, body)
		t.holds(key, body, info.ETag)
		_, err := t.s.Create(t.ctx(), key, body, objstore.PutOptions{})
		t.want(err, objstore.ErrExists, "second create")
	}
}

func (t *suite) ownership() {
	body := []byte("first")
	t.mustCreate("own", body)
	copy(body, "other")
	t.holds("own", []byte("first"), "")
	got, _, err := t.s.Get(t.ctx(), "own", objstore.GetOptions{})
	t.want(err, nil, "get")
	copy(got, "other")
	t.holds("own", []byte("first"), "")
}

func (t *suite) cancelled() {
	one := t.mustCreate("x", []byte("one"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, cerr := t.s.Create(ctx, "y", []byte("y"), objstore.PutOptions{})
	_, rerr := t.s.Replace(ctx, "x", []byte("y"), one.ETag, objstore.PutOptions{})
	_, perr := t.s.Put(ctx, "y", []byte("y"), objstore.PutOptions{})
	for _, err := range []error{cerr, rerr, perr, t.s.Delete(ctx, "x")} {
		t.want(err, objstore.ErrUnknown, "write under a cancelled context")
		t.wraps(err, context.Canceled)
	}
	_, _, gerr := t.s.Get(ctx, "x", objstore.GetOptions{})
	_, herr := t.s.Head(ctx, "x")
	_, lerr := t.s.List(ctx, objstore.ListOptions{})
	for _, err := range []error{gerr, herr, lerr} {
		t.want(err, objstore.ErrUnavailable, "read under a cancelled context")
		t.wraps(err, context.Canceled)
	}
}
