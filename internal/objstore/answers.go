package objstore

import (
	"context"
	"errors"
	"fmt"
)

// CheckAnswers asks for an object, and gives nil where the store answers, whether it has
// the object or not: the cheapest question that needs network, credentials and bucket.
func CheckAnswers(ctx context.Context, r Reader, key string) error {
	if _, err := r.Head(ctx, key); err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("the store does not answer: %w", err)
	}
	return nil
}
