// Package spread keeps bodies on several places: local drives, and buckets of other stores.
//
// A body is written as full copies on ack_copies local places, which are fsynced before it counts as
// written. Later it may be coded: k data and m parity shards on as many places. Reading takes what
// there is: a copy, or any k shards, under any policy. Bodies never change and their ids are never
// used again, so files need no order, no versions and no agreement: a file that is whole is right,
// wherever it is found. A place that was away for long, or that was rolled back, can only lack files
// and have some that nobody needs.
package spread
