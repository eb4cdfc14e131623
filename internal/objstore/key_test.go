package objstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

func TestCheckKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"a": true, "a/b": true, "a/": true, "a.b/..c/d..": true, ".a": true, "…/é": true, strings.Repeat("k", 1024): true,
		"": false, "/a": false, "a//b": false, ".": false, "..": false, "./a": false, "a/.": false, "a/../b": false,
		"a\nb": false, "a\x7f": false, "\xff": false, "a\U0010FFFF": false, strings.Repeat("k", 1025): false,
	} {
		err := objstore.CheckKey(key)
		if (err == nil) != ok || err != nil && !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("%.20q: %v, want ok %v", key, err, ok)
		}
	}
}

func TestGroups(t *testing.T) {
	for _, c := range []struct{ key, prefix, group, skip string }{
		{"a/b/c", "", "a/", "a/\U0010FFFF"},
		{"a/b/c", "a/", "a/b/", "a/b/\U0010FFFF"},
		{"a/b", "a/", "", "a/b"},
		{"z", "a/", "", "z"},
	} {
		if g, ok := objstore.Group(c.key, c.prefix, "/"); g != c.group || ok != (c.group != "") {
			t.Errorf("group of %q under %q: %q", c.key, c.prefix, g)
		}
		if s := objstore.SkipGroup(c.key, c.prefix, "/"); s != c.skip {
			t.Errorf("skip of %q under %q: %q", c.key, c.prefix, s)
		}
	}
}

func TestObserveTellsEveryOperation(t *testing.T) {
	var seen []string
	tick := time.Unix(0, 0)
	s := objstore.Observe(mem.New(nil), func(op, family string, took time.Duration, err error) {
		if took != time.Second {
			t.Errorf("%s took %v", op, took)
		}
		if err != nil {
			family += "!"
		}
		seen = append(seen, op+" "+family)
	}, func() time.Time { tick = tick.Add(time.Second); return tick })
	ctx := t.Context()
	info, _ := s.Create(ctx, "boots/v1/x", []byte("1"), objstore.PutOptions{})
	s.Create(ctx, "boots/v1/x", []byte("1"), objstore.PutOptions{})
	s.Replace(ctx, "boots/v1/x", []byte("2"), info.ETag, objstore.PutOptions{})
	s.Put(ctx, "gc/v1/y", nil, objstore.PutOptions{})
	s.Get(ctx, "gc/v1/y", objstore.GetOptions{})
	s.Head(ctx, "gc/v1/z")
	s.List(ctx, objstore.ListOptions{Prefix: "gc/v1/"})
	s.Delete(ctx, "gc/v1/y")
	want := "create boots, create boots!, replace boots, put gc, get gc, head gc!, list gc, delete gc"
	if got := strings.Join(seen, ", "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
