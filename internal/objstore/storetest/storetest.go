// Package storetest is the conformance suite of objstore.Store: what every back end
// promises, and what the acceptance protocol relies on.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Features are the known limits of a back end; the zero value is a back end without any.
type Features struct {
	// NoFileUnderKey: the keys "a" and "a/b" cannot both exist (stores over a file system).
	NoFileUnderKey bool
	// NoChecksum: Head does not return the SHA-256.
	NoChecksum bool
}

// opTimeout bounds one operation of the suite.
const opTimeout = 30 * time.Second

// Run checks the stores that open returns; each must be empty. A failure names the broken promise.
func Run(t *testing.T, open func(t *testing.T) objstore.Store, f Features) {
	cases := []struct {
		name string
		run  func(*suite)
	}{
		{"create has three outcomes", (*suite).create},
		{"replace needs the ETag", (*suite).replace},
		{"put overwrites", (*suite).put},
		{"delete is idempotent", (*suite).delete},
		{"absent keys", (*suite).absent},
		{"checksums", (*suite).checksums},
		{"options", (*suite).options},
		{"bodies", (*suite).bodies},
		{"ranges and limits", (*suite).ranges},
		{"bodies belong to the caller", (*suite).ownership},
		{"odd keys", (*suite).oddKeys},
		{"refused keys", (*suite).refusedKeys},
		{"listing", (*suite).list},
		{"listing by pages", (*suite).listPages},
		{"listing groups", (*suite).listGroups},
		{"listing beyond one page", (*suite).listMany},
		{"racing creates", (*suite).raceCreate},
		{"racing replaces", (*suite).raceReplace},
		{"reads and lists after writes", (*suite).afterWrite},
		{"cancelled context", (*suite).cancelled},
		{"tags", (*suite).tags},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.run(&suite{T: t, s: open(t), f: f})
		})
	}
}

type suite struct {
	*testing.T
	s objstore.Store
	f Features
}

func (t *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
	t.Cleanup(cancel)
	return ctx
}

// want checks that err wraps target, and no other sentinel.
func (t *suite) want(err, target error, what string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%s: got %v, want %v", what, err, target)
	}
	if target == nil {
		return
	}
	for _, other := range sentinels {
		if other != target && errors.Is(err, other) {
			t.Errorf("%s: %v is %v too", what, err, other)
		}
	}
	if e := (*objstore.Error)(nil); !errors.As(err, &e) || e.Op == "" {
		t.Errorf("%s: %v names no operation", what, err)
	}
}

var sentinels = []error{
	objstore.ErrNotFound, objstore.ErrExists, objstore.ErrPreconditionFailed, objstore.ErrConflict, objstore.ErrUnknown,
	objstore.ErrUnavailable, objstore.ErrChecksum, objstore.ErrDenied, objstore.ErrNoBucket, objstore.ErrInvalid,
}

func (t *suite) mustCreate(key string, body []byte) objstore.Info {
	t.Helper()
	info, err := t.s.Create(t.ctx(), key, body, objstore.PutOptions{})
	t.want(err, nil, "create "+key)
	return info
}

// holds checks body and description of an object by Get and Head.
func (t *suite) holds(key string, body []byte, etag string) {
	t.Helper()
	got, info, err := t.s.Get(t.ctx(), key, objstore.GetOptions{})
	t.want(err, nil, "get "+key)
	if !bytes.Equal(got, body) {
		t.Fatalf("get %s: %d bytes %.40q, want %d bytes %.40q", key, len(got), got, len(body), body)
	}
	t.describes(info, key, body, etag)
	info, err = t.s.Head(t.ctx(), key)
	t.want(err, nil, "head "+key)
	t.describes(info, key, body, etag)
	if want := identity.Sum(body); !t.f.NoChecksum && info.SHA256 != want {
		t.Errorf("head %s: SHA256 %s, want %s", key, info.SHA256, want)
	}
}

func (t *suite) describes(info objstore.Info, key string, body []byte, etag string) {
	t.Helper()
	if info.Key != key || info.Size != int64(len(body)) || info.ETag == "" || etag != "" && info.ETag != etag || info.LastModified.IsZero() {
		t.Errorf("%s: %+v, want size %d, ETag %q, a time", key, info, len(body), etag)
	}
}

func (t *suite) listed(o objstore.ListOptions) objstore.Page {
	t.Helper()
	p, err := t.s.List(t.ctx(), o)
	t.want(err, nil, fmt.Sprintf("list %+v", o))
	return p
}
