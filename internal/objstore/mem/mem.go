// Package mem is an object store in memory: linearizable, ordered and
// deterministic. It serves tests and the simulation.
package mem

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Store is safe for concurrent use. Every operation is atomic.
type Store struct {
	now func() time.Time // of a write
	// date is the time of an answer; the logical clock does not advance for it.
	date func() time.Time

	mu      sync.Mutex
	objects map[string]*object
	keys    keys
	ticks   int64
	place   objstore.Place
}

type object struct {
	body []byte
	info objstore.Info
	opts objstore.PutOptions
}

var _ objstore.Store = (*Store)(nil)

// New makes an empty store. LastModified comes from now; when it is nil, from a
// logical clock that starts at 2026-01-01 UTC and advances by one millisecond with each write.
func New(now func() time.Time) *Store {
	s := &Store{now: now, date: now, objects: map[string]*object{}}
	if now == nil {
		epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		s.date = func() time.Time { return epoch.Add(time.Duration(s.ticks) * time.Millisecond) }
		s.now = func() time.Time {
			s.ticks++
			return s.date()
		}
	}
	return s
}

// Get reads a copy of the object.
func (s *Store) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	obj, err := s.find(ctx, key)
	if err == nil {
		var body []byte
		if body, err = cut(obj.body, o); err == nil {
			return bytes.Clone(body), obj.info, nil
		}
	}
	return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: err}
}

// Head describes the object.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	obj, err := s.find(ctx, key)
	if err != nil {
		return objstore.Info{}, &objstore.Error{Op: "head", Key: key, Err: err}
	}
	return obj.info, nil
}

// Create writes the object if the key is absent.
func (s *Store) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(ctx, "create", key, body, o, func(old *object) error {
		if old != nil {
			return objstore.ErrExists
		}
		return nil
	})
}

// Replace writes the object if its ETag still is etag.
func (s *Store) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(ctx, "replace", key, body, o, func(old *object) error {
		if old == nil || old.info.ETag != etag {
			return objstore.ErrPreconditionFailed
		}
		return nil
	})
}

// Put writes the object.
func (s *Store) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(ctx, "put", key, body, o, func(*object) error { return nil })
}

// Delete removes the object.
func (s *Store) Delete(ctx context.Context, key string) error {
	err := objstore.CheckKey(key)
	if err == nil {
		err = canceled(ctx, objstore.ErrUnknown)
	}
	if err != nil {
		return &objstore.Error{Op: "delete", Key: key, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Both are harmless for an absent key, which is no error for S3 either.
	delete(s.objects, key)
	s.keys.remove(key)
	return nil
}

// Place implements objstore.Placed.
func (s *Store) Place() objstore.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place
}

// SetPlace makes the store say where it is, as those behind a network do.
func (s *Store) SetPlace(p objstore.Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place = p
}

// Replicate writes an object as a store's replication does: with the time of its source, and
// with the mark that it is a replica.
func (s *Store) Replicate(key string, body []byte, written time.Time) {
	sum := identity.Sum(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[key] == nil {
		s.keys.insert(key)
	}
	s.objects[key] = &object{body: bytes.Clone(body), info: objstore.Info{
		Key: key, Size: int64(len(body)), SHA256: sum, ETag: `"` + hex.EncodeToString(sum[:16]) + `"`, LastModified: written, Replica: true,
	}}
}

// Len is the number of objects.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objects)
}

// Options returns what the object was written with: content type and tags.
func (s *Store) Options(key string) (objstore.PutOptions, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if obj := s.objects[key]; obj != nil {
		return obj.opts, true
	}
	return objstore.PutOptions{}, false
}

func (s *Store) find(ctx context.Context, key string) (*object, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, err
	}
	if err := canceled(ctx, objstore.ErrUnavailable); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if obj := s.objects[key]; obj != nil {
		return obj, nil // safe without the lock: an object in the map never changes
	}
	return nil, objstore.ErrNotFound
}

func (s *Store) write(ctx context.Context, op, key string, body []byte, o objstore.PutOptions, allowed func(*object) error) (objstore.Info, error) {
	// The body is hashed and copied before the lock is taken.
	obj, err := newObject(ctx, key, body, o)
	if err != nil {
		return objstore.Info{}, &objstore.Error{Op: op, Key: key, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.objects[key]
	if err := allowed(old); err != nil {
		return objstore.Info{}, &objstore.Error{Op: op, Key: key, Err: err}
	}
	// Under the lock, so that times and writes have one order.
	obj.info.LastModified = s.now()
	s.objects[key] = obj
	if old == nil {
		s.keys.insert(key)
	}
	return obj.info, nil
}

func newObject(ctx context.Context, key string, body []byte, o objstore.PutOptions) (*object, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, err
	}
	if err := canceled(ctx, objstore.ErrUnknown); err != nil {
		return nil, err
	}
	sum := identity.Sum(body)
	// Refused as S3 does it, so that a caller with a wrong checksum fails in tests too.
	if !o.SHA256.IsZero() && o.SHA256 != sum {
		return nil, objstore.ErrChecksum
	}
	o.SHA256 = sum
	return &object{
		body: bytes.Clone(body),
		opts: o,
		info: objstore.Info{
			Key: key, Size: int64(len(body)), SHA256: sum,
			ETag: `"` + hex.EncodeToString(sum[:16]) + `"`, // of the content, as in S3
		},
	}, nil
}

// cut applies range and limit.
func cut(body []byte, o objstore.GetOptions) ([]byte, error) {
	size := int64(len(body))
	if o.Offset < 0 || o.Length < 0 || o.Offset > 0 && o.Offset >= size {
		return nil, fmt.Errorf("%w: range %d+%d of %d bytes", objstore.ErrInvalid, o.Offset, o.Length, size)
	}
	n := size - o.Offset
	if o.Length > 0 {
		n = min(n, o.Length)
	}
	limit := o.Limit
	if limit == 0 {
		limit = objstore.DefaultGetLimit
	}
	if n > limit {
		return nil, fmt.Errorf("%w: %d bytes, limit %d", objstore.ErrInvalid, n, limit)
	}
	return body[o.Offset : o.Offset+n], nil
}

func canceled(ctx context.Context, kind error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", kind, err)
	}
	return nil
}
