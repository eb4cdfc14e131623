package qualify

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Stores that each break one rule.

// checkThenWrite looks for the key, lets others in, and writes. In a race the first
// waits until a second has looked too, so that the violation always shows.
type checkThenWrite struct {
	*mem.Store
	mu    sync.Mutex
	races map[string]chan struct{}
}

func (s *checkThenWrite) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if _, err := s.Head(ctx, key); err == nil {
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrExists}
	}
	if strings.Contains(key, "/race-") {
		s.meet(key)
	}
	return s.Put(ctx, key, body, o)
}

func (s *checkThenWrite) meet(key string) {
	s.mu.Lock()
	second, waiting := s.races[key]
	if waiting {
		if second != nil {
			close(second)
			s.races[key] = nil
		}
		s.mu.Unlock()
		return
	}
	second = make(chan struct{})
	if s.races == nil {
		s.races = map[string]chan struct{}{}
	}
	s.races[key] = second
	s.mu.Unlock()
	<-second
}

type ignoresIfNoneMatch struct{ *mem.Store }

func (s ignoresIfNoneMatch) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.Put(ctx, key, body, o)
}

type ignoresIfMatch struct{ *mem.Store }

func (s ignoresIfMatch) Replace(ctx context.Context, key string, body []byte, _ string, o objstore.PutOptions) (objstore.Info, error) {
	return s.Put(ctx, key, body, o)
}

// cachesAbsence goes on saying not found once it has said so.
type cachesAbsence struct {
	*mem.Store
	mu     sync.Mutex
	absent map[string]bool
}

func (s *cachesAbsence) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, info, err := s.Store.Get(ctx, key, o)
	if errors.Is(err, objstore.ErrNotFound) || s.absent[key] {
		s.absent[key] = true
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrNotFound}
	}
	return body, info, err
}

// listsLate lacks the newest object.
type listsLate struct{ *mem.Store }

func (s *listsLate) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	page, err := s.Store.List(ctx, o)
	if n := len(page.Objects); n > 0 && page.Next == "" {
		page.Objects = page.Objects[:n-1]
	}
	return page, err
}

type listsBackwards struct{ *mem.Store }

func (s listsBackwards) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	page, err := s.Store.List(ctx, o)
	slices.Reverse(page.Objects)
	return page, err
}

type ignoresHash struct{ *mem.Store }

func (s ignoresHash) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	o.SHA256 = identity.Digest{}
	return s.Store.Create(ctx, key, body, o)
}

// ignoresChecksum verifies the signature's payload hash but not the checksum header.
type ignoresChecksum struct{ *mem.Store }

func (s ignoresChecksum) CreateMismatched(ctx context.Context, key string, body []byte, _ identity.Digest) error {
	_, err := s.Create(ctx, key, body, objstore.PutOptions{})
	return err
}

type keepsNoChecksum struct{ *mem.Store }

func (s keepsNoChecksum) Head(ctx context.Context, key string) (objstore.Info, error) {
	info, err := s.Store.Head(ctx, key)
	info.SHA256 = identity.Digest{}
	return info, err
}

type keepsDeleted struct{ *mem.Store }

func (s keepsDeleted) Delete(context.Context, string) error { return nil }

type overwrites struct{ *mem.Store }

func (s overwrites) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	info, err := s.Store.Create(ctx, key, body, o)
	if errors.Is(err, objstore.ErrExists) {
		s.Put(ctx, key, body, o)
	}
	return info, err
}
