// Package published reads the series of blocks: a catalog.View says which blocks count, their indexes where a
// series is, and its rows come from ranges of their chunks. A query with empty caches takes two dependent rounds
// of requests: indexes, then ranges.
package published
