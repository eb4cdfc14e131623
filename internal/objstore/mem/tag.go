package mem

import (
	"context"
	"maps"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

var _ objstore.Tagger = (*Store)(nil)

// SetTags replaces the tags of the object.
func (s *Store) SetTags(ctx context.Context, key string, tags map[string]string) error {
	err := objstore.CheckKey(key)
	if err == nil {
		err = canceled(ctx, objstore.ErrUnknown)
	}
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if old := s.objects[key]; old != nil {
			tagged := *old // a copy, because readers use objects of the map without the lock
			tagged.opts.Tags = maps.Clone(tags)
			s.objects[key] = &tagged
			return nil
		}
		err = objstore.ErrNotFound
	}
	return &objstore.Error{Op: "tag", Key: key, Err: err}
}
