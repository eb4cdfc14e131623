// Package published reads the series of blocks: which blocks count comes from a
// catalog.View, where a series stands from their indexes, its rows from ranges of their
// chunks. A cold query takes two dependent rounds of requests: indexes, then ranges.
package published
