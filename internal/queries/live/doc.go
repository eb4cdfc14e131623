// Package live keeps accepted batches in memory, as columns, for queries.
//
// Batches that carry the same series (the same shape) share one index entry per
// series: inserting one more of them copies its columns and touches no series. Small
// batches of a shape are merged into wider columns as they come (see merge.go).
//
// Every sequence number counts once, from the identity with the smaller
// (accepted_at, identity): what another identity has won is masked when it is read.
//
// A Snapshot is one version of the store: it sees every batch that was inserted
// before it and none that came later, evicted ones included while it is open.
//
// The package is pure: no goroutines, no clock. A Store is safe for concurrent use.
package live
