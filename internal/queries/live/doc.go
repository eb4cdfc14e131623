// Package live keeps accepted batches in memory, as columns, for queries.
//
// Batches with the same series (the same shape) share one index entry per series: inserting another one copies its
// columns and touches no series. Their rows are kept in segments, sorted by time, and segments of the same window of time
// are merged as batches arrive, in whatever order (window.go). Rows remember their batch: what counts is decided when
// they are read, for all series of a group at once where that is possible (view.go).
//
// Every sequence number counts once, for the identity with the smaller (accepted_at, identity): what another
// identity has won is masked when it is read.
//
// A Snapshot is one version of the store. As long as it is open it sees every batch that was inserted before it,
// evicted ones included, and none that came later.
//
// The package is pure: no goroutines, no clock. A Store is safe for concurrent use.
package live
