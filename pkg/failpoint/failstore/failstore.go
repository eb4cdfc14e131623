// Package failstore puts failpoints around every request to an object store, so that
// packages that must stay free of them are crashed between any two of their requests.
package failstore

import (
	"context"
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/pkg/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

// Register makes the points of a process's requests known: each kind is "<operation>
// <key family>", such as "create accepted", and gives <process>.store.<operation>.<family>.before and .after.
func Register(process string, kinds ...string) []failpoint.Point {
	return RegisterDriven("", process, kinds...)
}

// RegisterDriven is Register for requests that the crash test of a package drives.
func RegisterDriven(by, process string, kinds ...string) []failpoint.Point {
	var points []failpoint.Point
	for _, k := range kinds {
		op, family, _ := strings.Cut(k, " ")
		base := name(process, op, family)
		points = append(points,
			failpoint.Point{Name: base + ".before", When: op + " of a key of " + family + "/ is not sent yet"},
			failpoint.Point{Name: base + ".after", When: op + " of a key of " + family + "/ was answered; nobody has seen the answer"})
	}
	return failpoint.Register(failpoint.Driven(by, points...)...)
}

func name(process, op, family string) string { return process + ".store." + op + "." + family }

// Wrap puts the points around s; s itself comes back where nothing is armed. The
// action "error" before a request fails it unsent; after it, it loses the answer.
func Wrap(s objstore.Store, process string) objstore.Store {
	if !failpoint.Armed() {
		return s
	}
	return &store{reader{s, process}, s}
}

// Reader is Wrap for one who only reads.
func Reader(r objstore.Reader, process string) objstore.Reader {
	if !failpoint.Armed() {
		return r
	}
	return &reader{r, process}
}

type reader struct {
	r       objstore.Reader
	process string
}

type store struct {
	reader
	s objstore.Store
}

// around runs a request between its two points. lost is the outcome of one whose answer is lost.
func (r *reader) around(op, key string, lost error, do func() error) error {
	base := name(r.process, op, objstore.Family(key))
	fail := func(err error) error { return &objstore.Error{Op: op, Key: key, Err: fmt.Errorf("%w: %w", lost, err)} }
	if err := failpoint.Err(base + ".before"); err != nil {
		return fail(err)
	}
	err := do()
	if ferr := failpoint.Err(base + ".after"); ferr != nil {
		return fail(ferr)
	}
	return err
}

// Get implements objstore.Reader.
func (r *reader) Get(ctx context.Context, key string, o objstore.GetOptions) (b []byte, info objstore.Info, err error) {
	err = r.around("get", key, objstore.ErrUnavailable, func() (err error) {
		b, info, err = r.r.Get(ctx, key, o)
		return err
	})
	return b, info, err
}

// Head implements objstore.Reader.
func (r *reader) Head(ctx context.Context, key string) (info objstore.Info, err error) {
	err = r.around("head", key, objstore.ErrUnavailable, func() (err error) {
		info, err = r.r.Head(ctx, key)
		return err
	})
	return info, err
}

// List implements objstore.Reader.
func (r *reader) List(ctx context.Context, o objstore.ListOptions) (page objstore.Page, err error) {
	err = r.around("list", o.Prefix, objstore.ErrUnavailable, func() (err error) {
		page, err = r.r.List(ctx, o)
		return err
	})
	return page, err
}

// Create implements objstore.Creator.
func (s *store) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (info objstore.Info, err error) {
	err = s.around("create", key, objstore.ErrUnknown, func() (err error) {
		info, err = s.s.Create(ctx, key, body, o)
		return err
	})
	return info, err
}

// Replace implements objstore.Writer.
func (s *store) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (info objstore.Info, err error) {
	err = s.around("replace", key, objstore.ErrUnknown, func() (err error) {
		info, err = s.s.Replace(ctx, key, body, etag, o)
		return err
	})
	return info, err
}

// Put implements objstore.Writer.
func (s *store) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (info objstore.Info, err error) {
	err = s.around("put", key, objstore.ErrUnknown, func() (err error) {
		info, err = s.s.Put(ctx, key, body, o)
		return err
	})
	return info, err
}

// Delete implements objstore.Writer.
func (s *store) Delete(ctx context.Context, key string) error {
	return s.around("delete", key, objstore.ErrUnknown, func() error { return s.s.Delete(ctx, key) })
}
