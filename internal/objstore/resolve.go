package objstore

import (
	"context"
	"errors"
	"fmt"
)

// contradictions bounds how often the store may answer that an object exists and then that
// it does not, before CreateOrGet returns ErrUnknown.
const contradictions = 3

// CreateOrGet creates the object, or reads the one that exists, of at most limit bytes.
// created is true only if the create was answered with success: an object that exists may
// still be the caller's own, from an attempt whose answer was lost. Errors are those of
// Create; one that wraps ErrExists also wraps the error of the Get.
//
// "Exists" followed by "not found" is a contradiction that decides nothing: the object may
// have been deleted in between, or one answer may be wrong. So the create is sent again, and
// after several contradictions the outcome is ErrUnknown.
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
		// With an ended context the next create would fail without being sent, and its error would hide
		// the contradiction.
		if ctx.Err() != nil {
			break
		}
	}
	return nil, false, &Error{Op: "create", Key: key, Err: fmt.Errorf("%w: said to exist, and then: %v", ErrUnknown, err)}
}
