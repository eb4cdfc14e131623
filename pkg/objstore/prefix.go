package objstore

import (
	"context"
	"fmt"
	"strings"
)

// WithPrefix shows the part of s under prefix, which is "" or ends in a slash, as a
// store of its own. Back ends that know a prefix themselves do not need it.
func WithPrefix(s Store, prefix string) Store {
	if prefix == "" {
		return s
	}
	return &prefixed{s, prefix}
}

type prefixed struct {
	s      Store
	prefix string
}

func (p *prefixed) Get(ctx context.Context, key string, o GetOptions) ([]byte, Info, error) {
	b, info, err := p.s.Get(ctx, p.key(key), o)
	return b, p.strip(info), err
}

func (p *prefixed) Head(ctx context.Context, key string) (Info, error) {
	info, err := p.s.Head(ctx, p.key(key))
	return p.strip(info), err
}

func (p *prefixed) List(ctx context.Context, o ListOptions) (Page, error) {
	o.Prefix = p.prefix + o.Prefix
	if o.StartAfter != "" {
		o.StartAfter = p.prefix + o.StartAfter
	}
	page, err := p.s.List(ctx, o)
	if err != nil {
		return Page{}, err
	}
	for i := range page.Objects {
		if !strings.HasPrefix(page.Objects[i].Key, p.prefix) {
			return Page{}, &Error{Op: "list", Key: o.Prefix, Err: fmt.Errorf("%w: foreign key %q", ErrUnavailable, page.Objects[i].Key)}
		}
		page.Objects[i] = p.strip(page.Objects[i])
	}
	for i := range page.CommonPrefixes {
		page.CommonPrefixes[i] = strings.TrimPrefix(page.CommonPrefixes[i], p.prefix)
	}
	page.Next = strings.TrimPrefix(page.Next, p.prefix)
	return page, nil
}

func (p *prefixed) Create(ctx context.Context, key string, body []byte, o PutOptions) (Info, error) {
	info, err := p.s.Create(ctx, p.key(key), body, o)
	return p.strip(info), err
}

func (p *prefixed) Replace(ctx context.Context, key string, body []byte, etag string, o PutOptions) (Info, error) {
	info, err := p.s.Replace(ctx, p.key(key), body, etag, o)
	return p.strip(info), err
}

func (p *prefixed) Put(ctx context.Context, key string, body []byte, o PutOptions) (Info, error) {
	info, err := p.s.Put(ctx, p.key(key), body, o)
	return p.strip(info), err
}

func (p *prefixed) Delete(ctx context.Context, key string) error {
	return p.s.Delete(ctx, p.key(key))
}

func (p *prefixed) strip(i Info) Info {
	i.Key = strings.TrimPrefix(i.Key, p.prefix)
	return i
}

// key leaves the empty key empty, so that the store refuses it.
func (p *prefixed) key(key string) string {
	if key == "" {
		return ""
	}
	return p.prefix + key
}
