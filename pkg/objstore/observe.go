package objstore

import (
	"context"
	"time"
)

// Observer is told of every finished operation: its name as in Error.Op, the
// key's Family, how long it took and how it ended.
type Observer func(op, family string, took time.Duration, err error)

// Observe reports every operation of s to fn, timed by now. It hides what s has
// besides Store: the S3 back end takes an Observer itself.
func Observe(s Store, fn Observer, now func() time.Time) Store {
	return &observed{s, fn, now}
}

type observed struct {
	s   Store
	fn  Observer
	now func() time.Time
}

func (s *observed) done(op, key string, start time.Time, err error) {
	s.fn(op, Family(key), s.now().Sub(start), err)
}

func (s *observed) Get(ctx context.Context, key string, o GetOptions) ([]byte, Info, error) {
	start := s.now()
	b, info, err := s.s.Get(ctx, key, o)
	s.done("get", key, start, err)
	return b, info, err
}

func (s *observed) Head(ctx context.Context, key string) (Info, error) {
	start := s.now()
	info, err := s.s.Head(ctx, key)
	s.done("head", key, start, err)
	return info, err
}

func (s *observed) List(ctx context.Context, o ListOptions) (Page, error) {
	start := s.now()
	page, err := s.s.List(ctx, o)
	s.done("list", o.Prefix, start, err)
	return page, err
}

func (s *observed) Create(ctx context.Context, key string, body []byte, o PutOptions) (Info, error) {
	start := s.now()
	info, err := s.s.Create(ctx, key, body, o)
	s.done("create", key, start, err)
	return info, err
}

func (s *observed) Replace(ctx context.Context, key string, body []byte, etag string, o PutOptions) (Info, error) {
	start := s.now()
	info, err := s.s.Replace(ctx, key, body, etag, o)
	s.done("replace", key, start, err)
	return info, err
}

func (s *observed) Put(ctx context.Context, key string, body []byte, o PutOptions) (Info, error) {
	start := s.now()
	info, err := s.s.Put(ctx, key, body, o)
	s.done("put", key, start, err)
	return info, err
}

func (s *observed) Delete(ctx context.Context, key string) error {
	start := s.now()
	err := s.s.Delete(ctx, key)
	s.done("delete", key, start, err)
	return err
}
