package objstore

import (
	"context"
	"fmt"
)

// Op is one operation on a store: its name as in Error.Op, and its key or, of a listing,
// its prefix.
type Op struct{ Name, Key string }

// Writes reports whether the operation changes the store.
func (o Op) Writes() bool { return o.Name != "get" && o.Name != "head" && o.Name != "list" }

// Around runs an operation: it calls do once, several times or not at all, and returns the
// error that the caller of the store gets. If that error is nil, the caller gets the result
// of the last call of do.
type Around func(ctx context.Context, op Op, do func(context.Context) error) error

// Decorate runs every operation of s through a. The result implements Tagger, whose SetTags
// returns ErrInvalid if s does not, and Unwrap.
func Decorate(s Store, a Around) Store { return &decorated{s, a} }

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
	s      Store
	around Around
}

var _ Tagger = (*decorated)(nil)

// Unwrap returns the store that is decorated.
func (d *decorated) Unwrap() Store { return d.s }

func (d *decorated) Get(ctx context.Context, key string, o GetOptions) (b []byte, info Info, err error) {
	err = d.around(ctx, Op{"get", key}, func(ctx context.Context) (err error) {
		b, info, err = d.s.Get(ctx, key, o)
		return err
	})
	// The decorator may return an error although the inner call succeeded, for a lost answer for example.
	// What the call left in the results must not reach the caller then.
	if err != nil {
		return nil, Info{}, err
	}
	return b, info, nil
}

func (d *decorated) Head(ctx context.Context, key string) (info Info, err error) {
	err = d.around(ctx, Op{"head", key}, func(ctx context.Context) (err error) {
		info, err = d.s.Head(ctx, key)
		return err
	})
	if err != nil {
		return Info{}, err
	}
	return info, nil
}

func (d *decorated) List(ctx context.Context, o ListOptions) (page Page, err error) {
	err = d.around(ctx, Op{"list", o.Prefix}, func(ctx context.Context) (err error) {
		page, err = d.s.List(ctx, o)
		return err
	})
	if err != nil {
		return Page{}, err
	}
	return page, nil
}

func (d *decorated) write(ctx context.Context, name, key string, put func(context.Context) (Info, error)) (info Info, err error) {
	err = d.around(ctx, Op{name, key}, func(ctx context.Context) (err error) {
		info, err = put(ctx)
		return err
	})
	if err != nil {
		return Info{}, err
	}
	return info, nil
}

func (d *decorated) Create(ctx context.Context, key string, body []byte, o PutOptions) (Info, error) {
	return d.write(ctx, "create", key, func(ctx context.Context) (Info, error) { return d.s.Create(ctx, key, body, o) })
}

func (d *decorated) Replace(ctx context.Context, key string, body []byte, etag string, o PutOptions) (Info, error) {
	return d.write(ctx, "replace", key, func(ctx context.Context) (Info, error) { return d.s.Replace(ctx, key, body, etag, o) })
}

func (d *decorated) Put(ctx context.Context, key string, body []byte, o PutOptions) (Info, error) {
	return d.write(ctx, "put", key, func(ctx context.Context) (Info, error) { return d.s.Put(ctx, key, body, o) })
}

func (d *decorated) Delete(ctx context.Context, key string) error {
	return d.around(ctx, Op{"delete", key}, func(ctx context.Context) error { return d.s.Delete(ctx, key) })
}

// SetTags implements Tagger.
func (d *decorated) SetTags(ctx context.Context, key string, tags map[string]string) error {
	// The check is outside of the decorator, since nothing is sent: neither failpoints nor metrics have a
	// request to see.
	t, ok := d.s.(Tagger)
	if !ok {
		return &Error{Op: "tag", Key: key, Err: fmt.Errorf("%w: this store has no tags", ErrInvalid)}
	}
	return d.around(ctx, Op{"tag", key}, func(ctx context.Context) error { return t.SetTags(ctx, key, tags) })
}
