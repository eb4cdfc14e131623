package objstore

import (
	"context"
	"fmt"
)

// Tagger is what a store can do besides: replace the tags of an object. Tags are hints,
// never proof. Nothing depends on a store having it.
type Tagger interface {
	// SetTags replaces all tags; ErrNotFound when there is no object.
	SetTags(ctx context.Context, key string, tags map[string]string) error
}

// SetTags of a store with a prefix needs one in the store behind it; else ErrInvalid.
func (p *prefixed) SetTags(ctx context.Context, key string, tags map[string]string) error {
	t, ok := p.s.(Tagger)
	if !ok {
		return &Error{Op: "tag", Key: key, Err: fmt.Errorf("%w: this store has no tags", ErrInvalid)}
	}
	return t.SetTags(ctx, p.key(key), tags)
}
