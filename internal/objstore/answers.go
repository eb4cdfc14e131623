package objstore

import (
	"context"
	"errors"
	"fmt"
)

// CheckAnswers returns nil when the store answers a HEAD of key, whether it has the object or
// not. It is the cheapest request that needs the network, the credentials and the bucket.
func CheckAnswers(ctx context.Context, r Reader, key string) error {
	// "Not found" proves as much as the object would: somebody with the right to see the bucket was
	// answered.
	if _, err := r.Head(ctx, key); err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("the store does not answer: %w", err)
	}
	return nil
}
