package accepted

import "lightmetrics.dev/lightmetrics/pkg/identity"

// Stamp orders the claims of one identity.
type Stamp = identity.Stamp
