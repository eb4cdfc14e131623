package query

import "lightmetrics.dev/lightmetrics/internal/objstore/failstore"

// Failpoints of a query node's requests; those of its follower stand in internal/follow.
var _ = failstore.Register("query", "list journal", "get journal", "get raw-blobs")
