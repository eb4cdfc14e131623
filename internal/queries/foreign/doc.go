// Package foreign has series that query nodes of other regions sent: their bytes between the nodes
// (docs/format/region-series.md), and the samples that a query reads of them. Bytes are checked when they arrive, whole:
// what is wrong with them is an error of the region that sent them and never of the query that reads them.
package foreign
