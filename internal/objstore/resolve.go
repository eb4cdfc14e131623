package objstore

import (
	"context"
	"errors"
	"fmt"
)

// contradictions bounds how often a store may say that an object exists and then that it
// does not, before that is the answer.
const contradictions = 3

// CreateOrGet creates the object, or reads the one that is there, of at most limit bytes.
// created is true only of a create that said so: an object that is there may be the
// caller's own all the same, from an attempt whose answer was lost. Errors are those of
// Create; one that wraps ErrExists wraps what Get said of the object, too.
//
// That an object exists and that it is not found contradict each other, and neither is
// final: nothing is answered from a record that nobody has read. So the create is sent
// again, and in the end the outcome is ErrUnknown.
func CreateOrGet(ctx context.Context, s interface {
	Creator
	Getter
}, key string, body []byte, limit int64, o PutOptions) (there []byte, created bool, err error) {
	for range contradictions {
		if _, err = s.Create(ctx, key, body, o); err == nil {
			return body, true, nil
		}
		if !errors.Is(err, ErrExists) {
			return nil, false, err
		}
		there, _, err = s.Get(ctx, key, GetOptions{Limit: limit})
		if err == nil {
			return there, false, nil
		}
		if !errors.Is(err, ErrNotFound) {
			return nil, false, fmt.Errorf("%w: %w", ErrExists, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, false, &Error{Op: "create", Key: key, Err: fmt.Errorf("%w: said to exist, and then: %v", ErrUnknown, err)}
}
