// Package rollup turns accepted batches into the published series of one shard's hour: raw series first, then
// buckets of a minute, five minutes and an hour. Its results depend on nothing but the plan (the exact set of
// inputs): neither the order in which frames are read nor the process that reads them changes a byte.
//
// The package is pure: no goroutines, no clock, no store. docs/protocol/rollup.md has the
// rules and their reasons.
package rollup
