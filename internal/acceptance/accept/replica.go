package accept

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// ErrReplica says that the store's replication wrote a record after this place became the
// authority. So another bucket takes batches under the same identities, and this one can't
// decide about them.
var ErrReplica = errors.New("the object is a replica of another bucket's, younger than this authority")

// noReplicas is a store whose acceptance and boot records can't be read where a replication wrote
// them. What was replicated before the authority was bound to this place moved here with it.
type noReplicas struct {
	Store
	boundAt time.Time
}

// Get implements objstore.Getter.
func (s noReplicas) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	b, info, err := s.Store.Get(ctx, key, o)
	if err == nil && info.Replica && info.LastModified.After(s.boundAt) &&
		(strings.HasPrefix(key, layout.AcceptedPrefix) || strings.HasPrefix(key, layout.BootsPrefix)) {
		// Invalid, as a record that exists and can never be used.
		err = &objstore.Error{Op: "get", Key: key, Err: fmt.Errorf("%w: %w", objstore.ErrInvalid, ErrReplica)}
		return nil, objstore.Info{}, err
	}
	return b, info, err
}
