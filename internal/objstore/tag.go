package objstore

import "context"

// Tagger replaces the tags of an object. Stores need not implement it: tags are hints, and
// no decision depends on them.
type Tagger interface {
	// SetTags replaces all tags; ErrNotFound when there is no object.
	SetTags(ctx context.Context, key string, tags map[string]string) error
}
