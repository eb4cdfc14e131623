package intake

import "lightmetrics.dev/lightmetrics/pkg/shard"

// Topic of the work queue on which the owner of a shard hears that its intake has grown.
// A message says no more than that: what is new stands in the intake, and a lost one
// costs the time until the owner lists it anyway.
func Topic(id shard.ID) string { return "rollup-" + id.String() }
