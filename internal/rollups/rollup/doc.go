// Package rollup turns accepted batches into the published series of one shard's hour:
// raw series first, then buckets of a minute, five minutes and an hour. Its results are
// functions of the plan (the exact set of inputs): neither the order in which frames are
// read nor the process that reads them shows in a byte of them.
//
// The package is pure: no goroutines, no clock, no store. docs/protocol/rollup.md has the
// rules and their reasons.
package rollup
