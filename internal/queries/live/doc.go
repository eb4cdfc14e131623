// Package live keeps accepted batches in memory, as columns, for queries.
//
// Batches with the same series (the same shape) share one index entry per series: inserting another one copies its
// columns and touches no series. Small batches of a shape are merged into wider columns as they arrive (see
// merge.go).
//
// Every sequence number counts once, for the identity with the smaller (accepted_at, identity): what another
// identity has won is masked when it is read.
//
// A Snapshot is one version of the store. As long as it is open it sees every batch that was inserted before it,
// evicted ones included, and none that came later.
//
// The package is pure: no goroutines, no clock. A Store is safe for concurrent use.
package live
