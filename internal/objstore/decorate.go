package objstore

import (
	"context"
	"fmt"
	"sync"
)

// Op is one operation on a store: its name as in Error.Op, and its key or, of a listing,
// its prefix.
type Op struct{ Name, Key string }

// Writes reports whether the operation changes the store.
func (o Op) Writes() bool { return o.Name != "get" && o.Name != "head" && o.Name != "list" }

// Around runs an operation: it calls do once, several times or not at all, one after the other and before it
// returns, and returns the error that the caller of the store gets. If that error is nil, the caller gets the
// result of the last call of do.
type Around func(ctx context.Context, op Op, do func(context.Context) error) error

// Decorate runs every operation of s through a. The result implements Tagger, whose SetTags
// returns ErrInvalid if s does not, and Unwrap.
func Decorate(s Store, a Around) Store {
	// Decorators of decorators are one, so that an operation goes through all of them without a copy of
	// its arguments and results for each.
	if d, ok := s.(*decorated); ok {
		return &decorated{d.s, append([]Around{a}, d.arounds...)}
	}
	return &decorated{s, []Around{a}}
}

// Unwrap returns the back end below all decorators, for callers that must see each answer
// of the store itself, such as the start-up probe.
func Unwrap(s Store) Store {
	for {
		d, ok := s.(interface{ Unwrap() Store })
		if !ok {
			return s
		}
		s = d.Unwrap()
	}
}

type decorated struct {
	s       Store
	arounds []Around // the outermost one first
}

var (
	_ Tagger         = (*decorated)(nil)
	_ VersionDeleter = (*decorated)(nil)
)

// Unwrap returns the store that is decorated.
func (d *decorated) Unwrap() Store { return d.s }

// call is one operation: its arguments, and the results of the last attempt. Calls are used again.
type call struct {
	d     *decorated
	depth int                         // how many decorators it is in
	do    func(context.Context) error // step
	op    Op
	callArguments
	callResults
}

type callArguments struct {
	body []byte
	etag string
	put  PutOptions
	get  GetOptions
	list ListOptions
	tags map[string]string
	// version of a delete; empty is the object.
	version string
}

type callResults struct {
	bytes []byte
	info  Info
	page  Page
}

var calls = sync.Pool{New: func() any {
	c := &call{}
	c.do = c.step
	return c
}}

// run sends an operation through the decorators. What it leaves in the results counts only without an error: a decorator
// may return one although the inner call succeeded, for a lost answer for example.
func (d *decorated) run(ctx context.Context, op Op, args callArguments) (res callResults, err error) {
	c := calls.Get().(*call)
	c.d, c.op, c.callArguments = d, op, args
	if err = c.step(ctx); err == nil {
		res = c.callResults
	}
	// After a panic it is not used again.
	*c = call{do: c.do}
	calls.Put(c)
	return res, err
}

// step goes one decorator deeper, and at last to the store.
func (c *call) step(ctx context.Context) error {
	if c.depth == len(c.d.arounds) {
		return c.send(ctx)
	}
	c.depth++
	err := c.d.arounds[c.depth-1](ctx, c.op, c.do)
	c.depth--
	return err
}

func (c *call) send(ctx context.Context) (err error) {
	s, key := c.d.s, c.op.Key
	switch c.op.Name {
	case "get":
		c.bytes, c.info, err = s.Get(ctx, key, c.get)
	case "head":
		c.info, err = s.Head(ctx, key)
	case "list":
		c.page, err = s.List(ctx, c.list)
	case "create":
		c.info, err = s.Create(ctx, key, c.body, c.put)
	case "replace":
		c.info, err = s.Replace(ctx, key, c.body, c.etag, c.put)
	case "put":
		c.info, err = s.Put(ctx, key, c.body, c.put)
	case "delete":
		err = DeleteVersion(ctx, s, key, c.version)
	case "tag":
		err = s.(Tagger).SetTags(ctx, key, c.tags)
	default:
		err = fmt.Errorf("%w: operation %q", ErrInvalid, c.op.Name)
	}
	return err
}

func (d *decorated) Get(ctx context.Context, key string, o GetOptions) ([]byte, Info, error) {
	r, err := d.run(ctx, Op{"get", key}, callArguments{get: o})
	return r.bytes, r.info, err
}

func (d *decorated) Head(ctx context.Context, key string) (Info, error) {
	r, err := d.run(ctx, Op{"head", key}, callArguments{})
	return r.info, err
}

func (d *decorated) List(ctx context.Context, o ListOptions) (Page, error) {
	r, err := d.run(ctx, Op{"list", o.Prefix}, callArguments{list: o})
	return r.page, err
}

func (d *decorated) Create(ctx context.Context, key string, body []byte, o PutOptions) (Info, error) {
	r, err := d.run(ctx, Op{"create", key}, callArguments{body: body, put: o})
	return r.info, err
}

func (d *decorated) Replace(ctx context.Context, key string, body []byte, etag string, o PutOptions) (Info, error) {
	r, err := d.run(ctx, Op{"replace", key}, callArguments{body: body, etag: etag, put: o})
	return r.info, err
}

func (d *decorated) Put(ctx context.Context, key string, body []byte, o PutOptions) (Info, error) {
	r, err := d.run(ctx, Op{"put", key}, callArguments{body: body, put: o})
	return r.info, err
}

func (d *decorated) Delete(ctx context.Context, key string) error {
	_, err := d.run(ctx, Op{"delete", key}, callArguments{})
	return err
}

// DeleteVersion implements VersionDeleter. Of a store that knows no versions it deletes the object. Decorators see a delete.
func (d *decorated) DeleteVersion(ctx context.Context, key, version string) error {
	_, err := d.run(ctx, Op{"delete", key}, callArguments{version: version})
	return err
}

// SetTags implements Tagger.
func (d *decorated) SetTags(ctx context.Context, key string, tags map[string]string) error {
	// The check is outside of the decorators, since nothing is sent: neither failpoints nor metrics have a
	// request to see.
	if _, ok := d.s.(Tagger); !ok {
		return &Error{Op: "tag", Key: key, Err: fmt.Errorf("%w: this store has no tags", ErrInvalid)}
	}
	_, err := d.run(ctx, Op{"tag", key}, callArguments{tags: tags})
	return err
}
