package objstore

import "context"

// Tagger is what a store can do besides: replace the tags of an object. Tags are hints,
// never proof. Nothing depends on a store having it.
type Tagger interface {
	// SetTags replaces all tags; ErrNotFound when there is no object.
	SetTags(ctx context.Context, key string, tags map[string]string) error
}
