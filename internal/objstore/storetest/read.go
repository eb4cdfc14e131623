package storetest

import (
	"errors"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

func (t *suite) absent() {
	t.mustCreate("here/a", []byte("x"))
	for _, key := range []string{"gone", "here/b", "here/a.json"} {
		_, _, err := t.s.Get(t.ctx(), key, objstore.GetOptions{})
		t.want(err, objstore.ErrNotFound, "get of an absent key")
		_, _, err = t.s.Get(t.ctx(), key, objstore.GetOptions{Length: 10})
		t.want(err, objstore.ErrNotFound, "ranged get of an absent key")
		_, err = t.s.Head(t.ctx(), key)
		t.want(err, objstore.ErrNotFound, "head of an absent key")
	}
}

func (t *suite) ranges() {
	const body = "0123456789"
	t.mustCreate("r", []byte(body))
	t.mustCreate("empty", nil)
	for _, c := range []struct {
		key  string
		o    objstore.GetOptions
		want string
		err  error
	}{
		{key: "r", o: objstore.GetOptions{Length: 4}, want: "0123"},
		{key: "r", o: objstore.GetOptions{Offset: 3}, want: "3456789"},
		{key: "r", o: objstore.GetOptions{Offset: 3, Length: 1}, want: "3"},
		{key: "r", o: objstore.GetOptions{Offset: 9, Length: 1}, want: "9"},
		{key: "r", o: objstore.GetOptions{Offset: 8, Length: 100}, want: "89"},
		{key: "r", o: objstore.GetOptions{Length: 1024}, want: body},
		{key: "r", o: objstore.GetOptions{Limit: 10}, want: body},
		{key: "r", o: objstore.GetOptions{Limit: 9}, err: objstore.ErrInvalid},
		{key: "r", o: objstore.GetOptions{Offset: 1, Limit: 9}, want: body[1:]},
		{key: "r", o: objstore.GetOptions{Length: 5, Limit: 5}, want: body[:5]},
		{key: "r", o: objstore.GetOptions{Length: 6, Limit: 5}, err: objstore.ErrInvalid},
		{key: "r", o: objstore.GetOptions{Offset: 10}, err: objstore.ErrInvalid},
		{key: "r", o: objstore.GetOptions{Offset: 11, Length: 1}, err: objstore.ErrInvalid},
		{key: "r", o: objstore.GetOptions{Offset: -1}, err: objstore.ErrInvalid},
		{key: "empty", o: objstore.GetOptions{Length: 1024}},
		{key: "empty", o: objstore.GetOptions{Offset: 1}, err: objstore.ErrInvalid},
	} {
		got, info, err := t.s.Get(t.ctx(), c.key, c.o)
		if c.err != nil {
			t.want(err, c.err, "get of a bad range")
			continue
		}
		t.want(err, nil, "get of a range")
		size := map[string]int64{"r": 10}[c.key]
		if string(got) != c.want || info.Size != size || info.ETag == "" {
			t.Errorf("%s %+v: %q of %d bytes, want %q of %d", c.key, c.o, got, info.Size, c.want, size)
		}
	}
}

// odd are legal keys that escaping, cleaning or sorting goes wrong with.
var odd = []string{
	"!bang", "a b", "a+b", "a%2Fb", "a%20b", "a&b=c?d#e", "agent=6869/boot=00/1-2.json",
	"dir.d/..x", "dir.d/x..", "lower", "quote'\"\\", "star*(~)[]{}^|`<>,;:@$", "UPPER", "tilde~", "ünïcödé/π", "z\uFFFD", "\U0001F600",
}

func (t *suite) oddKeys() {
	if !t.f.NoFileUnderKey {
		for _, key := range []string{"file/under/key", "file", "file/under"} {
			t.mustCreate(key, []byte(key))
			t.holds(key, []byte(key), "")
		}
		t.sameKeys(t.listed(objstore.ListOptions{}).Objects, []string{"file", "file/under", "file/under/key"})
		for _, key := range []string{"file", "file/under", "file/under/key"} {
			t.want(t.s.Delete(t.ctx(), key), nil, "delete")
		}
	}
	for _, key := range odd {
		info := t.mustCreate(key, []byte(key))
		t.holds(key, []byte(key), info.ETag)
	}
	t.sameKeys(t.listed(objstore.ListOptions{}).Objects, odd)
	for _, key := range odd {
		p := t.listed(objstore.ListOptions{Prefix: key})
		if len(p.Objects) == 0 || p.Objects[0].Key != key {
			t.Errorf("list with prefix %q: %+v", key, p.Objects)
		}
		t.want(t.s.Delete(t.ctx(), key), nil, "delete")
	}
	if p := t.listed(objstore.ListOptions{}); len(p.Objects) != 0 {
		t.Errorf("left: %+v", p.Objects)
	}
}

func (t *suite) refusedKeys() {
	for _, key := range []string{"", "/a", "a//b", "a/./b", "..", "a/..", "nul\x00", "tab\t", "bad\xff", "z\U0010FFFF", strings.Repeat("k", objstore.MaxKeyBytes+1)} {
		_, err := t.s.Create(t.ctx(), key, []byte("x"), objstore.PutOptions{})
		t.want(err, objstore.ErrInvalid, "create")
		_, _, err = t.s.Get(t.ctx(), key, objstore.GetOptions{})
		t.want(err, objstore.ErrInvalid, "get")
		_, err = t.s.Head(t.ctx(), key)
		t.want(err, objstore.ErrInvalid, "head")
		t.want(t.s.Delete(t.ctx(), key), objstore.ErrInvalid, "delete")
	}
}

func (t *suite) wraps(err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%v does not wrap %v", err, target)
	}
}
